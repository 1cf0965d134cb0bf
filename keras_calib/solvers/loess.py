"""Loess: a local polynomial, fitted directly at each place."""

import math

import numpy as np

# Numbers of a block of the matrix that is found at once.
BLOCK = 1 << 18
# Of all weight, the squared norm of an orthogonal polynomial in `(x - t) / h`
# below which its window has hardly as many different `x` as coefficients.
DEGENERATE = 1e-8


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
    x, at = np.asarray(x, "float64"), np.asarray(at, "float64")
    weights = np.ones(len(x)) if weights is None else weights
    rows = x if num_rows is None else np.repeat(x, num_rows)
    # R adds the same number, so that .75 of 4 rows are 3.
    nearest = math.floor(span * len(rows) + 1e-5)
    widths = _widths(rows, at, max(min(nearest, len(rows)), 1))
    matrix = np.empty((len(at), len(x)))
    step = max(1, BLOCK // len(x))
    for start in range(0, len(at), step):
        part = slice(start, start + step)
        matrix[part] = _rows(x, at[part], widths[part], weights, degree)
    return matrix


def _widths(x, at, nearest):
    """Distance of each place to the `nearest`-th of `x`, which ascends."""
    # These are neighbors. Of all windows of as many the best is the first whose
    # middle is above the place, or the one before, but for rounding.
    first, last = x[: len(x) - nearest + 1], x[nearest - 1 :]
    above = np.searchsorted(first + last, 2 * at)
    window = np.clip(above[:, None] + range(-2, 2), 0, len(first) - 1)
    places = at[:, None]
    ends = np.abs(first[window] - places), np.abs(last[window] - places)
    return np.maximum(*ends).min(axis=1)


def _rows(x, at, widths, weights, degree):
    """Rows of `loess_matrix`, for some of the places."""
    divisor = np.where(widths > 0, widths, 1.0)[:, None]
    away = x - at[:, None]
    # What is outside the window counts nothing, and must not overflow.
    with np.errstate(over="ignore"):
        u = np.clip(away / divisor, -1.0, 1.0)
    kernel = _tricube(away, divisor) * weights
    total = kernel.sum(axis=1)
    # Polynomials that are orthogonal in the window, by their recurrence, and
    # their values at the place.
    own, before, norm_before = np.ones_like(u), 0.0, 1.0
    own_at, before_at = np.ones(len(at)), 0.0
    rows, least = 0.0, total
    for _ in range(degree + 1):
        weighed = kernel * own * own
        norm = weighed.sum(axis=1)
        least = np.minimum(least, norm)
        norm = np.where(norm > 0, norm, 1.0)
        rows = rows + own * (own_at / norm)[:, None]
        middle = np.einsum("pm,pm->p", weighed, u) / norm
        ratio = norm / norm_before
        own, before = (
            (u - middle[:, None]) * own - ratio[:, None] * before,
            own,
        )
        own_at, before_at = -middle * own_at - ratio * before_at, own_at
        norm_before = norm
    rows *= kernel
    for row in np.flatnonzero((widths == 0) | (least < DEGENERATE * total)):
        rows[row] = _shortest_row(x - at[row], widths[row], weights, degree)
    return rows


def _tricube(away, width):
    """`T(away / width)`, to all digits where it is next to 0."""
    away = np.minimum(np.abs(away), width)
    u = away / width
    # Products take a fraction of the time of powers.
    kernel = (width - away) / width * (1 + u + u * u)
    return kernel * kernel * kernel


def _shortest_row(away, width, weights, degree):
    """A row by the shortest vector of coefficients."""
    row = np.zeros(len(away))
    if width == 0:
        ties = np.where(away == 0, weights, 0.0)
        return ties / ties.sum()
    kernel = _tricube(away, width)
    used = kernel > 0
    root = np.sqrt(weights[used] * kernel[used])
    powers = np.vander(away[used] / width, degree + 1, increasing=True)
    inverse = np.linalg.pinv(powers * root[:, None], rcond=1e-10)
    row[used] = inverse[0] * root
    return row
