"""Multinomial logistic regressions: value, gradient, products with the Hessian.

sum_i w_i (logsumexp(x_i W + b) - sum_k t_ik (x_i W + b)_k)
"""

import numpy as np

from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.blocks import sum_blocks
from keras_calib.solvers.blocks import threads

# Sums over more rows than this lose digits in float32.
ROWS = 1024
# Elements from which directions are float32.
DIGITS = 1 << 17
# Classes up to which each class has a preconditioner of its own.
BLOCKS = 200
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

    def __init__(self, x, labels, weights, smoothing, *, free, ridge, center):
        self.x = x
        self.weights = weights.astype(x.dtype)
        self.free = free
        self.ridge = ridge
        self.center = center
        # Probabilities at the point that was evaluated last.
        self.q = np.empty((len(x), center.shape[1]), x.dtype)
        self.moments = self._moments(labels, weights, smoothing)

    def evaluate(self, parameters):
        """Value and gradient."""
        value, sums = self._log_partition(parameters)
        value += self.penalty(parameters) - (self.moments * parameters).sum()
        return float(value), self._gradient(sums - self.moments, parameters)

    def chain(self, gradient, parameters):
        """From a gradient in the scores to one in the parameters."""
        return self._gradient(self._transposed(gradient), parameters)

    def product(self, direction):
        """The Hessian at the last point, times a direction."""
        found = self._curvature(direction) + 2 * self._balance(direction)
        return self._project(found)

    def penalty(self, parameters):
        """`sum ridge (parameters - center)^2` at its least, see `settle`."""
        away = parameters - self.center
        return float((self._balance(away) * away).sum())

    def all_correct(self, labels):
        """Whether every label has a predicted probability above 0.5."""
        return bool((self.q[np.arange(len(labels)), labels] > 0.5).all())

    def _gradient(self, sums, parameters):
        balance = self._balance(parameters - self.center)
        return self._project(sums + 2 * balance)


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

    def _balance(self, away):
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
            log_sum = _softmax(q)
            qx = q * x
            sums = [weights @ qx, weights @ q]
            # The Hessian of each class by itself: ww, wb, bb.
            r = q - q * q
            rx = r * x
            sums += [weights @ (rx * x), weights @ rx, weights @ r]
            return np.array([weights @ log_sum, np.stack(sums)], object)

        value, sums = sum_blocks(part, self.slices)
        self.class_hessians = sums[2:].astype(float)
        self.blocks = self._invert(*self.class_hessians)
        return value, sums[:2]

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
    """

    def __init__(self, x, *data, **penalty):
        self.slices = row_blocks(*x.shape, IN_CACHE)
        x = np.concatenate([x, np.ones_like(x[:, :1])], axis=1)
        super().__init__(x, *data, **penalty)
        self.weights = self.weights[:, None]
        # Directions need fewer digits than values.
        short = x.dtype if x.size < DIGITS else "float32"
        self.short = x.astype(short, copy=False)
        self.inverse = None

    def _moments(self, labels, weights, smoothing):
        """`sum_i w_i (x_i, 1)' t_i`."""
        n, num_classes = self.q.shape
        targets = np.full(self.q.shape, smoothing / num_classes, self.x.dtype)
        targets[np.arange(n), labels] += 1 - smoothing
        return self._transposed(self.weights[:, None] * targets)

    def settle(self, parameters):
        """Move along what changes no probability to the least penalty."""
        return parameters - self._shift(parameters - self.center)

    def _balance(self, away):
        """Half the gradient of the penalty, after `settle`."""
        return self.ridge * (away - self._shift(away))

    def _shift(self, away):
        total = self.ridge.sum(axis=1, keepdims=True)
        shift = (self.ridge * away).sum(axis=1, keepdims=True)
        return shift / np.where(total > 0, total, 1.0)

    def _project(self, gradient):
        return _centered(gradient, self.free)

    def scores(self, parameters):
        return self.x @ parameters.astype(self.x.dtype)

    def _transposed(self, gradient):
        return (self.x.T @ gradient).astype(float)

    def _log_partition(self, parameters):
        q = np.matmul(self.x, parameters.astype(self.x.dtype), out=self.q)
        self.short_q = None
        value = sum_blocks(
            lambda rows: float(self.weights[rows, 0] @ _softmax(q[rows])),
            self.slices,
        )
        return value, self._transposed(self.weights * q)

    def _curvature(self, direction):
        if self.short_q is None:
            self.short_q = self.q.astype(self.short.dtype, copy=False)
            self.weighted = self.short_q * self.weights.astype(self.short.dtype)
        a = self.short @ direction.astype(self.short.dtype)

        def softmax_derivative(rows):
            block, q = a[rows], self.short_q[rows]
            mean = np.einsum("ij,ij->i", block, q)
            block -= mean[:, None]
            block *= self.weighted[rows]

        list(threads().map(softmax_derivative, self.slices))
        return (self.short.T @ a).astype(float)

    def precondition(self, gradient):
        if self.inverse is None:
            few = self.q.shape[1] <= BLOCKS
            inverse = self._inverse_per_class if few else self._kronecker
            self.inverse = inverse()
        return self._project(self.inverse(gradient))

    def _inverse_per_class(self):
        """The Hessian of each class by itself, inverted."""
        d, num_classes = self.short.shape[1], self.q.shape[1]
        hessians = np.empty((num_classes, d, d), "float32")
        q = np.ascontiguousarray(self.q.T, dtype="float32")
        r = q * (1 - q) * self.weights[:, 0].astype("float32")
        for k in range(num_classes):
            # Rows where the class has probability 0 or 1 add next to nothing.
            used = np.flatnonzero(r[k] > 1e-3 * r[k].mean())
            step = max(1, len(used) // (8 * d))
            used = used[::step]
            part = self.short[used]
            hessians[k] = part.T @ (step * r[k, used, None] * part)
        diagonal = np.einsum("kii->ki", hessians)
        diagonal += 1e-5 * diagonal + 2 * self.ridge.T + RIDGE
        return inverse_of(hessians)

    def _kronecker(self):
        """One matrix for all classes, times the variance of each class."""
        r = self.q * (1 - self.q)
        r *= self.weights
        scale = r.sum(axis=0).astype(float)
        rows = r.sum(axis=1, keepdims=True) / scale.sum()
        gram = (self.x.T @ (rows * self.x)).astype(float)
        values, vectors = np.linalg.eigh(gram)
        values = np.maximum(values, 1e-6 * values[-1])
        bottom = values[:, None] * scale + 2 * self.ridge.mean() + RIDGE
        return lambda gradient: vectors @ ((vectors.T @ gradient) / bottom)


def inverse_of(hessians):
    """The inverses of a matrix per class, as a function of a gradient."""
    inverses = np.linalg.inv(hessians)
    return lambda gradient: np.matmul(
        inverses, gradient.T[..., None].astype("float32")
    )[..., 0].T.astype(float)


def _softmax(scores):
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
