"""Noise floors by drawn labels: known means, coverage, cells and time."""

import time

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation import drawn_floor
from keras_calib.evaluation.calibrated_draws import CalibratedDraws
from keras_calib.evaluation.named_errors import CLASSWISE
from keras_calib.evaluation.named_errors import FLOORS
from keras_calib.evaluation.named_errors import NO_FLOOR
from keras_calib.evaluation.named_errors import TOP_LABEL
from keras_calib.inputs.predictions import read_predictions
from tests.metrics.oracles import generated_set
from tests.metrics.oracles import random_predictions

pytestmark = pytest.mark.one_backend
BINS = 15, 0.01


def softmax(logits):
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def floors(labels, p, names, weight=None, **options):
    data = read_predictions(labels, p, weight, False, -1, None)
    return drawn_floor.drawn_floors(data, names, BINS, **options)


def draw_labels(p, rng):
    return (p.cumsum(axis=1) > rng.random((len(p), 1))).argmax(axis=1)


def test_mean_of_the_ks_error():
    # The sheet's 1,000 draws of other labels.
    labels, logits = generated_set()
    name = "ks_calibration_error"
    found = floors(labels, softmax(logits), [name])
    assert found[f"{name}_floor_draws"] == 1000
    error = 0.0050 / np.sqrt(1000)  # of a mean: s times sd of sup|W|, 0.36
    assert abs(found[f"{name}_floor"] - 0.0166749651) < 4 * error


@pytest.mark.parametrize(
    "name", ["smooth_calibration_error", "sweep_calibration_error"]
)
def test_the_range_holds_95_percent(name):
    rng = np.random.default_rng(0)
    _, p = random_predictions(300, 4)
    labels = draw_labels(p, rng)
    found = floors(labels, p, [name])
    values = np.array(
        [
            kc.metrics.calibration_errors(
                draw_labels(p, rng), p, metrics=[name]
            )[name]
            for _ in range(400)
        ]
    )
    low, high = found[f"{name}_floor_low"], found[f"{name}_floor_high"]
    inside = np.mean((values >= low) & (values <= high))
    # Of 400 values, and of the quantiles of 1,000 draws.
    error = np.sqrt(0.95 * 0.05 * (1 / 400 + 1 / 1000))
    assert abs(inside - 0.95) < 3 * error
    error = values.std() * np.sqrt(1 / 400 + 1 / 1000)
    assert abs(found[f"{name}_floor"] - values.mean()) < 3 * error


def test_means_over_classes_are_exact():
    labels, p = random_predictions(200, 5)
    names = ["classwise_calibration_error", "classwise_calibration_error_l2"]
    one, two = (floors(labels, p, names, seed=seed) for seed in (0, 1))
    # That of the mean square has no closed form.
    exact, drawn = (f"{name}_floor" for name in names)
    assert one[exact] == two[exact]
    assert one[drawn] != two[drawn]
    rng = np.random.default_rng(2)
    values = [
        kc.metrics.calibration_errors(
            draw_labels(p, rng), p, metrics=names[:1]
        )[names[0]]
        for _ in range(500)
    ]
    error = np.std(values) / np.sqrt(500)
    assert abs(one[exact] - np.mean(values)) < 3 * error


@pytest.mark.parametrize(
    "name",
    [
        "ks_calibration_error",
        "smooth_calibration_error",
        "kernel_calibration_error",
        "sweep_calibration_error",
        "label_binned_calibration_error",
        "debiased_calibration_error_l1",
    ],
)
def test_cells_have_the_floor_of_all_samples(name, monkeypatch):
    labels, p = random_predictions(20_000, 3)
    monkeypatch.setattr(drawn_floor, "MOST_DRAWS", 200)
    whole = floors(labels, p, [name])
    monkeypatch.setattr(drawn_floor, "LARGE", 10_000)
    cells = floors(labels, p, [name], seed=1)
    width = whole[f"{name}_floor_high"] - whole[f"{name}_floor_low"]
    # A range is about four standard deviations.
    error = width / 4 * np.sqrt(2 / 200)
    difference = cells[f"{name}_floor"] - whole[f"{name}_floor"]
    assert abs(difference) < 3 * error
    ratio = (cells[f"{name}_floor_high"] - cells[f"{name}_floor_low"]) / width
    assert 0.7 < ratio < 1.4


def test_every_calibration_error_has_a_floor():
    labels, p = random_predictions(60, 3)
    found = kc.metrics.calibration_errors(labels, p, floor=True, verbose=0)
    for name in (*TOP_LABEL, *CLASSWISE):
        assert (f"{name}_floor" in found) == (name not in NO_FLOOR), name
        if name not in FLOORS and name not in NO_FLOOR:
            assert found[f"{name}_floor_low"] <= found[f"{name}_floor_high"]
            assert 40 <= found[f"{name}_floor_draws"] <= 1000
    assert "accuracy_floor" not in found


def test_a_constant_factor_of_the_weights_changes_nothing():
    labels, p = random_predictions(100, 3)
    weight = np.random.default_rng(0).uniform(0.5, 2, 100)
    names = [*TOP_LABEL, *CLASSWISE]
    one = floors(labels, p, names, weight)
    many = floors(labels, p, names, 1e3 * weight)
    assert one.keys() == many.keys()
    for name, value in one.items():
        assert many[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name


def test_the_time_is_kept_and_the_number_of_draws_is_told(monkeypatch):
    labels, p = random_predictions(2000, 4)
    names = ["sweep_calibration_error", "marginal_calibration_error"]
    begin = time.monotonic()
    found = kc.metrics.calibration_errors(
        labels, p, metrics=names, floor=True, max_seconds=1e-3
    )
    assert time.monotonic() - begin < 20
    for name in names:
        assert 1 <= found[f"{name}_floor_draws"] < 40
        assert np.isfinite(found[f"{name}_floor"])
        assert np.isnan(found[f"{name}_floor_low"])
    with pytest.raises(ValueError, match="max_seconds=0"):
        kc.metrics.calibration_errors(labels, p, floor=True, max_seconds=0)


def test_nothing_is_drawn_if_time_is_short_and_the_mean_has_a_formula():
    # So few that a busy machine, too, draws in four seconds.
    labels, p = random_predictions(500, 10)
    name = "classwise_calibration_error"
    short, whole = (
        kc.metrics.calibration_errors(
            labels, p, metrics=[name], floor=True, max_seconds=seconds
        )
        for seconds in (1e-6, 4.0)
    )
    assert short[f"{name}_floor"] == whole[f"{name}_floor"]
    assert short[f"{name}_floor_draws"] == 0 < whole[f"{name}_floor_draws"]
    assert np.isnan(short[f"{name}_floor_low"])


def test_without_a_limit_the_size_decides(monkeypatch):
    labels, p = random_predictions(300, 4)
    names = ["ks_calibration_error", "marginal_calibration_error"]
    monkeypatch.setattr(drawn_floor, "ENOUGH", 40 * 301)
    found = floors(labels, p, names)
    assert [found[f"{name}_floor_draws"] for name in names] == [40, 10]
    low = [found[f"{name}_floor_low"] for name in names]
    assert np.isfinite(low[0]) and np.isnan(low[1])
    # With time, there are more.
    found = floors(labels, p, names, max_seconds=10.0)
    assert found[f"{names[1]}_floor_draws"] > 40


def test_the_seed_draws_the_same_labels():
    labels, p = random_predictions(50, 3)
    name = "smooth_calibration_error"
    one, same, other = (floors(labels, p, [name], seed=s) for s in (3, 3, 4))
    assert one == same
    assert one[f"{name}_floor"] != other[f"{name}_floor"]


def test_draws_within_a_time_show_no_bar(monkeypatch, capfd):
    monkeypatch.setattr("keras_calib._progress.PATIENCE", -1.0)
    labels, p = random_predictions(50, 3)
    floors(labels, p, ["sweep_calibration_error"], max_seconds=0.05)
    assert capfd.readouterr() == ("", "")


def test_draws_within_a_time_double_from_a_size_that_the_rows_give(
    monkeypatch,
):
    labels, p = random_predictions(50, 3)
    data = read_predictions(labels, p, None, False, -1, None)
    sizes = []

    def drawn(data, names, bins, kind, number, seed, verbose):
        sizes.append(number)
        return {name: np.zeros(number) for name in names}

    monkeypatch.setattr(drawn_floor, "_errors_of_draws", drawn)
    name = "sweep_calibration_error"
    for first, expected in (
        (3 * 51 + 2, [3, 3, 6, 12, 24, 2]),
        (7, [1, 1, 2, 4, 8, 16, 18]),
        (999 * 51, [10, 10, 20, 10]),
    ):
        monkeypatch.setattr(drawn_floor, "FIRST", first)
        sizes.clear()
        found = drawn_floor._draw(data, [name], BINS, 0, 1e6, 50, 0)
        assert sizes == expected
        assert len(found[name]) == 50


def test_intervals_of_the_classes_tile_the_unit_interval():
    p = np.random.default_rng(0).dirichlet(np.ones(4), 9)
    data = read_predictions(np.arange(9) % 4, p)
    draws = CalibratedDraws(data, 2, 0, 1, 0)
    sums = np.cumsum(np.c_[np.zeros(9), data.probabilities], axis=1)
    # In their order, one twice as for several parts, and one out of order.
    for k in (0, 1, 1, 2, 3, 1):
        low, high = draws.ends(k)
        np.testing.assert_allclose(low, sums[:, k], atol=1e-12)
        np.testing.assert_allclose(high, sums[:, k + 1], atol=1e-12)
