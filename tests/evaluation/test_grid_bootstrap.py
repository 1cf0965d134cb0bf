"""Intervals of binned errors: the grid, and how often they are right."""

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation.grid_bootstrap import GRID
from keras_calib.evaluation.grid_bootstrap import SCALES
from keras_calib.evaluation.grid_bootstrap import grid_ends
from keras_calib.evaluation.replicates import Resamples
from keras_calib.inputs.arguments import generator
from keras_calib.inputs.predictions import read_predictions
from keras_calib.ops.smooth_error import smooth_error

errors = kc.metrics.calibration_errors
CLASSES = 3


def predictions(rng, n, factor=1.5):
    """Labels, and probabilities whose logits are too large by a factor."""
    logits = 2 * rng.normal(size=(n, CLASSES))
    noise = rng.gumbel(size=logits.shape)
    labels = (logits / factor + noise).argmax(axis=1)
    e = np.exp(logits)
    return labels, e / e.sum(axis=1, keepdims=True)


def in_bins(confidence, values, num_bins):
    index = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, None)
    return np.bincount(index, values, num_bins)


NORMS = {
    "expected_calibration_error": lambda g, m: np.abs(g).sum(),
    "expected_calibration_error_l2": lambda g, m: np.sqrt((g**2 / m).sum()),
    "maximum_calibration_error": lambda g, m: (np.abs(g) / m).max(),
    "overconfidence_error": lambda g, m: np.maximum(g, 0).sum(),
    "underconfidence_error": lambda g, m: np.maximum(-g, 0).sum(),
}


@pytest.mark.parametrize("weighted", [False, True])
def test_gaps_are_scaled_and_noise_is_added(weighted):
    rng = np.random.default_rng(0)
    n, number, num_bins = 60, 4, 5
    labels, p = predictions(rng, n)
    weights = rng.uniform(0.5, 2, n) if weighted else np.ones(n)
    data = read_predictions(labels, p, weights if weighted else None)
    resamples = Resamples(data, number, 3, 1, 0, scales=True)
    found = resamples.statistics(list(NORMS), num_bins, 0.01)
    counts = resamples.unit_counts(generator(3, 0), number)
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == labels

    def shares(times):
        w = times * weights
        residual = in_bins(confidence, w * (confidence - correct), num_bins)
        return residual / w.sum()

    own = shares(np.ones(n))
    mass = in_bins(confidence, weights, num_bins) / weights.sum()
    # No bin without rows divides by 0.
    mass = np.maximum(mass, 1e-300)
    for i, times in enumerate(counts):
        drawn = shares(times)
        for name, norm in NORMS.items():
            row = found[name][1 + i]
            plain = errors(
                np.repeat(labels, times),
                np.repeat(p, times, axis=0),
                np.repeat(weights, times),
                num_bins=num_bins,
                metrics=[name],
            )
            assert row[0] == pytest.approx(plain[name], abs=1e-12)
            expected = [norm(s * own + drawn - own, mass) for s in SCALES]
            np.testing.assert_allclose(row[1:], expected, atol=1e-12)


def test_squared_noise_in_bins_of_few_rows_is_that_of_samples():
    rng = np.random.default_rng(0)
    n, num_bins, name = 40, 50, "expected_calibration_error_l2"
    labels, p = predictions(rng, n)
    data = read_predictions(labels, p, None)
    resamples = Resamples(data, 4000, 3, 1, 0, scales=True)
    found = resamples.statistics([name], num_bins, 0.01)[name]
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == labels
    residual = confidence - correct
    squares = in_bins(confidence, residual**2, num_bins)
    # The number of rows is fixed, which takes a little off.
    squares -= in_bins(confidence, residual, num_bins) ** 2 / n
    number = in_bins(confidence, np.ones(n), num_bins)
    assert SCALES[0] == 0
    assert (number == 1).any()
    some = number > 0
    expected = (squares[some] / number[some]).sum() / n
    assert np.mean(found[1:, 1] ** 2) == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("weighted", [False, True])
def test_smooth_errors_of_scaled_residuals(weighted):
    rng = np.random.default_rng(0)
    n, number = 200, 3
    labels, p = predictions(rng, n)
    weights = rng.uniform(0.5, 2, n) if weighted else np.ones(n)
    data = read_predictions(labels, p, weights if weighted else None)
    resamples = Resamples(data, number, 3, 1, 0, scales=True)
    name = "smooth_calibration_error"
    found = resamples.statistics([name], 15, 0.01)[name]
    counts = resamples.unit_counts(generator(3, 0), number)
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == labels

    def nodes(times):
        w = times * weights
        place = confidence * 8192
        cell = place.astype(int)
        part = w * (confidence - correct) / w.sum()
        below = np.bincount(cell, part * (1 - place + cell), 8193)
        return below + np.bincount(cell + 1, part * (place - cell), 8193)

    own = nodes(np.ones(n))
    value = float(smooth_error(own, None, steps=30, xp=np))
    assert found[0, 0] == pytest.approx(value, abs=1e-5)
    for i, times in enumerate(counts):
        noise = nodes(times) - own
        for s, error in zip(SCALES, found[1 + i, 1:], strict=True):
            expected = smooth_error(noise + s * own, None, steps=30, xp=np)
            # Errors that are far from the value have no digits to spare.
            near = value / 3 < expected < 3 * value
            assert error == pytest.approx(expected, rel=1e-2 if near else 0.5)


def test_ends_are_the_scales_for_which_the_value_is_no_surprise():
    # The error of a true error e is e + |noise|: known, but for the draws.
    rng = np.random.default_rng(0)
    noise = np.abs(rng.normal(size=4000))
    value = 3.0
    scaled = value * SCALES + noise[:, None]
    low, high = grid_ends(value, scaled, 0.9)
    # 5 % of |noise| are above 1.96, and 5 % below 0.063.
    assert low == pytest.approx(value - 1.96, abs=0.1)
    assert high == pytest.approx(value - 0.063, abs=0.03)
    # Below all but 2.5 % of the noise: a true error of 0 explains it, and so
    # do those that make it no more than twenty times as rare.
    value = np.quantile(noise, 0.025)
    scaled = value * SCALES + noise[:, None]
    low, high = grid_ends(value, scaled, 0.9)
    assert low == 0.0
    assert value - 0.002 < high + np.quantile(noise, 0.00125) < value + 0.002
    # Less than any resample: nothing is known but that it is small.
    assert grid_ends(0.1, 1 + scaled, 0.9) == (0.0, 0.1)


def test_all_binned_errors_of_a_kind_have_a_grid():
    labels, p = predictions(np.random.default_rng(1), 80)
    found, basic = (
        errors(labels, p, num_resamples=60, interval=kind, verbose=0)
        for kind in ("auto", "basic")
    )
    other = {name for name in found if found[name].high != basic[name].high}
    # Means and their like have percentiles, which differ, too.
    assert other >= GRID & found.keys()
    assert "sweep_calibration_error" not in other
    for name in GRID & found.keys():
        assert 0 <= found[name].low <= found[name].high <= 1


NAMES = ("expected_calibration_error", "classwise_calibration_error")
FORMS = ("rows", "weights", "clusters")


def how_often(form, interval, factor, num_sets, n=150):
    """The part of intervals of 95 % that hold the true value, by name."""
    names = NAMES
    if form == "clusters":  # where its noise floor is not known
        names = (*NAMES, "smooth_calibration_error")
    rng = np.random.default_rng(2)
    many = predictions(rng, 100_000, factor)
    true = errors(*many, metrics=names)
    held = dict.fromkeys(names, 0)
    for _ in range(num_sets):
        labels, p = predictions(rng, n, factor)
        more = {}
        if form == "weights":
            more["sample_weight"] = rng.exponential(size=n)
        if form == "clusters":
            more["clusters"] = np.repeat(np.arange(n), rng.integers(1, 5, n))[
                :n
            ]
            labels, p = labels[more["clusters"]], p[more["clusters"]]
        found = errors(
            *(labels, p),
            metrics=names,
            num_resamples=100,
            interval=interval,
            verbose=0,
            **more,
        )
        for name in names:
            held[name] += found[name].low <= true[name] <= found[name].high
    return {name: number / num_sets for name, number in held.items()}


@pytest.mark.slow
@pytest.mark.one_backend
@pytest.mark.parametrize("form", FORMS)
def test_intervals_hold_the_true_value(form):
    for factor in (1.1, 1.6):
        found = how_often(form, "auto", factor, 80)
        # A binomial of 80 with 0.95 is below 0.86 once in a thousand.
        assert min(found.values()) >= 0.86, (factor, found)


@pytest.mark.one_backend
def test_reflected_intervals_of_classes_do_not():
    found = how_often("clusters", "basic", 1.6, 40)
    assert found["classwise_calibration_error"] < 0.6
