"""The ridge fits of `solvers.deviations` by Newton's method.

The parameters of a fit are the deviations `v`, the common scale `a` and the
biases `b`, in this order: `2 num_classes + 1`. Their Hessian, which the
evidence needs at every fit, gives the steps, too. And it tells about the fits
of other widths, so that those with next to no evidence need not be found.
"""

import numpy as np

from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.blocks import sum_groups
from keras_calib.solvers.ridge_paths import LEAST_CURVATURE
from keras_calib.solvers.ridge_paths import ChoosingPath
from keras_calib.solvers.ridge_paths import Path

# Elements up to which all paths are fitted side by side: with few samples most
# of the time is that of calls.
TOGETHER = 3 << 13
# Scores whose exponentials are neither 0 nor too large as they are.
SAFE = 50.0
# Samples for each parameter above which a pass over them takes longer than to
# guess what other fits are like.
SAMPLES = 4


def fit_paths(x, moments, weights, paths, phi):
    """Minimize the penalized summed loss for each strength of each path.

    Args:
        x: `(n, num_classes)`.
        moments: sums over samples of the targets times `x` and times 1,
            `(2, num_classes)`.
        weights: `(n,)`, with the number of samples as their sum.
        paths: list of strengths `phi / t^2` of `v` and `b` for each fit of the
            path, from narrow to wide, `(num_fits, 2)`, with 0 for a group that
            is not free, and `m` of `solvers.deviations`, `(num_classes,)`.
        phi: see `solvers.evidence.Average`.

    Returns:
        A list with slopes and biases, `(2, num_classes)`, log evidence and
        number of steps for each fit, path by path. `None` if one is not found.
    """
    problem = _Problem(x, moments, weights)
    least = LEAST_CURVATURE * float(weights.sum())
    together = x.size <= TOGETHER
    many = not together and len(x) > SAMPLES * (2 * x.shape[1] + 1)
    kind = ChoosingPath if many else Path
    paths = [kind(*each, phi, least) for each in paths]
    try:
        walk = problem.walk_together if together else problem.walk_one_by_one
        walk(paths)
    except (ArithmeticError, np.linalg.LinAlgError):
        return None
    return [fit for path in paths for fit in path.fits()]


class _Problem:
    """The summed loss at several points, with its derivatives."""

    def __init__(self, x, moments, weights):
        self.x, self.weights = x, weights.astype(float, copy=False)
        # The root of each weight, or one weight of all.
        self.equal, self.roots = self.weights[0], None
        if np.ptp(self.weights) > 1e-12 * self.equal:
            self.equal, self.roots = 1.0, np.sqrt(self.weights)
        slopes, biases = moments
        self.common = slopes.sum()
        self.targets = np.array([*slopes, self.common, *biases])
        self.block = IN_CACHE
        if x.dtype != float:
            # Where memory counts, work arrays are small beside the inputs.
            self.block = min(max(IN_CACHE // 8, x.size // 64), IN_CACHE)

    def walk_together(self, paths):
        """All fits of paths, side by side."""
        begin = self._start_of(paths)
        for path in paths:
            begin(path)
        self.walk([path for path in paths if path.waiting], slice(None))

    def _start_of(self, paths):
        """What advances a path from the first point, which is that of all."""
        point = np.zeros((1, paths[0].size))
        [value], [slope], [hessian] = self.at(point, slice(None))

        def begin(path):
            inside = hessian[path.free, path.free].copy()
            path.advance(value, slope.copy(), inside)

        return begin

    def walk(self, paths, columns):
        """What is left of the fits of these paths.

        Args:
            paths: list of `Path`.
            columns: slice, what is free in any of them.
        """
        while paths:
            points = np.stack([path.point for path in paths])
            there = self.at(points, columns)
            for path, value, slope, hessian in zip(paths, *there, strict=True):
                begin = path.free.start - (columns.start or 0)
                inside = slice(begin, begin + path.free.stop - path.free.start)
                path.advance(value, slope, hessian[inside, inside])
            paths = [path for path in paths if path.waiting]

    def walk_one_by_one(self, paths):
        """All fits of paths, one path after the other.

        A `ChoosingPath` is told the highest evidence so far.
        """
        begin = self._start_of(paths)
        highest = around_zero = -np.inf
        # The last ones have most that is free.
        for path in reversed(paths):
            typical = path.typical is not None
            path.highest = highest
            path.of_its_kind = np.inf if typical else around_zero
            begin(path)
            self.walk([path], path.free)
            highest = path.highest
            if not typical:
                around_zero = path.of_its_kind

    def at(self, points, columns):
        """Values, gradients, and Hessians of some columns."""
        count, size = points.shape
        num_classes = size // 2
        v, common = points[:, :num_classes], points[:, num_classes, None]
        w = (1 + common + v)[..., None]
        b = points[:, num_classes + 1 :, None]

        def part(rows):
            # Samples come last: sums over a last axis of few classes are slow.
            x = self.x[rows].T.astype(float, order="C")
            weights = self.weights[rows]
            scores = x * w
            scores += b
            log_sum, total = _exponentials(scores)
            # The derivatives of each sample's log-sum-exp.
            slopes = np.empty((count, size, x.shape[1]))
            qx, q = slopes[:, :num_classes], slopes[:, num_classes + 1 :]
            np.divide(scores, total, out=q)
            np.multiply(q, x, out=qx)
            np.sum(qx, axis=1, out=slopes[:, num_classes])
            sums = np.empty((count, 1 + size + num_classes))
            sums[:, 0] = log_sum @ weights
            np.matmul(slopes, weights, out=sums[:, 1 : 1 + size])
            x *= weights
            squares = np.matmul(qx.transpose(1, 0, 2), x[..., None])
            sums[:, 1 + size :] = squares[..., 0].T
            if self.roots is not None:
                slopes *= self.roots[rows]
            slopes = slopes[:, columns].astype(self.x.dtype, copy=False)
            found = np.empty(2, object)
            found[:] = sums, np.matmul(slopes, slopes.transpose(0, 2, 1))
            return found

        sums, outer = sum_groups(
            part, row_blocks(len(self.x), count * num_classes, self.block)
        )
        value, squares = sums[:, 0], sums[:, 1 + size :]
        sums = sums[:, 1 : 1 + size]
        # The scores are `x` times `1 + a + v`, and `b`.
        value = value - points @ self.targets - self.common
        hessian = np.zeros((count, size, size))
        v, a, b = slice(num_classes), num_classes, slice(num_classes + 1, size)
        hessian[:, a, a] = squares.sum(axis=1)
        hessian[:, a, v] = hessian[:, v, a] = squares
        hessian[:, a, b] = hessian[:, b, a] = sums[:, v]
        flat = hessian.reshape(count, -1)
        for row, column, diagonal in (
            (0, 0, squares),
            (0, a + 1, sums[:, v]),
            (a + 1, 0, sums[:, v]),
            (a + 1, a + 1, sums[:, b]),
        ):
            first = row * size + column
            last = first + num_classes * (size + 1)
            flat[:, first : last : size + 1] = diagonal
        hessian = hessian[:, columns, columns]
        outer *= self.equal
        hessian -= outer
        return value, sums - self.targets, hessian


def _exponentials(scores):
    """Let scores be their exponentials, but for a factor of each sample.

    Returns:
        log_sum: logarithms of the sums over classes, `(count, n)`.
        total: sums of what the scores are now, `(count, 1, n)`.
    """
    largest = scores.max(axis=1, keepdims=True)
    safe = np.abs(largest).max() <= SAFE
    if not safe:
        scores -= largest
    np.exp(scores, out=scores)
    total = scores.sum(axis=1, keepdims=True)
    log_sum = np.log(total[:, 0])
    return log_sum if safe else log_sum + largest[:, 0], total
