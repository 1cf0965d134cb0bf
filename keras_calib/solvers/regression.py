"""The affine map of logits with the smallest penalised likelihood.

Every linear map here is a multinomial logistic regression: scores
`x W + b` with a scalar, a diagonal or a full `W`. The mean negative
log-likelihood is convex in `(W, b)`, and so is a quadratic penalty: a
truncated Newton method reaches the one optimum from anywhere.
"""

import dataclasses

import numpy as np

from keras_calib.solvers.temperature import threads

# Elements of one block of rows: its work arrays stay in a level-2 cache.
BLOCK = 1 << 16
# Sums over more rows than this lose digits in float32.
ROWS = 1024
# Elements of the logits below which everything is float64.
SMALL = 1 << 23
# Elements from which directions are float32.
DIGITS = 1 << 17
# Classes up to which each class has a preconditioner of its own.
BLOCKS = 200
# Keeps directions without data where they start; too small to be seen.
RIDGE = 1e-9


@dataclasses.dataclass(frozen=True)
class AffineFit:
    """What a fit found.

    Attributes:
        parameters: the minimiser, in the shape of the start.
        value: the objective there, with the penalty.
        gradient: the largest entry of its gradient.
        iterations: Newton steps.
        products: products with a Hessian.
        converged: whether the gradient is as small as was asked for.
        separated: whether the fit was stopped because every sample had become
            right, from where the likelihood only grows.
    """

    parameters: np.ndarray
    value: float
    gradient: float
    iterations: int
    products: int
    converged: bool
    separated: bool = False


def minimize(problem, start, tolerance, labels=None, max_iterations=100):
    """Truncated Newton: conjugate gradients inside, halved steps outside.

    Args:
        problem: has `evaluate(parameters) -> value, gradient`, which also sets
            the point of `product(direction)`, the Hessian times a direction,
            and of `precondition(gradient)`; `free`, 0 for what stays; `x`,
            whose dtype tells how far the value can be trusted; and `q`, the
            probabilities at the last point.
        start: float64 array, the first parameters.
        tolerance: of the largest entry of the gradient.
        labels: given where nothing but the labels holds the parameters, and
            all of them move: once every sample is right, there is no optimum.
        max_iterations: of Newton.

    Returns:
        `AffineFit`.
    """
    parameters, products = start, 0
    rounding = np.finfo(problem.x.dtype).eps
    value, gradient = problem.evaluate(parameters)
    for iteration in range(max_iterations):
        size = np.abs(gradient).max()
        separated = labels is not None and all_right(problem, labels)
        if separated or size <= tolerance:
            break
        step, used = _conjugate_gradients(problem, gradient, tolerance)
        products += used
        slope = float((step * gradient).sum())
        rate = 1.0
        while True:
            at = parameters + rate * step
            new, new_gradient = problem.evaluate(at)
            if new <= value + 1e-4 * rate * slope + 1e-12 * abs(value):
                break
            # Near the optimum the value has no digits left to compare. The
            # slope has: of a convex function, flat enough is near the minimum.
            flat = abs((step * new_gradient).sum()) <= -slope / 2
            if flat and new <= value + rounding * abs(value):
                break
            if rate < 1e-15 or -rate * slope < 1e-15 * abs(value):
                problem.evaluate(parameters)
                return AffineFit(
                    parameters, value, size, iteration, products, False
                )
            # The minimum of the parabola through what is known.
            bend = new - value - rate * slope
            rate *= np.clip(-slope * rate / (2 * bend), 0.1, 0.5)
        parameters, value, gradient = at, new, new_gradient
    size = float(np.abs(gradient).max())
    converged = size <= tolerance and not separated
    return AffineFit(
        parameters, value, size, iteration, products, converged, separated
    )


def all_right(problem, labels):
    """Whether more than half of each prediction is at its label."""
    return bool((problem.q[np.arange(len(labels)), labels] > 0.5).all())


def _conjugate_gradients(problem, gradient, tolerance):
    """A Newton step, as exact as the distance to the optimum is worth."""
    step = np.zeros_like(gradient)
    residual = -gradient
    z = problem.precondition(residual)
    direction = z
    norm = float((residual * z).sum())
    first = norm
    # Superlinear: the error left is of the order of the step squared.
    enough = min(0.25, np.sqrt(first)) ** 2 * first
    for used in range(1, 251):  # noqa: B007
        h = problem.product(direction)
        bend = float((direction * h).sum())
        if bend <= 1e-14 * float((direction * direction).sum()):
            break
        rate = norm / bend
        step += rate * direction
        residual = residual - rate * h
        if np.abs(residual).max() <= tolerance / 4:
            break
        z = problem.precondition(residual)
        last, norm = norm, float((residual * z).sum())
        if norm <= enough:
            break
        direction = z + norm / last * direction
    if not step.any():
        step = z
    return step, used


class DiagonalProblem:
    """`softmax(x w + b)` with `w` and `b` one number per class.

    Parameters have the shape `(2, num_classes)`: `w`, then `b`. With
    `shared`, all entries of `w` are one number.

    Args:
        x: `(n, num_classes)`, float32 or float64.
        labels: int class ids, `(n,)`.
        share: sample weights that sum to one, float64, `(n,)`.
        smoothing: share of the uniform distribution in the labels.
        shared: whether `w` is one number.
        free: 1.0 where a parameter moves, `(2, num_classes)`.
        ridge: strength of the penalty `sum ridge (parameters - center)^2`.
        center: where the penalty is zero.
    """

    def __init__(
        self, x, labels, share, smoothing, shared, free, ridge, center
    ):
        n, num_classes = x.shape
        self.x = x
        self.share = share.astype(x.dtype)
        self.shared = shared
        self.free = free
        self.ridge = ridge
        self.center = center
        self.q = np.empty_like(x)
        rows = max(1, min(ROWS, BLOCK // num_classes))
        self.slices = [slice(i, i + rows) for i in range(0, n, rows)]
        self.moments = self._moments(labels, share, smoothing)

    def _moments(self, labels, share, smoothing):
        """`sum_i share_i t_ik (x_ik, 1)`, all that labels add."""
        n, num_classes = self.x.shape
        chosen = self.x[np.arange(n), labels]
        moments = np.stack(
            [
                np.bincount(labels, share * chosen, num_classes),
                np.bincount(labels, share, num_classes),
            ]
        )
        if smoothing:
            moments *= 1 - smoothing
            moments[0] += smoothing / num_classes * (share @ self.x)
            moments[1] += smoothing / num_classes
        return moments

    def _sum(self, function):
        return sum(threads().map(function, self.slices))

    def _project(self, gradient):
        """Onto what may move: free parameters, and biases relative to them.

        Otherwise a class that stays would be left behind by all others.
        """
        w, b = gradient
        if self.shared:
            w = np.full_like(w, w.mean())
        return np.stack([w * self.free[0], _centered(b, self.free[1])])

    def evaluate(self, parameters):
        w, b = parameters.astype(self.x.dtype)
        biased = b.any()

        def part(rows):
            x, q, share = self.x[rows], self.q[rows], self.share[rows]
            np.multiply(x, w, out=q)
            if biased:
                q += b
            largest = q.max(axis=1, keepdims=True)
            q -= largest
            np.exp(q, out=q)
            total = q.sum(axis=1, keepdims=True)
            q /= total
            log_sum = np.log(total[:, 0], dtype=float) + largest[:, 0]
            qx = q * x
            sums = [share @ qx, share @ q]
            # The Hessian of each class by itself: ww, wb, bb.
            r = q - q * q
            rx = r * x
            sums += [share @ (rx * x), share @ rx, share @ r]
            return np.array([share @ log_sum, np.stack(sums)], object)

        value, sums = self._sum(part)
        away = parameters - self.center
        value -= (self.moments * parameters).sum()
        value += self.penalty(parameters)
        self.blocks = self._invert(*sums[2:].astype(float))
        gradient = sums[:2] - self.moments + 2 * self.ridge * away
        return float(value), self._project(gradient)

    def _invert(self, ww, wb, bb):
        ww = np.where(self.free[0] > 0, ww + 2 * self.ridge[0], 1.0)
        bb = np.where(self.free[1] > 0, bb + 2 * self.ridge[1], 1.0)
        wb = wb * self.free[0] * self.free[1]
        if self.shared:
            wb = 0.0 * wb
        # A class that no sample is unsure of has no curvature.
        ww = np.maximum(ww, 1e-6 * ww.max() + 1e-100)
        bb = np.maximum(bb, 1e-6 * bb.max() + 1e-100)
        determinant = np.maximum(ww * bb - wb * wb, 1e-6 * ww * bb)
        return np.stack([bb, -wb, ww]) / determinant

    def slopes(self, parameters):
        """The gradient with respect to every parameter, free or not."""
        free, self.free = self.free, np.ones_like(self.free)
        _, gradient = self.evaluate(parameters)
        self.free = free
        return gradient

    def penalty(self, parameters):
        return float((self.ridge * (parameters - self.center) ** 2).sum())

    def settle(self, parameters):
        """The parameters as they are: their biases are centered already."""
        return parameters

    def scores(self, parameters):
        w, b = parameters.astype(self.x.dtype)
        return self.x * w + b

    def chain(self, gradient, parameters):
        """From a gradient in the scores to one in the parameters."""
        sums = np.stack(
            [
                np.einsum("ij,ij->j", gradient, self.x, dtype=float),
                gradient.sum(axis=0, dtype=float),
            ]
        )
        away = parameters - self.center
        return self._project(sums + 2 * self.ridge * away)

    def product(self, direction):
        v, u = direction.astype(self.x.dtype)

        def part(rows):
            x, q, share = self.x[rows], self.q[rows], self.share[rows]
            a = x * v
            a += u
            a *= q
            m = a.sum(axis=1)
            a -= q * m[:, None]
            second = share @ a
            a *= x
            return np.stack([share @ a, second]).astype(float)

        found = self._sum(part) + 2 * self.ridge * direction
        return self._project(found)

    def precondition(self, gradient):
        ww, wb, bb = self.blocks
        w, b = gradient
        return self._project(np.stack([ww * w + wb * b, wb * w + bb * b]))


def _centered(values, free):
    """Zero where nothing moves, and a mean of zero over what does."""
    mean = (values * free).sum(axis=-1, keepdims=True)
    return (values - mean / max(free.sum(), 1.0)) * free


class FullProblem:
    """`softmax(x W + b)` with a full matrix.

    Parameters have the shape `(num_classes + 1, num_classes)`: `W`, below it
    `b`. A vector added to all columns changes no probability. In these
    directions the penalty alone decides, and exactly: they are taken out of
    the problem, and `settle` puts the best of them back in.

    Args:
        x: `(n, num_classes)`, float32 or float64.
        labels: int class ids, `(n,)`.
        share: sample weights that sum to one, float64, `(n,)`.
        smoothing: share of the uniform distribution in the labels.
        free: 1.0 where a column moves, `(num_classes,)`.
        ridge: strength of the penalty `sum ridge (parameters - center)^2`.
        center: where the penalty is zero.
    """

    def __init__(self, x, labels, share, smoothing, free, ridge, center):
        n, num_classes = x.shape
        self.x = np.concatenate([x, np.ones((n, 1), x.dtype)], axis=1)
        # Directions need few digits: the values that judge them have more.
        short = x.dtype if x.size < DIGITS else "float32"
        self.short = self.x.astype(short, copy=False)
        self.share = share.astype(x.dtype)[:, None]
        self.free = free
        self.ridge = ridge
        self.center = center
        self.q = np.empty_like(x)
        targets = np.full(x.shape, smoothing / num_classes, x.dtype)
        targets[np.arange(n), labels] += 1 - smoothing
        self.moments = (self.x.T @ (self.share * targets)).astype(float)
        self.inverse = None
        rows = max(1, BLOCK // num_classes)
        self.slices = [slice(i, i + rows) for i in range(0, n, rows)]

    def settle(self, parameters):
        """Move along what changes no probability to the least penalty."""
        away = parameters - self.center
        total = self.ridge.sum(axis=1, keepdims=True)
        shift = (self.ridge * away).sum(axis=1, keepdims=True)
        return parameters - shift / np.where(total > 0, total, 1.0)

    def _balance(self, away):
        """The penalty's half gradient, after `settle`."""
        total = self.ridge.sum(axis=1, keepdims=True)
        shift = (self.ridge * away).sum(axis=1, keepdims=True)
        return self.ridge * (away - shift / np.where(total > 0, total, 1.0))

    def penalty(self, parameters):
        """The penalty after `settle`."""
        away = parameters - self.center
        return float((self._balance(away) * away).sum())

    def scores(self, parameters):
        return self.x @ parameters.astype(self.x.dtype)

    def chain(self, gradient, parameters):
        """From a gradient in the scores to one in the parameters."""
        gradient = (self.x.T @ gradient).astype(float)
        balance = self._balance(parameters - self.center)
        return _centered(gradient + 2 * balance, self.free)

    def evaluate(self, parameters):
        q = np.matmul(self.x, parameters.astype(self.x.dtype), out=self.q)
        self.short_q = None

        def softmax(rows):
            block = q[rows]
            largest = block.max(axis=1, keepdims=True)
            block -= largest
            np.exp(block, out=block)
            total = block.sum(axis=1, keepdims=True)
            block /= total
            log_sum = np.log(total, dtype=float) + largest
            return float((self.share[rows] * log_sum).sum())

        value = sum(threads().map(softmax, self.slices))
        value -= float((self.moments * parameters).sum())
        value += self.penalty(parameters)
        balance = self._balance(parameters - self.center)
        gradient = (self.x.T @ (self.share * q)).astype(float) - self.moments
        return value, _centered(gradient + 2 * balance, self.free)

    def product(self, direction):
        if self.short_q is None:
            self.short_q = self.q.astype(self.short.dtype, copy=False)
            self.weighted = self.short_q * self.share.astype(self.short.dtype)
        a = self.short @ direction.astype(self.short.dtype)

        def softmax(rows):
            block, q = a[rows], self.short_q[rows]
            mean = np.einsum("ij,ij->i", block, q)
            block -= mean[:, None]
            block *= self.weighted[rows]

        list(threads().map(softmax, self.slices))
        found = (self.short.T @ a).astype(float)
        return _centered(found + 2 * self._balance(direction), self.free)

    def precondition(self, gradient):
        if self.inverse is None:
            blocks = self.q.shape[1] <= BLOCKS
            self.inverse = self._blocks() if blocks else self._kronecker()
        return _centered(self.inverse(gradient), self.free)

    def _blocks(self):
        """The Hessian of each class by itself, inverted."""
        d, num_classes = self.short.shape[1], self.q.shape[1]
        hessians = np.empty((num_classes, d, d), "float32")
        q = np.ascontiguousarray(self.q.T, dtype="float32")
        r = q * (1 - q) * self.share[:, 0].astype("float32")
        for k in range(num_classes):
            # Rows that are sure of the class add next to nothing.
            used = np.flatnonzero(r[k] > 1e-3 * r[k].mean())
            step = max(1, len(used) // (8 * d))
            used = used[::step]
            part = self.short[used]
            hessians[k] = part.T @ (step * r[k, used, None] * part)
        diagonal = np.einsum("kii->ki", hessians)
        diagonal += 1e-5 * diagonal + 2 * self.ridge.T + RIDGE
        inverses = np.linalg.inv(hessians)
        return lambda gradient: np.matmul(
            inverses, gradient.T[..., None].astype("float32")
        )[..., 0].T.astype(float)

    def _kronecker(self):
        """One matrix for all classes, times how much each class varies."""
        r = self.q * (1 - self.q)
        r *= self.share
        scale = r.sum(axis=0).astype(float)
        rows = r.sum(axis=1, keepdims=True) / scale.sum()
        gram = (self.x.T @ (rows * self.x)).astype(float)
        values, vectors = np.linalg.eigh(gram)
        values = np.maximum(values, 1e-6 * values[-1])
        bottom = values[:, None] * scale + 2 * self.ridge.mean() + RIDGE
        return lambda gradient: vectors @ ((vectors.T @ gradient) / bottom)


def lbfgs(
    function, start, precondition, tolerance=1e-6, max_iterations=500, memory=20
):
    """Limited-memory BFGS with a line search for the Wolfe conditions.

    For objectives that are smooth but not convex; started at the optimum of
    the likelihood, which is near.

    Args:
        function: `function(parameters) -> value, gradient`.
        start: float64 array.
        precondition: what is known of the inverse Hessian.
        tolerance: of the largest entry of the gradient.
        max_iterations: int.
        memory: how many steps are remembered.

    Returns:
        `AffineFit`.
    """
    parameters = start
    value, gradient = function(parameters)
    steps, changes = [], []
    for iteration in range(max_iterations):  # noqa: B007
        if np.abs(gradient).max() <= tolerance:
            break
        direction = _two_loops(gradient, steps, changes, precondition)
        slope = float((direction * gradient).sum())
        found = None
        if slope < 0:
            found = _wolfe(function, parameters, value, direction, slope)
        if found is None:
            if not steps:
                break
            steps, changes = [], []
            continue
        at, new, new_gradient = found
        step, change = at - parameters, new_gradient - gradient
        if (step * change).sum() > 1e-12 * (change**2).sum():
            steps = [*steps, step][-memory:]
            changes = [*changes, change][-memory:]
        parameters, value, gradient = at, new, new_gradient
    size = float(np.abs(gradient).max())
    return AffineFit(parameters, value, size, iteration, 0, size <= tolerance)


def _two_loops(gradient, steps, changes, precondition):
    direction = -gradient
    shares = []
    pairs = list(zip(steps, changes, strict=True))
    for step, change in reversed(pairs):
        share = (step * direction).sum() / (step * change).sum()
        shares.append(share)
        direction = direction - share * change
    direction = precondition(direction)
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        back = (change * direction).sum() / (step * change).sum()
        direction = direction + (share - back) * step
    return direction


def _wolfe(function, start, value, direction, slope):
    """A step with enough decrease and a flatter slope, by bisection."""
    rate, low, high = 1.0, 0.0, np.inf
    for _ in range(40):
        at = start + rate * direction
        new, gradient = function(at)
        if not new <= value + 1e-4 * rate * slope:
            high = rate
        elif (gradient * direction).sum() < 0.9 * slope:
            low = rate
        else:
            return at, new, gradient
        rate = 2 * rate if high == np.inf else (low + high) / 2
    return None
