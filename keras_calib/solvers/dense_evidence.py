"""The ridge fits of `solvers.deviations` for few classes, by Newton's method.

The parameters of a fit are the deviations `v`, the common scale `a` and the
biases `b`, in this order: `2 num_classes + 1`. Their Hessian, which the
evidence needs at every fit, gives the steps, too.
"""

import numpy as np

from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.blocks import sum_groups

# A fit ends where the summed loss is expected to fall by less than this.
DECREASE = 1e-6
MAX_STEPS = 50
# Where logits are constant, no data tell the common scale, and its curvature is
# only rounding. One below this, for each sample, becomes a penalty of as much,
# which leaves the scale at 0.
LEAST_CURVATURE = 1e-9
# Elements up to which all paths are fitted side by side: with few samples most
# of the time is that of calls.
TOGETHER = 1 << 14


def fit_paths(x, moments, weights, paths, phi):
    """Minimize the penalized summed loss for each strength, each from the last.

    Args:
        x: `(n, num_classes)`.
        moments: sums over samples of the targets times `x` and times 1,
            `(2, num_classes)`.
        weights: `(n,)`, with the number of samples as their sum.
        paths: list of strengths `phi / t^2` of `v` and `b` for each fit of the
            path, `(num_fits, 2)`, with 0 for a group that is not free, and `m`
            of `solvers.deviations`, `(num_classes,)`.
        phi: see `solvers.evidence.Average`.

    Returns:
        A list with slopes and biases, `(2, num_classes)`, log evidence and
        number of steps for each fit, path by path. `None` if one is not found.
    """
    problem = _Problem(x, moments, weights)
    least = LEAST_CURVATURE * float(weights.sum())
    paths = [_Path(*each, phi, least) for each in paths]
    try:
        if x.size <= TOGETHER:
            problem.walk(paths, slice(None))
        else:
            for path in paths:
                problem.walk([path], path.free)
    except (ArithmeticError, np.linalg.LinAlgError):
        return None
    return [fit for path in paths for fit in path.found]


class _Path:
    """The fits of one path, one after the other.

    Args:
        strengths: see `fit_paths`.
        typical: see `fit_paths`, `(num_classes,)`.
        phi: see `fit_paths`.
        least: a curvature in the common scale below which it gets a penalty.
    """

    def __init__(self, strengths, typical, phi, least=0.0):
        scale, bias = strengths[0] > 0
        num_classes = len(typical)
        size = 2 * num_classes + 1
        self.typical = typical
        self.free = slice(
            0 if scale else num_classes, size if bias else num_classes + 1
        )
        self.phi, self.least_curvature = phi, least
        # The deviations, with the bias of a class where `x` is `m`.
        self.deviations = np.zeros(size)
        # Loss and curvature in `a` of temperature scaling, the first point.
        self.plain = None
        # The penalties of the fits that are still to be found.
        groups = [num_classes, 1, num_classes]
        self.ridges = [np.repeat([v, 0, b], groups) for v, b in strengths]
        self.found = []
        self._begin()

    def _begin(self):
        self.steps, self.least = 0, np.inf

    @property
    def point(self):
        """The deviations, with the bias of a class where `x` is 0."""
        return self._with_biases(self.deviations)

    def _with_biases(self, deviations):
        num_classes = len(self.typical)
        found = deviations.copy()
        found[num_classes + 1 :] -= self.typical * deviations[:num_classes]
        return found

    def _around_typical(self, gradient, hessian):
        """Derivatives in the deviations, from those in `point`."""
        if self.typical.any():
            slopes = slice(len(self.typical))
            biases = slice(len(self.typical) + 1, None)
            gradient[slopes] -= self.typical * gradient[biases]
            hessian[:, slopes] -= hessian[:, biases] * self.typical
            hessian[slopes] -= self.typical[:, None] * hessian[biases]

    def advance(self, value, gradient, hessian):
        """One step, of the first fit that is not at its optimum.

        Args:
            value: summed loss at the point.
            gradient: of it.
            hessian: of it, where the path is free.
        """
        free, point = self.free, self.deviations
        self._around_typical(gradient, hessian)
        gradient = gradient[free]
        if self.plain is None:
            common = len(point) // 2 - free.start
            curvature = hessian[common, common]
            if not curvature > self.least_curvature:
                for ridge in self.ridges:
                    ridge[len(point) // 2] = self.least_curvature
                curvature = self.least_curvature
            self.plain = value, curvature
        diagonal = hessian.diagonal().copy()
        while self.ridges:
            ridge = self.ridges[0][free]
            pull = ridge * point[free]
            objective = value + 0.5 * float(pull @ point[free])
            if not objective <= self.least + 1e-10 * abs(self.least):
                if not self.steps:
                    raise ArithmeticError("The loss has no value here.")
                self._move(self.step / 4)
                return
            np.fill_diagonal(hessian, diagonal + ridge)
            slope = gradient + pull
            step = -np.linalg.solve(hessian, slope)
            decrease = -0.5 * float(step @ slope)
            if decrease < -DECREASE:
                raise ArithmeticError("The curvature is only rounding.")
            if not decrease <= DECREASE:
                self.least, self.start = objective, point
                self._move(step)
                return
            self.found.append(self._end(objective - decrease, step, hessian))
            self.ridges.pop(0)
            self._begin()

    def _end(self, objective, step, hessian):
        """The fit, with the last step and the objective after it.

        The log evidence is that of `solvers.laplace.with_evidence`.
        """
        plain_value, curvature = self.plain
        middle = len(self.typical)
        ridge = np.delete(self.ridges[0], middle)
        determinants = np.log(ridge[ridge > 0]).sum() + np.log(curvature)
        determinants -= np.linalg.slogdet(hessian)[1]
        log_evidence = (plain_value - objective) / self.phi + determinants / 2
        if not np.isfinite(log_evidence):
            raise ArithmeticError("The curvature is only rounding.")
        deviations = self.deviations.copy()
        deviations[self.free] += step
        point = self._with_biases(deviations)
        v, common, b = np.split(point, [middle, middle + 1])
        return np.stack([1 + common + v, b]), float(log_evidence), self.steps

    def _move(self, step):
        self.steps += 1
        if self.steps > MAX_STEPS or not np.isfinite(step).all():
            raise ArithmeticError("There is no step.")
        self.step, self.deviations = step, self.start.copy()
        self.deviations[self.free] += step


class _Problem:
    """The summed loss at several points, with its derivatives."""

    def __init__(self, x, moments, weights):
        self.x, self.weights = x, weights.astype(float, copy=False)
        slopes, biases = moments
        self.common = slopes.sum()
        self.targets = np.array([*slopes, self.common, *biases])

    def walk(self, paths, columns):
        """All fits of these paths.

        Args:
            paths: list of `_Path`.
            columns: slice, what is free in any of them.
        """
        while paths:
            points = np.stack([path.point for path in paths])
            there = self.at(points, columns)
            for path, value, slope, hessian in zip(paths, *there, strict=True):
                begin = path.free.start - (columns.start or 0)
                inside = slice(begin, begin + path.free.stop - path.free.start)
                path.advance(value, slope, hessian[inside, inside])
            paths = [path for path in paths if path.ridges]

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
            largest = scores.max(axis=1, keepdims=True)
            scores -= largest
            np.exp(scores, out=scores)
            total = scores.sum(axis=1, keepdims=True)
            log_sum = np.log(total[:, 0])
            log_sum += largest[:, 0]
            # The derivatives of each sample's log-sum-exp.
            slopes = np.empty((count, size, x.shape[1]))
            qx, q = slopes[:, :num_classes], slopes[:, num_classes + 1 :]
            np.divide(scores, total, out=q)
            np.multiply(q, x, out=qx)
            np.sum(qx, axis=1, out=slopes[:, num_classes])
            sums = np.empty((count, 1 + size + num_classes))
            sums[:, 0] = log_sum @ weights
            np.matmul(slopes, weights, out=sums[:, 1 : 1 + size])
            sums[:, 1 + size :] = np.matmul(qx * x, weights)
            slopes *= np.sqrt(weights)
            slopes = slopes[:, columns]
            outer = np.matmul(slopes, slopes.transpose(0, 2, 1))
            outer = outer.reshape(count, -1)
            return np.concatenate([sums, outer], axis=1)

        blocks = row_blocks(len(self.x), count * num_classes, IN_CACHE)
        value, sums, squares, outer = np.split(
            sum_groups(part, blocks),
            np.cumsum([1, size, num_classes]),
            axis=1,
        )
        # The scores are `x` times `1 + a + v`, and `b`.
        value = value[:, 0] - points @ self.targets - self.common
        hessian = np.zeros((count, size, size))
        v, b = np.arange(num_classes), np.arange(num_classes + 1, size)
        a, first, second = num_classes, sums[:, v], sums[:, b]
        hessian[:, a, a] = squares.sum(axis=1)
        hessian[:, a, v] = hessian[:, v, a] = hessian[:, v, v] = squares
        hessian[:, a, b] = hessian[:, b, a] = first
        hessian[:, v, b] = hessian[:, b, v] = first
        hessian[:, b, b] = second
        hessian = hessian[:, columns, columns]
        hessian -= outer.reshape(hessian.shape)
        return value, sums - self.targets, hessian
