"""Approximate inverses of the Hessian of a regression with a full matrix.

Each is a function of a gradient, `(num_classes + 1, num_classes)`.
"""

import functools

import numpy as np

from keras_calib.solvers.blocks import TINY64
from keras_calib.solvers.blocks import for_groups
from keras_calib.solvers.blocks import sum_groups

# Samples of the Hessian of a class, for each of its parameters: with half of
# them the fit takes up to twice as many products.
ROWS_OF_CLASS = 8


def inverse_per_class(problem, ridge):
    """The Hessian of each class by itself, inverted.

    Args:
        problem: `FullProblem`.
        ridge: the strength of its penalty, above 0.
    """
    num_classes = problem.q.shape[1]
    d = num_classes + 1
    hessians = np.empty((num_classes, d, d), "float32")
    for k in range(num_classes):
        q = problem.q[:, k]
        r = (q * (1 - q) * problem.weights[:, 0]).astype("float32")
        # Rows where the class has probability 0 or 1 add next to nothing.
        used = np.flatnonzero(r > 1e-3 * r.mean())
        step = max(1, len(used) // (ROWS_OF_CLASS * d))
        used = used[::step]
        part = problem.with_ones(used).astype("float32", copy=False)
        part *= np.sqrt(step * r[used, None])
        # NumPy computes half of a product with itself.
        hessian = part.T @ part
        diagonal = np.einsum("ii->i", hessian)
        diagonal += 1e-5 * diagonal + 2 * ridge[:, k]
        hessians[k] = hessian
    return inverse_of(hessians)


def kronecker(problem, ridge):
    """One matrix S for all classes, times the variance s_k of each class.

    With the strongest penalty r_j of each row of parameters, the Hessian of
    class k is taken as

        s_k S + 2 diag(r) - d_k e_k e_k',    d_k = 2 (r_k - ridge_kk)

    because a slope of the class itself is penalized less. All classes share
    one eigenvalue problem, and the last term has rank one (Sherman-Morrison).

    Args: see `inverse_per_class`.
    """

    def part(rows):
        r = problem.q[rows] * (1 - problem.q[rows])
        r *= problem.weights[rows]
        x = problem.with_ones(rows)
        total = r.sum(axis=1, keepdims=True)
        gram = x.T @ (total.astype(x.dtype) * x)
        scale = r.sum(axis=0, dtype=float)
        return np.array([scale, gram.astype(float)], object)

    scale, gram = sum_groups(part, problem.slices)
    # Where all probabilities are 0 or 1, there is no curvature.
    gram = gram / max(scale.sum(), TINY64)
    penalty = 2 * ridge.max(axis=1)
    root = 1 / np.sqrt(penalty)
    values, vectors = np.linalg.eigh(root[:, None] * gram * root)
    values = np.maximum(values, 1e-6 * values[-1])
    vectors *= root[:, None]
    bottom = 1 + values[:, None] * scale
    # Column k of the inverse for class k, without the last term.
    own = vectors @ (vectors[:-1].T / bottom)
    less = penalty[:-1] - 2 * ridge.diagonal()
    less /= np.maximum(1 - less * own.diagonal(), 1e-3)

    def inverse(gradient):
        found = vectors @ ((vectors.T @ gradient) / bottom)
        return found + own * (less * found.diagonal())

    return inverse


def inverse_of(hessians):
    """The inverses of a matrix per class, as a function of a gradient.

    They take the place of the matrices.
    """

    def invert(classes):
        for k in classes:
            hessians[k] = np.linalg.inv(hessians[k])

    for_groups(invert, len(hessians))
    return functools.partial(_times_each, hessians)


def _times_each(inverses, gradient):
    columns = gradient.T[..., None].astype("float32")
    return np.matmul(inverses, columns)[..., 0].T.astype(float)
