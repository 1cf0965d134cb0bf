"""An increasing piecewise linear function, with the most likely slopes."""

import numpy as np

from keras_calib.inputs import arrays
from keras_calib.solvers.small_network import by_blocks

# Log-probabilities below are not told apart when knots are chosen.
LIMIT = 100.0


def knots_for(logits, count, weight):
    """Knots below 0 where the likelihood feels them.

    Quantiles of log-probabilities, with weight `sqrt(p (1 - p))`: classes
    that nobody would predict are many and matter little.
    """
    step = max(1, logits.size >> 20)
    log_p = arrays.log_softmax(logits[::step], "float64")
    p = np.exp(log_p)
    mass = np.sqrt(p * (1 - p)) * weight[::step, None] + 1e-12
    log_p, mass = log_p.reshape(-1), mass.reshape(-1)
    order = np.argsort(log_p, kind="stable")
    log_p, mass = np.maximum(log_p[order], -LIMIT), np.cumsum(mass[order])
    levels = np.arange(1, count + 1) / (count + 1) * mass[-1]
    knots = log_p[np.searchsorted(mass, levels)]
    # Strictly ascending, and below 0, also where scores are all alike.
    return np.minimum.accumulate(
        (knots - 1e-3 * np.arange(count, 0, -1))[::-1]
    )[::-1]


class SlopePasses:
    """Passes over the logits for the slopes of an increasing function.

    The function is `f(t) = sum_m s_m phi_m(t)`, with `phi_m(t)` how far `t`
    reaches into segment `m` from its upper end: 0 above the segment, minus
    its width below. Sums over entries thus need the sums of each segment,
    and of all segments below: a pass costs a few times a softmax, however
    many segments there are.

    Args:
        logits: `(n, num_classes)`.
        labels: class ids, `(n,)`.
        weight: weights, `(n,)`.
        objective: an `Objective`.
        knots: ascending, below 0.
        pull: float, the weight of the penalty.
    """

    def __init__(self, logits, labels, weight, objective, knots, pull):
        self.labels, self.weight, self.objective = labels, weight, objective
        self.shape = logits.shape
        self.size = len(knots) + 1
        self.ends = np.append(knots, 0.0)
        # The lowest segment has no lower end, and nothing below it.
        self.widths = np.append(0.0, np.diff(self.ends))
        difference = np.diff(np.eye(self.size), axis=0)
        self.pull = pull * difference.T @ difference
        log_p = arrays.log_softmax(logits, "float64")
        self.segment = np.searchsorted(knots, log_p).astype("int32")
        self.reach = log_p - self.ends[self.segment]

    def penalty(self, slopes):
        return slopes @ self.pull @ slopes / 2

    def __call__(self, slopes, curved=True):
        """Value and gradient at the slopes, and the Hessian if `curved`."""
        heights = -np.cumsum((self.widths * slopes)[::-1])[::-1]
        heights = np.append(heights[1:], 0.0)

        def block(part, weight):
            segment, reach = self.segment[part], self.reach[part]
            scores = heights[segment] + slopes[segment] * reach
            value, gradient = self.objective.value_and_gradient(
                scores, self.labels[part], weight
            )
            parts = [self._sums(segment, reach, gradient)[None]]
            if curved:
                q = np.exp(arrays.log_softmax(scores, "float64"))
                share = weight / weight.sum()
                parts.append(self._hessian(segment, reach, q, share))
            return value, np.concatenate(parts)

        value, pieces = by_blocks(
            block, self.objective, *self.shape, self.weight
        )
        gradient, *hessian = sum(pieces)
        value += self.penalty(slopes)
        gradient = gradient + self.pull @ slopes
        return value, gradient, np.array(hessian) + self.pull if curved else 0

    def _sums(self, segment, reach, g):
        """`sum g phi_m` over all entries, for each `m`."""
        segment, g = segment.reshape(-1), g.reshape(-1)
        inside = np.bincount(segment, g * reach.reshape(-1), self.size)
        return inside - self.widths * _below(np.bincount(segment, g, self.size))

    def _hessian(self, segment, reach, q, share):
        """Mean covariance of the `phi` under `q`."""
        n, m = len(q), self.size
        cell = (segment + m * np.arange(n)[:, None]).reshape(-1)
        q_reach = q * reach

        def per_row(values):
            found = np.bincount(cell, values.reshape(-1), n * m)
            return found.reshape(n, m)

        mass = per_row(q)
        mean = per_row(q_reach) - self.widths * _below(mass)
        square = share @ per_row(q_reach * reach)
        square += self.widths**2 * _below(share @ mass)
        # Where a lower segment is reached, a higher one is passed.
        product = -np.outer(share @ mean, self.widths)
        every = np.triu(product, 1)
        every = every + every.T + np.diag(square)
        return every - (mean * share[:, None]).T @ mean


def _below(values):
    """Sums over all lower segments."""
    return np.cumsum(values, axis=-1) - values


def projected_newton(passes, start, lowest, iterations=100):
    """Minimise over `x >= lowest`, with an active set and halved steps.

    Args:
        passes: x, whether the Hessian is wanted -> value, gradient, Hessian.
        start: `(size,)`, at least `lowest`.
        lowest: float.
        iterations: int.

    Reference:
        Bertsekas, "Projected Newton methods for optimization problems with
        simple constraints", 1982.
    """
    x = start
    value, gradient, hessian = passes(x, True)
    for _ in range(iterations):
        free = (x > lowest) | (gradient < 0)
        if not free.any() or np.abs(gradient[free]).max() < 1e-10:
            break
        step = np.zeros_like(x)
        system = hessian[np.ix_(free, free)]
        system = system + 1e-12 * np.trace(system) * np.eye(len(system))
        step[free] = np.linalg.solve(system, -gradient[free])
        length = 1.0
        while True:
            new = np.maximum(x + length * step, lowest)
            new_value, *_ = passes(new, False)
            expected = gradient @ (new - x)
            if new_value <= value + 1e-4 * min(expected, 0.0):
                break
            length /= 2
            if length < 1e-8:
                return x, value
        done = value - new_value < 1e-14
        x = new
        value, gradient, hessian = passes(x, True)
        if done:
            break
    return x, value
