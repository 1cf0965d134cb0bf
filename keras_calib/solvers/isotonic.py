"""Isotonic regression: the best increasing step function, exactly."""

import dataclasses

import numpy as np

# Passes of pooling whole runs at once, before one block at a time.
PASSES = 50


@dataclasses.dataclass(frozen=True)
class Blocks:
    """An increasing step function: constant from `first` to `last`.

    Attributes:
        first: the smallest score of each block, ascending.
        last: the largest score of each block.
        level: the weighted mean of targets in each block, ascending.
        weight: the sum of weights in each block.
        score: the weighted mean of scores in each block.
    """

    first: np.ndarray
    last: np.ndarray
    level: np.ndarray
    weight: np.ndarray
    score: np.ndarray


def isotonic_regression(scores, targets, weight=None):
    """Minimise `sum w (f(score) - target)^2` over increasing `f`.

    Pool adjacent violators: equal scores are one block from the start, and
    every run of blocks whose levels do not increase becomes one block, until
    all levels increase. Whole runs are pooled at once, in a few vectorised
    passes.

    Args:
        scores: `(n,)`.
        targets: `(n,)`.
        weight: `None`, or weights > 0, `(n,)`.

    Returns:
        `Blocks`.

    Reference:
        Ayer et al., "An empirical distribution function for sampling with
        incomplete information", 1955.
    """
    order = np.argsort(scores, kind="stable")
    scores = scores[order]
    targets = targets[order].astype("float64")
    if weight is None:
        weight = np.ones(len(scores))
    else:
        weight = np.asarray(weight, "float64")[order]
    starts = np.flatnonzero(np.append(True, scores[1:] > scores[:-1]))
    sums = np.stack([weight, weight * targets, weight * scores])
    sums = np.add.reduceat(sums, starts, axis=1)
    for _ in range(PASSES):
        level = sums[1] / sums[0]
        rises = np.append(True, level[1:] > level[:-1])
        if rises.all():
            break
        keep = np.flatnonzero(rises)
        starts, sums = starts[keep], np.add.reduceat(sums, keep, axis=1)
    else:
        starts, sums = _one_by_one(starts, sums)
    ends = np.append(starts[1:], len(scores)) - 1
    return Blocks(
        first=scores[starts].astype("float64"),
        last=scores[ends].astype("float64"),
        level=sums[1] / sums[0],
        weight=sums[0],
        score=sums[2] / sums[0],
    )


def _one_by_one(starts, sums):
    kept = []
    for start, block in zip(starts, sums.T, strict=True):
        block = block.copy()
        while kept and kept[-1][1][1] * block[0] >= block[1] * kept[-1][1][0]:
            start, last = kept.pop()
            block += last
        kept.append((start, block))
    starts = np.array([start for start, _ in kept])
    return starts, np.stack([block for _, block in kept], axis=1)


def at_most(blocks, count):
    """Join neighbours that differ least, until `count` blocks are left."""
    parts = np.stack(
        [
            blocks.weight,
            blocks.weight * blocks.level,
            blocks.weight * blocks.score,
        ]
    )
    first, last = blocks.first, blocks.last
    while parts.shape[1] > count:
        level = parts[1] / parts[0]
        w = parts[0]
        cost = w[1:] * w[:-1] / (w[1:] + w[:-1]) * np.diff(level) ** 2
        i = int(cost.argmin())
        parts[:, i] += parts[:, i + 1]
        parts = np.delete(parts, i + 1, axis=1)
        first = np.delete(first, i + 1)
        last = np.delete(last, i)
    return Blocks(
        first, last, parts[1] / parts[0], parts[0], parts[2] / parts[0]
    )


def without_certainty(level, weight, score):
    """Levels of 0 and 1 made as extreme as the data can tell.

    A block of weight `M` without an event has seen that the rate is hardly
    above `1 / M`. With an exponential prior around the mean score `s`, the
    expected rate is `s / (1 + M s)`: at most `1 / M`, and `s` itself where
    the block is too small to know better. Likewise at 1.
    """
    rest = 1 - score
    level = np.where(level > 0, level, score / (1 + weight * score))
    return np.where(level < 1, level, 1 - rest / (1 + weight * rest))
