"""Weights of a mixture of three distributions, on the simplex."""

import numpy as np

from keras_calib.solvers.blocks import TINY64
from keras_calib.solvers.newton import newton

# Of the simplex of three weights, and to its first two of the plane around it.
EDGES = (0, 1), (0, 2), (1, 2)
TO_PLANE = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]])


def fit_mixture(parts, weights, gamma=0.0):
    """Minimize `sum_i weights_i phi(parts_i @ w)` over the simplex of `w`.

    `phi(q) = -(1 - q)^gamma log q`: the likelihood, or the focal loss. Each
    step minimizes the quadratic model on the simplex, exactly. With `gamma=0`
    the problem is convex and the steps are Newton's.

    Args:
        parts: probabilities, `(n, 3)`.
        weights: sample weights that sum to 1, `(n,)`.
        gamma: float >= 0.

    Returns:
        Weights of the mixture, >= 0, that sum to 1, `(3,)`.
    """
    parts = np.maximum(parts, TINY64)

    def value(w):
        q = np.minimum(parts @ w, 1.0)
        return -float(weights @ ((1 - q) ** gamma * np.log(q)))

    def evaluate(w):
        first, _ = _derivatives(np.minimum(parts @ w, 1.0), gamma)
        return value(w), parts.T @ (weights * first)

    def find_step(w, gradient):
        _, second = _derivatives(np.minimum(parts @ w, 1.0), gamma)
        hessian = (parts * (weights * second)[:, None]).T @ parts
        step = minimize_on_simplex(hessian, hessian @ w - gradient) - w
        return step if -gradient @ step > 1e-15 else None

    w = min([*np.eye(3), np.full(3, 1 / 3)], key=value)
    # At a corner the slope is infinite where this part gives a label nothing.
    w = 0.999 * w + 0.001 / 3
    w = np.maximum(
        newton(evaluate, find_step, w, least_decrease=1e-15).parameters, 0.0
    )
    start = np.array([1.0, 0.0, 0.0])
    return min(start, w / w.sum(), key=value)


def _derivatives(q, gamma):
    """First derivative of `phi`, and a second one that is never negative."""
    if not gamma:
        return -1 / q, 1 / q**2
    rest = np.maximum(1 - q, 1e-12)
    log_q = np.log(q)
    first = gamma * rest ** (gamma - 1) * log_q - rest**gamma / q
    second = (
        rest**gamma / q**2
        + 2 * gamma * rest ** (gamma - 1) / q
        - gamma * (gamma - 1) * rest ** (gamma - 2) * log_q
    )
    return first, np.maximum(second, 1e-12)


def minimize_on_simplex(matrix, vector):
    """The `w` on the simplex that minimizes `w' matrix w / 2 - vector' w`.

    Inside if the optimum of the plane is there, otherwise on an edge.

    Args:
        matrix: positive semidefinite, `(3, 3)`.
        vector: `(3,)`.

    Returns:
        float64, `(3,)`.
    """
    inside = _on_plane(matrix, vector)
    if inside is not None and inside.min() >= 0:
        return inside
    edges = [_on_edge(matrix, vector, *edge) for edge in EDGES]
    values = [w @ matrix @ w / 2 - vector @ w for w in edges]
    return edges[int(np.argmin(values))]


def _on_plane(matrix, vector):
    """The optimum of all `w` with sum 1; `None` if there is a line of them.

    With `w = (a, b, 1 - a - b)` it solves two equations.
    """
    slopes = TO_PLANE @ (vector - matrix[:, 2])
    (first, mixed), (_, second) = TO_PLANE @ matrix @ TO_PLANE.T
    determinant = first * second - mixed**2
    if determinant <= 1e-14 * first * second:
        return None
    a = (second * slopes[0] - mixed * slopes[1]) / determinant
    b = (first * slopes[1] - mixed * slopes[0]) / determinant
    return np.array([a, b, 1 - a - b])


def _on_edge(matrix, vector, i, j):
    """The optimum of weights `i` and `j` alone; of equals, `i` has all."""
    curvature = matrix[i, i] - 2 * matrix[i, j] + matrix[j, j]
    slope = vector[i] - vector[j] - matrix[i, j] + matrix[j, j]
    w = np.zeros(3)
    w[i] = float(slope >= 0)
    if curvature > 0:
        w[i] = min(max(slope / curvature, 0.0), 1.0)
    w[j] = 1 - w[i]
    return w
