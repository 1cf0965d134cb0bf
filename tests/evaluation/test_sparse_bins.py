"""Bins of few samples: gaps without noise, drawn labels, many classes."""

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.grid_bootstrap import ITSELF
from keras_calib.evaluation.grid_bootstrap import SCALES
from keras_calib.evaluation.grid_bootstrap import ends_of_scaled
from keras_calib.evaluation.sparse_bins import PRIOR
from keras_calib.evaluation.sparse_bins import SparseBins

NAME = "classwise_calibration_error"


def bins_of(rng, n, weights=None, num_bins=5, factor=1.6):
    """Bins of overconfident events, and their sums."""
    logit = 2 * rng.normal(size=n)
    p = 1 / (1 + np.exp(-logit))
    y = (rng.random(n) < 1 / (1 + np.exp(-logit / factor))).astype(float)
    events = sort_events(p, y, weights)
    w = np.ones(n) if weights is None else weights
    index = np.ceil(p * num_bins).astype(int) - 1

    def sums(values):
        return np.bincount(index, values, num_bins)

    return events.bins(events.width_cuts(num_bins)), p, y, w, sums


@pytest.mark.parametrize("weighted", [False, True])
def test_gaps_without_their_noise(weighted):
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.5, 2, 60) if weighted else None
    bins, p, y, w, sums = bins_of(rng, 60, weights)
    residual = sums(w * (p - y))
    variance, squares = sums(w**2 * p * (1 - p)), sums((w * (p - y)) ** 2)
    prior = PRIOR * (sums(w**2) / sums(w)) ** 2
    noise = squares + squares.sum() / variance.sum() * prior
    noise *= variance / (variance + prior)
    kept = np.sqrt(np.maximum(1 - noise / residual**2, 0))
    found = SparseBins(bins).gaps
    np.testing.assert_allclose(found, residual / w.sum() * kept, atol=1e-12)
    assert (kept == 0).any() and (kept > 0.3).any()


def test_gaps_of_many_samples_are_kept():
    bins, p, y, w, sums = bins_of(np.random.default_rng(0), 100_000)
    found = SparseBins(bins).gaps
    own = sums(p - y) / w.sum()
    np.testing.assert_allclose(found, own, atol=0.01 * abs(own).max())


@pytest.mark.parametrize("weighted", [False, True])
def test_noise_of_labels_is_that_of_shrunken_accuracies(weighted):
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 3, 80).astype(float) if weighted else None
    bins, p, y, w, sums = bins_of(rng, 80, weights)
    variance = sums(w**2 * p * (1 - p))
    prior = PRIOR * (sums(w**2) / sums(w)) ** 2
    gap = sums(w * (p - y)) / sums(w)
    rate = sums(w * p) / sums(w) - gap * variance / (variance + prior)
    number = np.rint(sums(w) ** 2 / sums(w**2))
    spread = sums(w) / w.sum() * np.sqrt(rate * (1 - rate) / number)
    drawn = SparseBins(bins).label_noise(np.zeros((20_000, 5)))
    np.testing.assert_allclose(drawn.std(axis=0), spread, rtol=0.03)
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=0.03 * spread.max())
    # The same data draw the same labels.
    again = SparseBins(bins).label_noise(np.zeros((20_000, 5)))
    np.testing.assert_array_equal(drawn, again)


def test_labels_are_fewer_where_resamples_have_more_noise():
    bins, p, y, w, sums = bins_of(np.random.default_rng(0), 4000)
    own = np.sqrt(sums((p - y) ** 2)) / w.sum() * np.ones((4000, 1))
    plain, fewer, more = (
        SparseBins(bins).label_noise(factor * own) for factor in (1, 0.5, 2)
    )
    np.testing.assert_array_equal(fewer, plain)
    # As if each row were in a cluster of four.
    ratio = more.std(axis=0) / plain.std(axis=0)
    np.testing.assert_allclose(ratio, 2, rtol=0.06)


def test_bins_without_samples():
    events = sort_events(np.array([0.5, 0.9]), np.array([0.0, 1.0]))
    sparse = SparseBins(events.bins(np.array([0, 0, 1, 1, 2])))
    assert np.isfinite(sparse.gaps).all()
    drawn = sparse.label_noise(np.zeros((50, 4)))
    assert (drawn[:, [0, 2]] == 0).all() and (drawn[:, [1, 3]] != 0).any(
        0
    ).all()


def test_the_lower_end_is_the_least_of_three():
    # The error of a true error e is e + |noise|, of less noise in the others.
    rng = np.random.default_rng(0)
    noise = np.abs(rng.normal(size=4000))[:, None]
    value, kept = 3.0, 2.0

    def ends(*parts):
        table = np.concatenate([np.full((4000, 1), value), *parts], axis=1)
        own = np.concatenate(
            [[value], *(s * SCALES for s in sizes[: len(parts)])]
        )
        return ends_of_scaled(np.concatenate([own[None], table]), 0.9)

    sizes = value, kept, kept
    alone = ends(value * SCALES + noise)
    assert SCALES[ITSELF] == 1
    three = ends(
        value * SCALES + noise,
        kept * SCALES + 0.5 * noise,
        kept * SCALES + 1.3 * noise,
    )
    assert alone[0] == pytest.approx(value - 1.96, abs=0.1)
    assert three[0] == pytest.approx(value - 1.3 * 1.96, abs=0.1)
    assert three[1] == alone[1]


def many_classes(rng, n, num_classes=30, factor=2.0):
    """Labels, predictions and the probabilities that labels were drawn from."""
    logits = 5 * rng.normal(size=(n, num_classes))
    noise = rng.gumbel(size=logits.shape)
    labels = (logits / factor + noise).argmax(axis=1)
    tables = np.exp(logits), np.exp(logits / factor)
    return labels, *(t / t.sum(axis=1, keepdims=True) for t in tables)


@pytest.mark.one_backend
def test_intervals_of_thirty_classes_hold_the_true_value():
    rng = np.random.default_rng(0)
    _, p, q = many_classes(rng, 20_000)
    index = np.ceil(15 * p).astype(int).ravel() - 1
    # Classes are alike, so that their bins are one.
    gaps = np.bincount(np.maximum(index, 0), (p - q).ravel(), 15)
    true = np.abs(gaps).sum() / p.size
    held, above = 0, 0
    for _ in range(12):
        labels, p, _ = many_classes(rng, 250)
        found = kc.metrics.calibration_errors(
            labels, p, metrics=[NAME], num_resamples=60, verbose=0
        )[NAME]
        held += found.low <= true <= found.high
        above += found > true
    assert above == 12  # the bias of bins of few rows
    # Of 0.9 fewer are held once in a thousand; of 0.2, as without
    # `SparseBins`, never so many.
    assert held >= 8
