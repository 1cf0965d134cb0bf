"""Pool adjacent violators, by passes and one by one."""

import numpy as np
import pytest

from keras_calib.solvers import isotonic

pytestmark = pytest.mark.one_backend


def min_max(targets, weights):
    """The isotonic fit by its formula: max over a, min over b of means."""
    n = len(targets)
    total = np.append(0.0, np.cumsum(weights))
    hits = np.append(0.0, np.cumsum(weights * targets))
    fit = np.empty(n)
    for i in range(n):
        fit[i] = max(
            min(
                (hits[b] - hits[a]) / (total[b] - total[a])
                for b in range(i + 1, n + 1)
            )
            for a in range(i + 1)
        )
    return fit


@pytest.mark.parametrize("passes", [0, 1, 50])
@pytest.mark.parametrize("seed", range(4))
def test_levels_are_those_of_the_min_max_formula(monkeypatch, passes, seed):
    # With few passes, what is left is pooled one by one.
    monkeypatch.setattr(isotonic, "PASSES", passes)
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.uniform(size=40))
    targets = (rng.uniform(size=40) < scores**2).astype(float)
    weights = rng.integers(1, 5, 40).astype(float)
    shuffled = rng.permutation(40)
    blocks = isotonic.isotonic_regression(
        scores[shuffled], targets[shuffled], weights[shuffled]
    )
    level = blocks.sums[1] / blocks.sums[0]
    assert (np.diff(level) > 0).all()
    inside = np.searchsorted(blocks.last, scores)
    assert (blocks.first[inside] <= scores).all()
    expected = min_max(targets, weights)
    np.testing.assert_allclose(level[inside], expected, rtol=1e-12)
    sums = np.array([1.0, targets, scores], dtype=object)
    assert blocks.sums.sum(axis=1) == pytest.approx(
        [float((weights * each).sum()) for each in sums]
    )


@pytest.mark.parametrize("scale", [1.0, 60.0])  # 60: most entries are 0 or 1
def test_intervals_of_scores_give_the_fit_of_all(monkeypatch, scale):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(400, 6))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    p = np.exp(scale * (logits - logits.max(axis=1, keepdims=True)))
    p = (p / p.sum(axis=1, keepdims=True)).round(3).astype("float32")
    weights = rng.integers(1, 4, 400).astype(float)
    targets = labels[:, None] == np.arange(6)
    expected = isotonic.isotonic_regression(
        p.reshape(-1), targets.reshape(-1), np.repeat(weights, 6)
    )
    for entries in (1 << 22, 100):
        monkeypatch.setattr(isotonic, "ENTRIES", entries)
        found = isotonic.isotonic_of_entries(p, labels, weights)
        np.testing.assert_array_equal(found.first, expected.first)
        np.testing.assert_array_equal(found.last, expected.last)
        np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-13)


def test_falling_targets_are_one_block():
    scores = np.arange(200.0)
    blocks = isotonic.isotonic_regression(scores, -scores)
    assert (blocks.first, blocks.last) == ([0.0], [199.0])
    np.testing.assert_allclose(blocks.sums[:, 0], [200, -19900, 19900])


def test_at_most_joins_the_neighbors_that_differ_least():
    # Levels 0, 0.1, 0.9 and 1 of weights 1, 3, 2 and 2. The costs of a join,
    # w v / (w + v) d^2: 3/4 * 0.01, 6/5 * 0.64, 1 * 0.01.
    weight, level = np.array([1.0, 3, 2, 2]), np.array([0, 0.1, 0.9, 1])
    sums = np.stack([weight, weight * level, weight * level])
    first = np.arange(4.0)
    blocks = isotonic.Blocks(first, first + 0.5, sums)
    three = isotonic.at_most(blocks, 3)
    np.testing.assert_allclose(three.sums[0], [4, 2, 2])
    np.testing.assert_allclose(three.sums[1], [0.3, 1.8, 2])
    np.testing.assert_allclose(three.first, [0, 2, 3])
    np.testing.assert_allclose(three.last, [1.5, 2.5, 3.5])
    two = isotonic.at_most(blocks, 2)
    np.testing.assert_allclose(two.sums[1], [0.3, 3.8])
    np.testing.assert_allclose(blocks.sums, sums)
    # Two light blocks are apart, 1/2 * 0.25, two heavy ones near, 50 * 0.0001.
    weight, level = np.array([1.0, 1, 100, 100]), np.array([0, 0.5, 0.9, 0.91])
    sums = np.stack([weight, weight * level, weight * level])
    found = isotonic.at_most(isotonic.Blocks(first, first, sums), 3)
    np.testing.assert_allclose(found.sums[0], [1, 1, 200])


def test_without_certainty_moves_levels_of_0_and_1_by_the_mean_score():
    # s / (1 + M s) for 0, and 1 - (1 - s) / (1 + M (1 - s)) for 1.
    level = isotonic.without_certainty(
        np.array([0.0, 0.4, 1.0]), np.full(3, 10.0), np.array([0.2, 0.5, 0.7])
    )
    expected = [0.2 / 3, 0.4, 1 - 0.3 / 4]
    np.testing.assert_allclose(level, expected, rtol=1e-12)
