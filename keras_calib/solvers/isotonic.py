"""Isotonic regression: the best increasing step function, exactly."""

import dataclasses
import itertools

import numpy as np

from keras_calib.solvers.blocks import passed
from keras_calib.solvers.blocks import row_blocks

# Passes that pool whole runs at once, before blocks are pooled one by one.
PASSES = 50
# Entries of a table of scores that are sorted at once.
ENTRIES = 1 << 21


@dataclasses.dataclass(frozen=True)
class Blocks:
    """An increasing step function, constant from `first` to `last`.

    Attributes:
        first: the smallest score of each block, ascending.
        last: the largest score of each block.
        sums: the sums of weights, of weighted targets and of weighted scores
            in each block, `(3, num_blocks)`.
    """

    first: np.ndarray
    last: np.ndarray
    sums: np.ndarray

    @property
    def weight(self):
        """The sum of weights in each block."""
        return self.sums[0]

    @property
    def level(self):
        """The weighted mean of targets in each block, ascending."""
        return self.sums[1] / self.sums[0]

    @property
    def score(self):
        """The weighted mean of scores in each block."""
        return self.sums[2] / self.sums[0]


def isotonic_regression(scores, targets, weights=None):
    """Minimize `sum w (f(score) - target)^2` over increasing `f`.

    Pool adjacent violators: equal scores are one block from the start, and
    every run of blocks whose levels do not increase becomes one block, until
    all levels increase. Whole runs are pooled at once, in a few vectorized
    passes.

    Args:
        scores: `(n,)`.
        targets: `(n,)`.
        weights: `None`, or weights > 0, `(n,)`.

    Returns:
        `Blocks`.

    Reference:
        Ayer et al., "An empirical distribution function for sampling with
        incomplete information", 1955.
    """
    if weights is None:
        weights = np.ones(len(scores))
    targets, weights = (np.asarray(v, "float64") for v in (targets, weights))
    sums = np.stack([weights, weights * targets, weights * scores])
    return _pooled(*_by_score(scores, sums))


def isotonic_of_entries(p, labels, weights):
    """`isotonic_regression` of all entries of `p` against one-hot labels.

    Scores are taken in intervals that hold about `ENTRIES` of them. Each is
    pooled by itself, which leaves few blocks, and then all of them together:
    the order in which violators are pooled does not matter.

    Args:
        p: float32, `(n, num_classes)`.
        labels: int class ids, `(n,)`.
        weights: weights > 0, `(n,)`.

    Returns:
        `Blocks`.
    """
    found = []
    for low, high in itertools.pairwise(_edges(p)):
        cells = [
            _cells_between(low, high, p[rows], labels[rows], weights[rows])
            for rows in row_blocks(*p.shape, ENTRIES)
        ]
        found.append(_pooled(*_by_score(*_joined(cells))))
        passed()
    return _pooled(
        np.concatenate([each.first for each in found]),
        np.concatenate([each.sums for each in found], axis=1),
        np.concatenate([each.last for each in found]),
    )


def _edges(p):
    """Of intervals that hold about `ENTRIES` entries each."""
    count = -(-p.size // ENTRIES)
    inner = []
    if count > 1:
        sample = np.sort(p[:: 1 + (p.size >> 18)], axis=None)
        inner = np.unique(sample[len(sample) * np.arange(1, count) // count])
    return [-np.inf, *inner, np.inf]


def _cells_between(low, high, p, labels, weights):
    """Scores in `[low, high)`, ascending, and the sums of each."""
    row, column = np.nonzero((p >= low) & (p < high))
    scores, w = p[row, column], weights[row]
    hits = w * (labels[row] == column)
    return _by_score(scores, np.stack([w, hits, w * scores]))


def _joined(cells):
    scores, sums = zip(*cells, strict=True)
    return np.concatenate(scores), np.concatenate(sums, axis=1)


def _by_score(scores, sums):
    """Different scores, ascending, and the sums of each."""
    order = np.argsort(scores, kind="stable")
    scores, sums = scores[order], sums[:, order]
    first = np.append(True, scores[1:] > scores[:-1])[: len(scores)]
    starts = np.flatnonzero(first)
    return scores[starts], np.add.reduceat(sums, starts, axis=1)


def _pooled(first, sums, last=None):
    """Pool blocks in order until their levels increase."""
    last = first if last is None else last
    starts = np.arange(len(first))
    for _ in range(PASSES):
        level = sums[1] / sums[0]
        rises = np.append(True, level[1:] > level[:-1])
        if rises.all():
            break
        keep = np.flatnonzero(rises)
        starts, sums = starts[keep], np.add.reduceat(sums, keep, axis=1)
    else:
        starts, sums = _one_by_one(starts, sums)
    # An interval may hold no block.
    ends = np.append(starts[1:], len(last))[: len(starts)] - 1
    first, last = (v.astype("float64") for v in (first[starts], last[ends]))
    return Blocks(first, last, sums)


def _one_by_one(starts, sums):
    """Pool while the last level is not below this one.

    Levels are quotients of sums, compared without a division.
    """
    kept = []
    for start, block in zip(starts, sums.T, strict=True):
        block = block.copy()
        while kept and kept[-1][1][1] * block[0] >= block[1] * kept[-1][1][0]:
            start, last = kept.pop()
            block += last
        kept.append((start, block))
    starts = np.array([start for start, _ in kept])
    return starts, np.stack([block for _, block in kept], axis=1)


def isotonic_rows(hits, weights, places):
    """Isotonic regression of many rows over the same ordered cells.

    All rows are pooled as one long sequence, in which the first cell of a row
    never joins the last one of the row before. Levels are compared without a
    division, so that whole numbers below 2^26 are compared exactly.

    Args:
        hits: weighted sums of targets in each cell, `(num_rows, num_cells)`.
        weights: weights > 0 of the cells, `(num_cells,)`.
        places: int, cells whose level is wanted, ascending, `(num_places,)`.

    Returns:
        Levels, `(num_rows, num_places)`.
    """
    num_rows, width = hits.shape
    starts = np.arange(hits.size)
    hits, weight = hits.ravel(), np.tile(weights, num_rows)
    while True:
        rises = hits[1:] * weight[:-1] > hits[:-1] * weight[1:]
        rises |= starts[1:] % width == 0
        if rises.all():
            break
        keep = np.flatnonzero(np.append(True, rises))
        starts = starts[keep]
        hits = np.add.reduceat(hits, keep)
        weight = np.add.reduceat(weight, keep)
    level = hits / weight
    wanted = (width * np.arange(num_rows)[:, None] + places).ravel()
    block = np.searchsorted(starts, wanted, side="right") - 1
    return level[block].reshape(num_rows, len(places))


def at_most(blocks, count):
    """Join the neighbors that differ least until `count` blocks remain."""
    first, last, sums = blocks.first, blocks.last, blocks.sums.copy()
    while sums.shape[1] > count:
        w = sums[0]
        cost = w[1:] * w[:-1] / (w[1:] + w[:-1]) * np.diff(sums[1] / w) ** 2
        i = int(cost.argmin())
        sums[:, i] += sums[:, i + 1]
        sums = np.delete(sums, i + 1, axis=1)
        first = np.delete(first, i + 1)
        last = np.delete(last, i)
    return Blocks(first, last, sums)


def without_certainty(level, weight, score):
    """Replace levels of 0 and 1 by the most extreme that the data support.

    A block of weight `M` without an event shows that the rate is hardly
    above `1 / M`. With an exponential prior around the mean score `s`, the
    expected rate is `s / (1 + M s)`: at most `1 / M`, and close to `s` if the
    block is small. A level of 1 is treated symmetrically.
    """
    rest = 1 - score
    level = np.where(level > 0, level, score / (1 + weight * score))
    return np.where(level < 1, level, 1 - rest / (1 + weight * rest))
