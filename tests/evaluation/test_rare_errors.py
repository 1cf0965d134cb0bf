"""Intervals of means of predictions that are nearly all right."""

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation.rare_errors import FEW
from keras_calib.evaluation.rare_errors import error_rate
from keras_calib.evaluation.rare_errors import wilson
from keras_calib.inputs.predictions import read_predictions

errors = kc.metrics.calibration_errors
NAMES = ("accuracy", "confidence_gap", "brier_score", "negative_log_likelihood")
OTHERS = ("mean_confidence", "mean_entropy")


def intervals(labels, p, names=NAMES, **options):
    options = {"num_resamples": 100, "verbose": 0, **options}
    return errors(labels, p, metrics=names, **options)


def rows(n, wrong, confidence=0.99):
    """Labels, of which the first are wrong, and equal predictions of two."""
    p = np.full(n, confidence)
    return (np.arange(n) < wrong).astype(int), np.stack([p, 1 - p], axis=1)


def test_wilson_interval():
    # Brown, Cai and DasGupta, Statistical Science 2001: of z = 1.96.
    z = 1.959964
    assert wilson(0.0, 100, 0.95) == pytest.approx((0, z**2 / (100 + z**2)))
    low, high = wilson(0.2, 50, 0.95)
    for end in low, high:  # both ends solve |rate - p| = z sqrt(p (1 - p) / n)
        error = z * np.sqrt(end * (1 - end) / 50)
        assert abs(0.2 - end) == pytest.approx(error, abs=1e-6)
    assert low < 0.2 < high


def test_all_right():
    found = intervals(*rows(100, 0))
    rate = wilson(0.0, 100, 0.95)[1]
    # What a wrong row adds: to its loss, and to confidence - correctness.
    added = {
        "accuracy": -1.0,
        "confidence_gap": 1.0,
        "brier_score": 2 * (0.99**2 - 0.01**2),
        "negative_log_likelihood": np.log(0.99 / 0.01),
    }
    for name, each in added.items():
        own = float(found[name])
        ends = sorted([own, own + rate * each])
        assert [found[name].low, found[name].high] == pytest.approx(ends)


RISKS = {
    "area_under_risk_coverage": 1.0,
    "excess_area_under_risk_coverage": 1.0,
    "area_under_generalized_risk_coverage": 0.5,
}


@pytest.mark.parametrize("name", RISKS)
def test_areas_under_risks_without_an_error(name):
    found = intervals(*rows(100, 0), [name])[name]
    rate = wilson(0.0, 100, 0.95)[1]
    assert found == found.low == 0
    assert found.high == pytest.approx(RISKS[name] * rate)


@pytest.mark.parametrize("name", RISKS)
def test_areas_under_risks_of_one_error(name):
    labels, p = rows(100, 1)
    p[0] = [0.6, 0.4]  # in the last place
    found = intervals(labels, p, [name])[name]
    rate = wilson(0.01, 100, 0.95)[1] - 0.01
    # The mean of what it added, and of one more in a random place.
    each = (float(found) / 0.01 + RISKS[name]) / 2
    assert found.high == pytest.approx(float(found) + rate * each)


@pytest.mark.slow
def test_areas_under_risks_hold_what_many_rows_have():
    def drawn(n):
        confidence = 1 - 0.5 * rng.beta(0.3, 6.0, n)
        labels = (rng.random(n) > confidence).astype(int)
        return labels, np.stack([confidence, 1 - confidence], axis=1)

    rng = np.random.default_rng(0)
    true = errors(*drawn(200_000), metrics=list(RISKS))
    sets = 60
    held = dict.fromkeys(RISKS, 0)
    for _ in range(sets):
        for name, found in intervals(*drawn(100), list(RISKS)).items():
            held[name] += found.low <= true[name] <= found.high
    # Percentiles hold 70 %. Of 95 %, less than 85 % is a chance of 0.2 %.
    assert min(held.values()) >= 0.85 * sets, held


def test_all_wrong():
    labels, p = rows(50, 50)
    found = intervals(labels, p)
    assert found["accuracy"] == found["accuracy"].low == 0
    assert found["accuracy"].high == pytest.approx(wilson(0.0, 50, 0.95)[1])
    assert found["confidence_gap"].high == pytest.approx(0.99)
    for name in NAMES:
        assert found[name].high > found[name].low


def test_no_interval_of_uncertain_predictions_is_empty():
    for wrong in range(13):
        found = intervals(*rows(80, wrong))
        assert all(found[name].high > found[name].low for name in NAMES)
    # Certain ones have a loss of 0, and an accuracy that is not known.
    found = intervals(*rows(80, 0, confidence=1.0))
    assert found["negative_log_likelihood"].high == 0
    assert found["accuracy"].low < 0.97


def test_what_wrong_rows_cost_is_no_less_than_it_was():
    labels, p = rows(200, 2, confidence=0.9)
    p[:2] = [0.999, 0.001]
    found = intervals(labels, p)["negative_log_likelihood"]
    loss = np.log(0.999 / 0.001)
    rate = wilson(0.01, 200, 0.95)[1] - 0.01
    assert found.high - found >= 0.9 * rate * loss


@pytest.mark.parametrize("wrong", [FEW, 30])
def test_where_errors_are_not_rare_intervals_are_percentiles(wrong):
    rng = np.random.default_rng(0)
    labels, p = rows(60, wrong, confidence=0.8)
    p += rng.uniform(-0.1, 0.1, 60)[:, None] * [1, -1]
    found, plain = (
        intervals(labels, p, interval=kind) for kind in ("auto", "percentile")
    )
    for name in NAMES:
        assert found[name].low == plain[name].low
        assert found[name].high == plain[name].high


def test_only_intervals_of_means_with_labels_and_only_by_default():
    labels, p = rows(40, 1)
    names = (*NAMES, *OTHERS)
    found, plain = (
        intervals(labels, p, names, interval=kind)
        for kind in ("auto", "percentile")
    )
    for name in OTHERS:
        assert (found[name].low, found[name].high) == (
            (plain[name].low, plain[name].high)
        )
    for name in NAMES:
        assert found[name].low <= plain[name].low
        assert found[name].high > plain[name].low
    assert found["accuracy"].low < plain["accuracy"].low


def test_losses_of_soft_labels_keep_their_interval():
    _, p = rows(40, 0)
    soft = np.full((40, 2), [0.7, 0.3])
    soft[:20] = [0.9, 0.1]
    found, plain = (
        intervals(soft, p, interval=kind) for kind in ("auto", "percentile")
    )
    assert found["brier_score"].high == plain["brier_score"].high
    assert found["accuracy"].low < plain["accuracy"].low


def test_rows_that_depend_on_each_other_are_one():
    labels, p = rows(120, 12)
    ids = np.arange(120) // 12
    data = read_predictions(labels, p, clusters=ids)
    # One of ten units is wrong.
    found = error_rate(data, 0.95)
    assert found[1:3] == pytest.approx(wilson(0.1, 10, 0.95))
    assert found.wrong == pytest.approx(1)
    labels[6:12] = 0  # half of the rows of one unit of ten
    data = read_predictions(labels, p, clusters=ids)
    found = error_rate(data, 0.95)
    assert found.value == pytest.approx(0.05)
    assert found[1:3] == pytest.approx(0.5 * np.array(wilson(0.1, 10, 0.95)))
    # Each image has some wrong pixels: they are many.
    data = read_predictions(np.arange(120) % 12 == 0, p, clusters=ids)
    assert error_rate(data, 0.95) is None


def test_weights_are_as_many_rows_as_tell_as_much():
    labels, p = rows(100, 0)
    weights = np.where(np.arange(100) < 50, 1.0, 3.0)
    data = read_predictions(labels, p, weights)
    number = 200**2 / 500
    assert error_rate(data, 0.95)[1:3] == pytest.approx(
        wilson(0.0, number, 0.95)
    )


def test_one_unit_has_no_interval():
    labels, p = rows(4, 0)
    found = intervals(labels, p, clusters=np.zeros(4, int))
    assert all(np.isnan([found[n].low, found[n].high]).all() for n in NAMES)


@pytest.mark.one_backend
@pytest.mark.parametrize("n", [100, 300])
def test_intervals_hold_the_true_value(n):
    def predictions(rng, n):
        wrong = 1 / (1 + np.exp(np.maximum(5 + rng.normal(size=n), 0.1)))
        labels = (rng.random(n) < wrong).astype(int)
        return labels, np.stack([1 - wrong, wrong], axis=1)

    rng = np.random.default_rng(0)
    # A calibrated model has the loss that it expects.
    _, p = predictions(rng, 200_000)
    true = (
        p[:, 0].mean(),
        0.0,
        2 * (p[:, 0] * p[:, 1]).mean(),
        -(p * np.log(p)).sum(axis=1).mean(),
    )
    held, sets = np.zeros(len(NAMES)), 100
    for _ in range(sets):
        found = intervals(*predictions(rng, n))
        for i, (name, value) in enumerate(zip(NAMES, true, strict=True)):
            held[i] += found[name].low <= value <= found[name].high
    # Of 0.95 fewer than 0.88 are held once in two hundred; percentiles hold
    # 0.65 at 100 rows, and 0.86 at 300.
    assert held.min() >= 0.92 * sets
