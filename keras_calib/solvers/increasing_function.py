"""An increasing piecewise linear function, with the most likely slopes."""

import numpy as np

from keras_calib.inputs import arrays
from keras_calib.inputs.large import by_rows
from keras_calib.solvers.blocks import objective_in_blocks
from keras_calib.solvers.newton import dense_step
from keras_calib.solvers.newton import newton

# Log-probabilities below this are one value for the choice of knots.
LIMIT = 100.0


def knots_for(logits, count, weights):
    """Knots at weighted quantiles of the log-probabilities, all below 0.

    The weight `sqrt(p (1 - p))` keeps the many near-zero probabilities from
    attracting all knots.
    """
    step = max(1, logits.size >> 20)
    log_p = arrays.log_softmax(logits[::step], "float64")
    p = np.exp(log_p)
    mass = np.sqrt(p * (1 - p)) * weights[::step, None] + 1e-12
    log_p, mass = log_p.reshape(-1), mass.reshape(-1)
    order = np.argsort(log_p, kind="stable")
    log_p, mass = np.maximum(log_p[order], -LIMIT), np.cumsum(mass[order])
    levels = np.arange(1, count + 1) / (count + 1) * mass[-1]
    knots = log_p[np.searchsorted(mass, levels)]
    # Strictly ascending and below 0, even if all scores are equal.
    return np.minimum.accumulate(
        (knots - 1e-3 * np.arange(count, 0, -1))[::-1]
    )[::-1]


class IncreasingFunction:
    """An objective as a function of the slopes of an increasing function.

    The function is `f(t) = sum_m s_m phi_m(t)`. `phi_m(t)` is 0 above segment
    `m`, `t` minus the upper end of the segment within it, and minus its width
    below. Sums over entries therefore need the sums of each segment and of all
    segments below: a pass costs a few times a softmax for any number of
    segments. The penalty is `strength / 2 sum_m (s_m+1 - s_m)^2`.

    Args:
        logits: `(n, num_classes)`.
        labels: class ids, `(n,)`.
        weights: `(n,)`.
        objective: `Objective`.
        knots: ascending, below 0.
        strength: float, of the penalty.
    """

    def __init__(self, logits, labels, weights, objective, knots, strength):
        self.labels, self.weights, self.objective = labels, weights, objective
        self.shape = logits.shape
        self.size = len(knots) + 1
        self.ends = np.append(knots, 0.0)
        # The lowest segment has no lower end, and no segment below it.
        self.widths = np.append(0.0, np.diff(self.ends))
        difference = np.diff(np.eye(self.size), axis=0)
        self.ridge = strength * difference.T @ difference
        log_p = arrays.log_softmax(logits, "float64")
        self.segment = by_rows(
            lambda t: np.searchsorted(knots, t).astype("int32"), log_p
        )
        self.reach = by_rows(
            lambda t, segment: t - self.ends[segment], log_p, self.segment
        )

    def penalty(self, slopes):
        return slopes @ self.ridge @ slopes / 2

    def evaluate(self, slopes):
        """Value and gradient, with the penalty."""

        def gradient_of(rows, scores, weights):
            value, gradient = self.objective.value_and_gradient(
                scores, self.labels[rows], weights
            )
            return value, self._sums(rows, gradient)

        value, gradient = self._pass(slopes, gradient_of)
        return value + self.penalty(slopes), gradient + self.ridge @ slopes

    def hessian(self, slopes):
        """Hessian of the negative log-likelihood, plus the penalty's."""
        _, found = self._pass(
            slopes,
            lambda rows, scores, weights: (
                0.0,
                self._covariance(
                    rows, np.exp(arrays.log_softmax(scores)), weights
                ),
            ),
        )
        # Keeps steps finite for segments without data.
        tiny = 1e-12 * np.trace(found + self.ridge) * np.eye(self.size)
        return found + self.ridge + tiny

    def _pass(self, slopes, function):
        heights = -np.cumsum((self.widths * slopes)[::-1])[::-1]
        heights = np.append(heights[1:], 0.0)

        def scored(rows, weights):
            segment, reach = self.segment[rows], self.reach[rows]
            scores = heights[segment] + slopes[segment] * reach
            return function(rows, scores, weights)

        value, pieces = objective_in_blocks(
            scored, self.objective, self.shape, self.weights
        )
        return value, sum(pieces)

    def _sums(self, rows, gradient):
        """`sum gradient phi_m` over all entries, for each `m`."""
        segment, g = self.segment[rows].reshape(-1), gradient.reshape(-1)
        reach = self.reach[rows].reshape(-1)
        inside = np.bincount(segment, g * reach, self.size)
        return inside - self.widths * _below(np.bincount(segment, g, self.size))

    def _covariance(self, rows, q, weights):
        """Mean covariance of the `phi` under the probabilities `q`."""
        reach, weights = self.reach[rows], weights / weights.sum()
        n, m = len(q), self.size
        cell = self.segment[rows] + m * np.arange(n)[:, None]

        def per_row(values):
            found = np.bincount(
                cell.reshape(-1), values.reshape(-1), minlength=n * m
            )
            return found.reshape(n, m)

        mass = per_row(q)
        mean = per_row(q * reach) - self.widths * _below(mass)
        square = weights @ per_row(q * reach * reach)
        square += self.widths**2 * _below(weights @ mass)
        # Below segment m, phi_m is minus its width.
        product = np.triu(-np.outer(weights @ mean, self.widths), 1)
        product = product + product.T + np.diag(square)
        return product - (mean * weights[:, None]).T @ mean


def _below(values):
    """Sums over all lower segments."""
    return np.cumsum(values, axis=-1) - values


def fit_slopes(function, start, lowest, max_iterations=100):
    """Minimize over slopes of at least `lowest`, by projected Newton steps.

    Args:
        function: `IncreasingFunction`.
        start: `(size,)`, at least `lowest`.
        lowest: float.
        max_iterations: int.

    Returns:
        `Minimum`.
    """
    return newton(
        function.evaluate,
        lambda slopes, gradient: dense_step(
            slopes, gradient, function.hessian(slopes), lowest, 1e-10
        ),
        start,
        lower=lowest,
        least_decrease=1e-14,
        max_iterations=max_iterations,
    )
