"""Resamples of cells of rows: of units, beside those of whole rows."""

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation.cell_resamples import intervals_by_cells
from keras_calib.inputs.predictions import read_predictions


@pytest.mark.parametrize("weighted", [False, True])
def test_the_interval_of_units_is_that_of_their_means(weighted):
    # 200 images of 60 pixels; the accuracy of an image is its own.
    rng = np.random.default_rng(0)
    rate = rng.uniform(0.4, 1, (200, 1))
    p = rng.uniform(0.5, 1, (200, 60))
    labels = (rng.random((200, 60)) < rate).astype(int)
    weights = rng.uniform(0.5, 2, 200) if weighted else None
    data = read_predictions(
        labels, np.stack([1 - p, p], axis=-1), weights, from_logits=False
    )
    assert data.unit is not None
    found = intervals_by_cells(data, ["confidence_gap"], (15, 0.9), 400)
    gap = p.mean(axis=1) - labels.mean(axis=1)
    # The standard error of a weighted mean of independent images.
    share = np.full(200, 1 / 200) if weights is None else weights
    share = share / share.sum()
    away = share * (gap - share @ gap)
    expected = 1.96 * np.sqrt(away @ away)
    low, high = found["confidence_gap"]
    # Of 400 draws, the ends are within a sixth.
    assert (-low, high) == pytest.approx((expected, expected), rel=0.17)


def test_the_interval_of_a_binned_error_is_that_of_whole_units():
    rng = np.random.default_rng(0)
    rate = rng.uniform(0.2, 0.8, (200, 1))
    p = rng.uniform(0.5, 1, (200, 60))
    labels = (rng.random((200, 60)) < rate).astype(int)
    scores, name = np.stack([1 - p, p], axis=-1), "expected_calibration_error"
    data = read_predictions(labels, scores, from_logits=False)
    found = intervals_by_cells(data, [name], (15, 0.9), 400)
    whole = kc.metrics.calibration_errors(
        labels, scores, metrics=[name], num_resamples=400
    )[name]
    # Cells hold 3 rows each; of 400 draws, the ends are within a sixth.
    expected = whole.low - whole, whole.high - whole
    width = whole.high - whole.low
    assert found[name] == pytest.approx(expected, abs=0.17 * width)


NAMES = [
    "maximum_calibration_error",
    "adaptive_calibration_error",
    "debiased_calibration_error",
    "label_binned_calibration_error",
    "ks_calibration_error",
]


@pytest.mark.parametrize("shape", [(12_000,), (240, 50)])
def test_equal_confidences_are_one_cell(shape):
    # A cell across two values had a confidence, and a bin, of its own.
    rng = np.random.default_rng(0)
    p = np.round(rng.uniform(0.55, 1, shape), 1)
    labels = (rng.random(shape) < 0.9 * p).astype(int)
    scores = np.stack([1 - p, p], axis=-1)
    data = read_predictions(labels, scores, from_logits=False)
    found = intervals_by_cells(data, NAMES, (15, 0.9), 400)
    whole = kc.metrics.calibration_errors(
        labels, scores, metrics=NAMES, num_resamples=400
    )
    for name in NAMES:
        width = whole[name].high - whole[name].low
        expected = whole[name].low, whole[name].high
        ends = np.add(found[name], float(whole[name]))
        # Of 400 draws, the ends are within a sixth.
        assert ends == pytest.approx(expected, abs=0.17 * width), name
