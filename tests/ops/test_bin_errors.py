"""One formula for tensors and arrays; histograms agree with sorting."""

import numpy as np
import pytest
from keras import ops

from keras_calib.evaluation.events import Events
from keras_calib.metrics import _histogram as histogram
from keras_calib.ops import bin_errors
from keras_calib.ops.bin_errors import Bins
from keras_calib.ops.binning import bin_sums
from keras_calib.ops.binning import centers
from keras_calib.ops.smooth_error import smooth_error
from tests.helpers import to_numpy

FORMULAS = {
    "norm 1": lambda b: bin_errors.calibration_error(b),
    "norm 2": lambda b: bin_errors.calibration_error(b, 2),
    "maximum": lambda b: bin_errors.calibration_error(b, float("inf")),
    "over": lambda b: bin_errors.signed_error(b),
    "under": lambda b: bin_errors.signed_error(b, -1),
    "weighted": lambda b: bin_errors.signed_error(b, 1, True),
    "debiased": lambda b: bin_errors.debiased_power(b),
    "debiased, norm 1": lambda b: bin_errors.debiased_power(b, 1),
    "KS": lambda b: bin_errors.ks_error(b),
    "falls": lambda b: bin_errors.accuracy_falls(b),
}


def samples(n=400, weighted=False, num_bins=9):
    """Bin, weight, confidence and correctness; the last bin is empty."""
    rng = np.random.default_rng(0)
    index = rng.integers(0, num_bins - 1, n)
    confidence = (index + rng.random(n)) / num_bins
    correct = (rng.random(n) < confidence**2).astype(float)
    weight = rng.random(n) + 0.5 if weighted else np.ones(n)
    return index, weight, confidence, correct


def columns(weight, confidence, correct):
    residual = weight * (confidence - correct)
    return np.stack([weight, residual, weight * correct, weight**2])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", FORMULAS)
def test_tensors_and_arrays_give_one_value(name, weighted):
    index, *values = samples(weighted=weighted)
    table = columns(*values)
    sums = np.stack([np.bincount(index, row, 9) for row in table])
    # Two sets of bins, the second in another order.
    both = np.stack([sums, sums[:, ::-1]], axis=1)
    arrays = FORMULAS[name](Bins(*both, xp=np))
    tensors = FORMULAS[name](Bins(*ops.unstack(ops.array(both, "float32"))))
    assert arrays.shape == (2,)
    np.testing.assert_allclose(to_numpy(tensors), arrays, atol=2e-6)


def test_bins_are_the_loops_of_the_equations():
    index, weight, c, a = samples(weighted=True)
    sums = [np.bincount(index, r, 9) for r in columns(weight, c, a)]
    bins = Bins(*sums, xp=np)
    gaps, fractions, debiased, over = [], [], 0.0, 0.0
    for m in range(8):
        part = index == m
        w = weight[part]
        accuracy = np.average(a[part], weights=w)
        confidence = np.average(c[part], weights=w)
        gaps.append(confidence - accuracy)
        fractions.append(w.sum() / weight.sum())
        number = w.sum() ** 2 / (w**2).sum()
        noise = accuracy * (1 - accuracy) / (number - 1)
        debiased += fractions[-1] * (gaps[-1] ** 2 - noise)
        over += fractions[-1] * confidence * max(0.0, gaps[-1])
    gaps, fractions = np.array(gaps), np.array(fractions)
    expected = {
        "norm 1": fractions @ np.abs(gaps),
        "norm 2": (fractions @ gaps**2) ** 0.5,
        "maximum": np.abs(gaps).max(),
        "over": fractions @ np.maximum(gaps, 0),
        "under": fractions @ np.maximum(-gaps, 0),
        "weighted": over,
        "debiased": debiased,
        "KS": np.abs(np.cumsum(fractions * gaps)).max(),
    }
    for name, value in expected.items():
        assert FORMULAS[name](bins) == pytest.approx(value, abs=1e-12), name


def test_bins_of_one_sample_are_not_debiased():
    weight = np.array([1.0, 2.0])
    bins = Bins(weight, weight * 0.3, weight * 0.5, np.array([1.0, 2.0]), np)
    # Only the second bin, of two samples: 2/3 (0.3^2 - 0.25 / 1).
    expected = 2 / 3 * (0.09 - 0.25)
    assert bin_errors.debiased_power(bins) == pytest.approx(expected)


@pytest.mark.parametrize("other", [1.0, 1.001, 1.01, 3.0, 30.0])
def test_two_samples_of_unequal_weight_are_debiased(other):
    # They are less than two of equal weight, and added 0, gap and all.
    weights = np.array([1.0, other])
    total, square = weights.sum(), (weights**2).sum()
    bins = Bins([total], [0.9 * total], [0.0], [square], np)
    assert bin_errors.debiased_power(bins) == pytest.approx(0.81)
    # The right one is the first: the variance of its share is what is expected
    # of two labels of this accuracy, without bias.
    bins = Bins([total], [0.9 * total - 1], [1.0], [square], np)
    noise = square / (2 * total**2)
    expected = (0.9 - 1 / total) ** 2 - noise
    assert bin_errors.debiased_power(bins) == pytest.approx(expected)


def test_accuracy_falls_over_empty_bins_too():
    for hits, falls in (([1, 0, 3, 3], False), ([2, 0, 1, 3], True)):
        weight = np.array([4, 0, 4, 4])
        bins = Bins(weight, 0 * weight, np.array(hits), xp=np)
        assert bin_errors.accuracy_falls(bins) == falls
    assert not bin_errors.accuracy_falls(bins, rounding=0.3)


@pytest.mark.parametrize("bandwidth", [None, 0.05])
def test_smooth_error_of_tensors_and_arrays(bandwidth):
    rng = np.random.default_rng(0)
    nodes = rng.normal(size=1025) / 1025
    nodes[:100] += 1e-3
    exact = smooth_error(nodes, bandwidth, steps=30, xp=np)
    streamed = smooth_error(ops.array(nodes, "float32"), bandwidth)
    assert float(streamed) == pytest.approx(exact, abs=1e-6)
    if bandwidth is None:
        again = smooth_error(nodes, float(exact), xp=np)
        assert again == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_bins", [1, 4, 15])
def test_cells_are_merged_as_sorted_samples_are_cut(num_bins, weighted):
    # Every cell holds one value, so that both cut at the same samples.
    rng = np.random.default_rng(1)
    middles = centers(histogram.cell_edges())
    cell = np.sort(rng.integers(0, len(middles), 300))
    weight = rng.integers(1, 4, 300).astype(float)
    if not weighted:
        weight = np.ones(300)
    events = Events(middles[cell], np.zeros(300), weight, weight**2)
    bins = events.bins(events.mass_cuts(num_bins))
    table = ops.array(np.stack([weight, weight**2]), "float32")
    cells = bin_sums(table, ops.array(cell, "int32"), len(middles))
    merged = to_numpy(histogram.merge_cells(cells, num_bins))
    np.testing.assert_allclose(merged, [bins.weight, bins.square], rtol=1e-6)
    # The sweep reads positions of cells instead.
    fraction = np.arange(1, num_bins + 1) / num_bins
    upper = to_numpy(histogram.cells_below(cells[0], fraction))
    ends = np.searchsorted(cell, upper)
    np.testing.assert_array_equal(ends, bins.cuts[1:])
