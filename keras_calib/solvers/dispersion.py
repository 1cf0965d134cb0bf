"""How much larger residuals are than chance makes them."""

import numpy as np

from keras_calib.solvers.blocks import TINY64
from keras_calib.solvers.blocks import sum_blocks


def dispersion_of(q, labels, weights, x, slices, group=None):
    """Squared residuals over their variance, at least 1.

        phi = sum_g sum_k (sum_(i in g) w_i (q_ik - y_ik) x_ik)^2
            / sum_i w_i sum_k q_ik (1 - q_ik) x_ik^2

    Unequal weights make it larger, and so do groups `g` whose rows are wrong
    together: they hold less information.

    Args:
        q: probabilities, `(n, num_classes)`.
        labels: class ids, `(n,)`.
        weights: float64, `(n,)`, with the number of samples as their sum.
        x: like `q`; `None` leaves it out, where only biases are free.
        slices: of the rows, to be taken one after the other.
        group: `None` where each row is a group of its own, or their numbers
            from 0, `(n,)`.

    Returns:
        float.

    Reference:
        The middle of the cluster-robust covariance of generalized estimating
        equations: Liang & Zeger, "Longitudinal data analysis using generalized
        linear models", Biometrika, 1986.
    """

    def part(rows):
        of_q, w = q[rows], weights[rows]
        variance, squares = of_q * (1 - of_q), of_q * of_q
        own = np.arange(len(of_q)), labels[rows]
        squares[own] = (1 - of_q[own]) ** 2
        if x is not None:
            # In this order: 0 times the square of a huge number is not 0.
            variance = variance * x[rows] * x[rows]
            squares = squares * x[rows] * x[rows]
        return np.array([w @ variance.sum(axis=1), w**2 @ squares.sum(axis=1)])

    expected, observed = sum_blocks(part, slices)
    if group is not None:
        sums = _sums_of_groups(q, labels, weights, x, slices, group)
        observed = np.square(sums, out=sums).sum()
    return max(1.0, float(observed) / max(float(expected), TINY64))


def squares_of(residuals, weights, group=None):
    """Squares of the sums of groups, and what they would be of equal rows.

    Args:
        residuals: `(n,)`.
        weights: float64, `(n,)`, with the number of samples as their sum.
        group: `None` where each row is a group of its own, or their numbers
            from 0, `(n,)`.

    Returns:
        `sum_g (sum_(i in g) w_i r_i)^2` and `sum_i w_i r_i^2`, `(2,)`.
    """
    sums = weights * residuals
    if group is not None:
        sums = np.bincount(group, sums)
    return np.array([sums @ sums, weights @ residuals**2])


def design_effect(squares):
    """By what groups and unequal rows divide the number of samples, >= 1.

    It is 1 where each row is a group of its own and has the weight 1.

    Args:
        squares: of `squares_of`, or a sum of several.

    Returns:
        float.

    Reference:
        Kish, "Survey Sampling", 1965.
    """
    of_sums, of_rows = squares
    return max(1.0, float(of_sums / max(of_rows, TINY64)))


def _sums_of_groups(q, labels, weights, x, slices, group):
    """`sum_(i in g) w_i (q_ik - y_ik) x_ik`, `(groups, num_classes)`."""
    sums = np.zeros((int(group.max()) + 1, q.shape[1]))
    for rows in slices:
        residuals = q[rows].astype(float)
        residuals[np.arange(len(residuals)), labels[rows]] -= 1
        residuals *= weights[rows, None]
        if x is not None:
            residuals *= x[rows]
        add_by_group(sums, group[rows], residuals)
    return sums


def add_by_group(sums, group, values):
    """Add rows to those of their groups, in place.

    Args:
        sums: `(groups, size)`.
        group: numbers from 0, `(n,)`.
        values: `(n, size)`.
    """
    order = group.argsort(kind="stable")
    number = group[order]
    first = np.flatnonzero(np.diff(number, prepend=-1))
    sums[number[first]] += np.add.reduceat(values[order], first)
