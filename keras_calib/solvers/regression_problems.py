"""Multinomial logistic regressions: value, gradient, products with the Hessian.

sum_i w_i (logsumexp(x_i W + b) - sum_k t_ik (x_i W + b)_k)
"""

from typing import Any

import numpy as np

from keras_calib.inputs import large
from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.blocks import sum_blocks
from keras_calib.solvers.blocks import sum_groups
from keras_calib.solvers.preconditioners import inverse_per_class
from keras_calib.solvers.preconditioners import kronecker

# Sums over more rows than this lose digits in float32.
ROWS = 1024
# Elements from which a full problem keeps its inputs in float32.
DIGITS = 1 << 12
# Elements up to which it computes values in float64.
SMALL = 1 << 23
# Classes up to which each class may have a preconditioner of its own.
BLOCKS = 200
# Products in one step from which it has.
MANY = 20
# Samples for each pair of classes from which it has from the start.
SAMPLES_PER_PAIR = 12
# Keeps directions without data where they start; too small to be visible.
RIDGE = 1e-9


class _Problem:
    """A penalized regression; `evaluate` sets the point of the Hessian.

    Args:
        x: `(n, num_classes)`, float32 or float64.
        labels: int class ids, `(n,)`.
        weights: sample weights that sum to one, float64, `(n,)`.
        smoothing: weight of the uniform distribution in the labels.
        free: 1.0 where a parameter may move, else 0.0.
        ridge: strength of the penalty `sum ridge (parameters - center)^2`, in
            the shape of the parameters.
        center: where the penalty is zero.
    """

    # Dtypes of the weights, and of values: that of the inputs by default.
    _weight_dtype: str | None = None
    wide: Any = None

    def __init__(self, x, labels, weights, smoothing, *, free, ridge, center):
        self.x = x
        self.wide = self.wide or x.dtype
        self.weights = weights.astype(self._weight_dtype or x.dtype)
        self.free = free
        self.ridge = ridge
        self.center = center
        self.moments = self._moments(labels, weights, smoothing)
        self.forget()

    def forget(self):
        """Let the memory of the last point go, until the next one."""
        # Probabilities at the point that was evaluated last.
        self.q = None
        # Where that was, and what `_log_partition` returned there.
        self._last = None, None

    def evaluate(self, parameters):
        """Value and gradient at parameters that stay as they are."""
        if self.q is None:
            shape = len(self.x), self.center.shape[1]
            self.q = large.empty(shape, self.x.dtype)
        # With other penalties, a fit starts where the last one ended.
        if not np.array_equal(parameters, self._last[0]):
            self._last = None, None  # lets it go first
            self._last = parameters, self._log_partition(parameters)
        value, sums = self._last[1]
        value += self.penalty(parameters) - (self.moments * parameters).sum()
        return float(value), self._gradient(sums - self.moments, parameters)

    def chain(self, gradient, parameters):
        """From a gradient in the scores to one in the parameters."""
        return self._gradient(self._transposed(gradient), parameters)

    def product(self, direction):
        """The Hessian at the last point, times a direction."""
        found = self._curvature(direction)
        found += 2 * self._half_penalty_gradient(direction)
        return self._project(found)

    def penalty(self, parameters):
        """`sum ridge (parameters - center)^2` at its least, see `settle`."""
        away = parameters - self.center
        return float((self._half_penalty_gradient(away) * away).sum())

    def all_correct(self, labels):
        """Whether every label has a predicted probability above 0.5."""
        return bool((self.q[np.arange(len(labels)), labels] > 0.5).all())

    def renew(self):
        """Called before each Newton step."""

    def _gradient(self, sums, parameters):
        half = self._half_penalty_gradient(parameters - self.center)
        return self._project(sums + 2 * half)


class DiagonalProblem(_Problem):
    """`softmax(x w + b)` with `w` and `b` one number per class.

    Parameters have the shape `(2, num_classes)`: `w`, then `b`. With
    `shared`, all entries of `w` are one number. Other arguments: `_Problem`.
    """

    def __init__(self, x, *data, shared=False, **penalty):
        n, num_classes = x.shape
        self.shared = shared
        self.slices = row_blocks(
            n, 1, min(ROWS, max(1, IN_CACHE // num_classes))
        )
        super().__init__(x, *data, **penalty)

    def _moments(self, labels, weights, smoothing):
        """`sum_i w_i t_ik (x_ik, 1)`."""
        n, num_classes = self.x.shape
        chosen = self.x[np.arange(n), labels]
        moments = np.stack(
            [
                np.bincount(labels, weights * chosen, num_classes),
                np.bincount(labels, weights, num_classes),
            ]
        )
        if smoothing:
            uniform = np.stack([weights @ self.x, np.ones(num_classes)])
            moments *= 1 - smoothing
            moments += smoothing / num_classes * uniform
        return moments

    def settle(self, parameters):
        """The parameters themselves: their biases are centered already."""
        return parameters

    def _half_penalty_gradient(self, away):
        return self.ridge * away

    def _project(self, gradient):
        """Onto the free parameters, with a mean of zero over free biases.

        Without the second, a fixed class would fall behind all others.
        """
        w, b = gradient
        if self.shared:
            w = np.full_like(w, w.mean())
        return np.stack([w * self.free[0], _centered(b, self.free[1])])

    def _log_partition(self, parameters):
        w, b = parameters.astype(self.x.dtype)
        biased = b.any()

        def part(rows):
            x, q, weights = self.x[rows], self.q[rows], self.weights[rows]
            np.multiply(x, w, out=q)
            if biased:
                q += b
            log_sum = softmax_in_place(q)
            qx = q * x
            sums = [weights @ qx, weights @ q]
            # The Hessian of each class by itself: ww, wb, bb.
            r = q - q * q
            rx = r * x
            sums += [weights @ (rx * x), weights @ rx, weights @ r]
            return np.array([weights @ log_sum, np.stack(sums)], object)

        value, sums = sum_blocks(part, self.slices)
        self.class_hessians = sums[2:].astype(float)
        return value, sums[:2]

    def evaluate(self, parameters):
        """Value and gradient; `precondition` is for the penalty of now."""
        found = super().evaluate(parameters)
        self.blocks = self._invert(*self.class_hessians)
        return found

    def _invert(self, ww, wb, bb):
        ww = np.where(self.free[0] > 0, ww + 2 * self.ridge[0], 1.0)
        bb = np.where(self.free[1] > 0, bb + 2 * self.ridge[1], 1.0)
        wb = 0.0 * wb if self.shared else wb * self.free[0] * self.free[1]
        # A class whose probability is 0 or 1 everywhere has no curvature.
        ww = np.maximum(ww, 1e-6 * ww.max() + 1e-100)
        bb = np.maximum(bb, 1e-6 * bb.max() + 1e-100)
        determinant = np.maximum(ww * bb - wb * wb, 1e-6 * ww * bb)
        return np.stack([bb, -wb, ww]) / determinant

    def unconstrained_gradient(self, parameters):
        """The gradient with respect to every parameter, free or not."""
        free, self.free = self.free, np.ones_like(self.free)
        _, gradient = self.evaluate(parameters)
        self.free = free
        return gradient

    def scores(self, parameters):
        w, b = parameters.astype(self.x.dtype)
        return self.x * w + b

    def _transposed(self, gradient):
        return np.stack(
            [
                np.einsum("ij,ij->j", gradient, self.x, dtype=float),
                gradient.sum(axis=0, dtype=float),
            ]
        )

    def _curvature(self, direction):
        """`sum_i w_i q (a - q . a) (x, 1)` with `a = x v + u`."""
        v, u = direction.astype(self.x.dtype)

        def part(rows):
            x, q, weights = self.x[rows], self.q[rows], self.weights[rows]
            a = x * v
            a += u
            a *= q
            m = a.sum(axis=1)
            a -= q * m[:, None]
            second = weights @ a
            a *= x
            return np.stack([weights @ a, second]).astype(float)

        return sum_blocks(part, self.slices)

    def precondition(self, gradient):
        ww, wb, bb = self.blocks
        w, b = gradient
        return self._project(np.stack([ww * w + wb * b, wb * w + bb * b]))


class FullProblem(_Problem):
    """`softmax(x W + b)` with a full matrix.

    Parameters have the shape `(num_classes + 1, num_classes)`: `W`, below it
    `b`. A vector added to all columns changes no probability. In these
    directions only the penalty matters, and its optimum is explicit: they are
    taken out of the problem, and `settle` adds their best values. `free` is
    1.0 where a column moves, `(num_classes,)`. Other arguments: `_Problem`.

    From `DIGITS` elements on, inputs and probabilities are kept in float32,
    and blocks of rows are float64 while value and gradient are computed.
    """

    _weight_dtype = "float64"

    def __init__(self, x, *data, **penalty):
        n, num_classes = x.shape
        # Blocks in cache, but not so small that sums of matrices cost most; of
        # few rows one, because threads cost more than they save.
        rows = max(IN_CACHE // (8 * num_classes), num_classes // 2)
        self.slices = row_blocks(n, 1, n if x.size <= IN_CACHE else rows)
        if x.size >= DIGITS:
            x = x.astype("float32", copy=False)
        self.wide = "float64" if x.size <= SMALL else x.dtype
        super().__init__(x, *data, **penalty)
        self.totals = np.maximum(self.ridge.sum(axis=1), np.finfo(float).tiny)
        # Directions need no more digits than the inputs have; the weights
        # over their mean are near 1.
        self.mean_weight = float(self.weights.mean())
        relative = (self.weights / self.mean_weight)[:, None]
        equal = np.ptp(relative) < 1e-12
        self.relative = None if equal else relative.astype(x.dtype)
        self.weights = self.weights[:, None]
        self.per_class = n >= SAMPLES_PER_PAIR * num_classes**2
        self.inverse, self.products = None, 0

    def _moments(self, labels, weights, smoothing):
        """`sum_i w_i (x_i, 1)' t_i`."""
        num_classes = self.center.shape[1]

        def part(rows):
            own = labels[rows]
            targets = np.full(
                (len(own), num_classes), smoothing / num_classes, self.wide
            )
            targets[np.arange(len(own)), own] += 1 - smoothing
            targets *= weights[rows, None]
            return self._backward(self._rows(rows), targets)

        return sum_groups(part, self.slices)

    def settle(self, parameters):
        """Move along what changes no probability to the least penalty."""
        return parameters - self._shift(parameters - self.center)

    def _half_penalty_gradient(self, away):
        """Half the gradient of the penalty, after `settle`."""
        return self.ridge * (away - self._shift(away))

    def _shift(self, away):
        sums = np.einsum("jk,jk->j", self.ridge, away) / self.totals
        return sums[:, None]

    def _project(self, gradient):
        return _centered(gradient, self.free)

    def _rows(self, rows):
        return self.x[rows].astype(self.wide, copy=False)

    def _forward(self, x, parameters):
        """`x W + b`, in the dtype of `x`."""
        w, b = parameters.astype(x.dtype, copy=False)[:-1], parameters[-1]
        found = x @ w
        found += b.astype(x.dtype, copy=False)
        return found

    def _backward(self, x, gradient):
        """The gradient in `(W, b)` of rows."""
        found = np.empty((x.shape[1] + 1, gradient.shape[1]), gradient.dtype)
        np.matmul(x.T, gradient, out=found[:-1])
        # A product with ones takes a fraction of the time of a sum over rows.
        found[-1] = np.ones(len(x), gradient.dtype) @ gradient
        return found

    def scores(self, parameters):
        found = np.empty(self.q.shape, self.wide)
        for rows in self.slices:
            found[rows] = self._forward(self._rows(rows), parameters)
        return found

    def _transposed(self, gradient):
        return sum_groups(
            lambda rows: self._backward(self._rows(rows), gradient[rows]),
            self.slices,
        )

    def _log_partition(self, parameters):
        def part(rows):
            x, weights = self._rows(rows), self.weights[rows]
            q = self._forward(x, parameters)
            value = float(weights[:, 0] @ softmax_in_place(q))
            self.q[rows] = q
            q *= weights
            return np.array([value, self._backward(x, q)], object)

        return sum_groups(part, self.slices)

    def _curvature(self, direction):
        direction = direction.astype(self.x.dtype)
        ones = np.ones(len(direction) - 1, self.x.dtype)

        def part(rows):
            x, q = self.x[rows], self.q[rows]
            a = self._forward(x, direction)
            a *= q
            a -= q * (a @ ones)[:, None]
            if self.relative is not None:
                a *= self.relative[rows]
            return self._backward(x, a)

        found = sum_groups(part, self.slices)
        return np.multiply(found, self.mean_weight, out=found)

    def product(self, direction):
        self.products += 1
        return super().product(direction)

    def renew(self):
        """A preconditioner for the point that was evaluated last.

        One for all classes is cheap. If it needed many products, each class
        gets one of its own: costly, and kept while it needs few.
        """
        many, self.products = self.products > MANY, 0
        if many or not self.per_class:
            self.inverse = None
        self.per_class |= many and self.q.shape[1] <= BLOCKS

    def precondition(self, gradient):
        if self.inverse is None:
            make = inverse_per_class if self.per_class else kronecker
            self.inverse = make(self, self.ridge + RIDGE / 2)
        return self._project(self.inverse(gradient))

    def with_ones(self, rows):
        """Inputs, and a one for the bias."""
        x = self.x[rows]
        return np.concatenate([x, np.ones_like(x[:, :1])], axis=1)


def softmax_in_place(scores):
    """Replace scores by their softmax; returns the float64 logsumexp."""
    largest = scores.max(axis=1, keepdims=True)
    scores -= largest
    np.exp(scores, out=scores)
    total = scores.sum(axis=1, keepdims=True)
    scores /= total
    return np.log(total[:, 0], dtype=float) + largest[:, 0]


def _centered(values, free):
    """Zero where nothing moves, and a mean of zero over the rest."""
    mean = (values * free).sum(axis=-1, keepdims=True)
    return (values - mean / max(free.sum(), 1.0)) * free
