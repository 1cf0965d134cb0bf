"""Loess: a local polynomial, fitted directly at each place."""

import math

import numpy as np


def loess_matrix(
    x, at, *, span=0.75, degree=2, num_rows=None, weights=None
) -> np.ndarray:
    """The matrix that takes values at `x` to the smooth curve at `at`.

        minimize sum_i w_i T(|x_i - t| / h) (y_i - poly(x_i - t))^2
        T(u) = (1 - u^3)^3 for u < 1, else 0

    and the curve at `t` is the constant of the polynomial. `h` is the distance
    to the q-th nearest row, `q = floor(span n)`. Where all of these are ties,
    `h` is 0, and the curve is their mean. Places with fewer different `x` than
    coefficients have the shortest vector of coefficients.

    The curve is linear in the values: one matrix serves many sets of labels.
    R's `loess` has the same definition, but interpolates between the vertices
    of a tree unless it is called with `surface = "direct"`.

    Args:
        x: different values, ascending, `(m,)`.
        at: places of the curve, `(num_places,)`.
        span: float in (0, 1], the share of the rows that a window holds.
        degree: int, degree of the polynomial.
        num_rows: `None` for ones, or how many rows each `x` stands for.
        weights: `None` for ones, or weights > 0 of the values, `(m,)`.

    Returns:
        float64, `(num_places, m)`.

    Reference:
        Cleveland and Devlin, "Locally weighted regression", JASA 1988,
        Section 2.
    """
    x = np.asarray(x, "float64")
    weights = np.ones(len(x)) if weights is None else weights
    num_rows = np.ones(len(x), int) if num_rows is None else num_rows
    total = int(num_rows.sum())
    # R adds the same number, so that .75 of 4 rows are 3.
    nearest = max(min(math.floor(span * total + 1e-5), total), 1)
    matrix = np.zeros((len(at), len(x)))
    for row, t in zip(matrix, at, strict=True):
        distance = np.abs(x - t)
        order = np.argsort(distance, kind="stable")
        within = np.cumsum(num_rows[order])
        width = distance[order[np.searchsorted(within, nearest)]]
        if width == 0:
            ties = np.where(distance == 0, weights, 0.0)
            row[:] = ties / ties.sum()
            continue
        kernel = (1 - np.minimum(distance / width, 1.0) ** 3) ** 3
        used = kernel > 0
        root = np.sqrt(weights[used] * kernel[used])
        powers = np.vander((x[used] - t) / width, degree + 1, increasing=True)
        inverse = np.linalg.pinv(powers * root[:, None], rcond=1e-10)
        row[used] = inverse[0] * root
    return matrix
