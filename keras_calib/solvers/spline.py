"""A natural spline of the cumulative calibration error, and its slope."""

import numpy as np

from keras_calib.inputs import large
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.isotonic import isotonic_regression


def spline_map(confidence, correct, num_knots=6, weights=None, monotone=False):
    """Calibrated confidence at every confidence among the samples.

    With the samples in the order of their confidence c, u the part of them
    below, and S the spline through the running mean of `a - c`: c + S'(u).

    Args:
        confidence: `(n,)`.
        correct: 0 or 1, `(n,)`.
        num_knots: int.
        weights: `None`, or weights > 0, `(n,)`.
        monotone: bool, whether the result must increase.

    Returns:
        points: the different confidences, ascending.
        calibrated: as many, in `[0, 1]`.
    """
    order = np.argsort(confidence, kind="stable")
    s, a = confidence[order], correct[order]
    w = np.ones(len(s)) if weights is None else np.asarray(weights)[order]
    # Equal confidences have no order: each gets their mean.
    starts = np.flatnonzero(np.append(True, s[1:] > s[:-1]))
    mass = np.add.reduceat(w, starts)
    group = np.repeat(
        np.arange(len(starts)), np.diff(np.append(starts, len(s)))
    )
    a = (np.add.reduceat(w * a, starts) / mass)[group]
    error = np.cumsum(w * (a - s)) / w.sum()
    before = np.cumsum(w) - w
    u = before / before[-1]
    design, slope = natural_spline(u, num_knots)
    root = np.sqrt(w)
    height, *_ = np.linalg.lstsq(
        design * root[:, None], error * root, rcond=None
    )
    calibrated = np.add.reduceat(w * (s + slope @ height), starts) / mass
    points = s[starts]
    if monotone:
        blocks = isotonic_regression(points, calibrated, mass)
        index = np.searchsorted(blocks.last, points, "left")
        calibrated = blocks.level[index]
    return points, np.clip(calibrated, 0.0, 1.0)


def natural_spline(u, num_knots):
    """Values and slopes at `u` of the natural cubic splines on `[0, 1]`.

    Column `j` is the spline that is 1 at knot `j` and 0 at the others; knots
    are equally spaced. The second derivatives `m` solve
    `m[j-1] + 4 m[j] + m[j+1] = 6 / h^2 (y[j-1] - 2 y[j] + y[j+1])`, and are
    0 at the ends.

    Args:
        u: `(n,)`, in `[0, 1]`.
        num_knots: int >= 3.

    Returns:
        Two arrays, `(n, num_knots)`; in files if they are large.
    """
    h = 1 / (num_knots - 1)
    inner = num_knots - 2
    left = 4 * np.eye(inner) + np.eye(inner, k=1) + np.eye(inner, k=-1)
    right = np.zeros((inner, num_knots))
    for shift, factor in enumerate((1, -2, 1)):
        right[range(inner), range(shift, inner + shift)] = factor
    second = np.zeros((num_knots, num_knots))
    second[1:-1] = np.linalg.solve(left, right * 6 / h**2)
    values, slopes = (
        large.empty((len(u), num_knots), "float64") for _ in range(2)
    )
    for rows in row_blocks(len(u), num_knots):
        values[rows], slopes[rows] = _at(u[rows], second, h)
    return values, slopes


def _at(u, second, h):
    """Values and slopes, from the second derivatives of each column."""
    num_knots = len(second)
    j = np.clip((u / h).astype(int), 0, num_knots - 2)
    t = (u - j * h)[:, None]
    unit = np.eye(num_knots)
    m0, m1, y0, y1 = second[j], second[j + 1], unit[j], unit[j + 1]
    values = (
        m0 * (-(t**3) / (6 * h) + t**2 / 2 - h * t / 3)
        + m1 * (t**3 / (6 * h) - h * t / 6)
        + y0 * (1 - t / h)
        + y1 * t / h
    )
    slopes = (
        m0 * (-(t**2) / (2 * h) + t - h / 3)
        + m1 * (t**2 / (2 * h) - h / 6)
        + (y1 - y0) / h
    )
    return values, slopes
