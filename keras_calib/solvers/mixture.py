"""Weights of a mixture of three distributions, on the simplex."""

import itertools

import numpy as np

from keras_calib.solvers.blocks import TINY64
from keras_calib.solvers.newton import newton


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

    Tries every set of weights that could be positive.
    """
    size = len(vector)
    best, lowest = None, np.inf
    for count in range(1, size + 1):
        for chosen in itertools.combinations(range(size), count):
            chosen = list(chosen)
            system = np.zeros((count + 1, count + 1))
            system[:-1, :-1] = matrix[np.ix_(chosen, chosen)]
            system[-1, :-1] = system[:-1, -1] = 1.0
            right = np.append(vector[chosen], 1.0)
            w = np.zeros(size)
            w[chosen] = np.linalg.lstsq(system, right, rcond=1e-14)[0][:-1]
            if w.min() < -1e-12 or abs(w.sum() - 1) > 1e-6:
                continue
            w = np.maximum(w, 0.0)
            w /= w.sum()
            value = w @ matrix @ w / 2 - vector @ w
            if value < lowest:
                best, lowest = w, value
    return best
