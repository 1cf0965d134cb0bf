"""Whether confidence and accuracy differ by more than chance: a p-value.

Under perfect calibration the gap is a sum of independent centered variables,

    S = sum_i w_i (a_i - c_i),   a_i ~ Bernoulli(c_i)
    kappa(t) = log E exp(t S) = sum_i log(1 + c_i (exp(t w_i) - 1)) - t w_i c_i

With `kappa'(t) = s` and `r^2 = 2 (t s - kappa(t))`, Chernoff's bound is

    P(S >= s) <= exp(-r^2 / 2)

whatever confidences and weights are. Where the variance is large, this is far
above the probability, and the approximation of Lugannani and Rice is used:

    P(S >= s) ~ 1 - Phi(r) + phi(r) (1 / u - 1 / r),   u = t sqrt(kappa''(t))

Without weights, and with a small variance, the law of `S` is exact. A normal
variable would not do: of 30 samples with a confidence of 0.999, a single error
is five standard errors.
"""

import statistics

import numpy as np

from keras_calib.evaluation.floor import NORMAL_FROM
from keras_calib.evaluation.floor import law_of_gap
from keras_calib.evaluation.mean_interval import unseen_variance
from keras_calib.inputs.arrays import sigmoid
from keras_calib.solvers.blocks import TINY64

NORMAL = statistics.NormalDist()
# Variance, in typical squared weights, from which the sum is normal far into
# its tails.
NORMAL_TAILS_FROM = 2500.0
# Fewer independent units tell no standard error.
LEAST_UNITS = 10


def gap_p_value(confidence, correct, weights=None, unit=None):
    """Probability of so large a gap, to either side, if predictions are right.

        gap = sum_i w_i (c_i - a_i)

    Args:
        confidence: probabilities, `(n,)`.
        correct: whether each prediction is right, `(n,)`.
        weights: sample weights, `(n,)`; `None` for equal ones.
        unit: ids of what is independent, `(n,)`: rows of one image or text are
            not. Then it is a t-test of the sums of units (1 for fewer than
            10) with `unseen_variance`, and not less than the probability for
            independent rows. `None` if rows are independent.

    Returns:
        float.

    Reference:
        Lugannani and Rice, "Saddle Point Approximation for the Distribution of
        the Sum of Independent Random Variables", Advances in Applied
        Probability 12, 1980.
    """
    c = np.asarray(confidence, "float64")
    w = np.ones(len(c)) if weights is None else np.asarray(weights, "float64")
    away = w * (correct - c)
    if unit is not None:
        of_units = _of_units(away, w**2 * c * (1 - c), unit)
        return max(of_units, gap_p_value(c, correct, weights))
    size = abs(float(away.sum()))
    variance = float(w**2 @ (c * (1 - c)))
    # Rounding of the sum is no gap.
    if size <= 1e-9 * float(w.sum()):
        return 1.0
    typical = float(w @ w / w.sum()) ** 2
    if variance >= NORMAL_TAILS_FROM * typical:
        return 2 * NORMAL.cdf(-size / np.sqrt(variance))
    small = variance < NORMAL_FROM * typical
    equal = np.ptp(w) == 0
    if small and equal:
        sizes, law = law_of_gap(c)
        return float(law[sizes >= size / w[0] - 1e-9].sum())
    if equal:  # the sum has steps of this size
        size = max(size - w[0] / 2, 0.0)
    tails = [_tail(p, w, size, bound=small) for p in (c, 1 - c)]
    return min(sum(tails), 1.0)


def _tail(c, w, size, bound):
    """`P(sum w (a - c) >= size)`, or Chernoff's bound of it."""
    # What is certain is not random, and has no logarithm of its odds.
    random = (c > 0) & (c < 1) & (w > 0)
    c, w = c[random], w[random]
    most = float(w @ (1 - c))
    if size > most * (1 + 1e-9):
        return 0.0
    if size >= most * (1 - 1e-9):  # all are right
        return float(np.exp(np.log(c).sum()))
    log_odds = np.log(c) - np.log1p(-c)
    low, high, t = 0.0, np.inf, 0.0
    # The bound is for cycles by rounding: Newton in a bracket ends before.
    for _ in range(100):  # pragma: no branch
        tilted = sigmoid(log_odds + t * w)
        first = float(w @ (tilted - c))
        second = float(w**2 @ (tilted * (1 - tilted)))
        low, high = (t, high) if first < size else (low, t)
        step = t + (size - first) / second if second > 0 else np.inf
        last = t
        t = step if low < step < high else _between(low, high, w)
        if abs(t - last) <= 1e-9 * t:
            break
    kappa = float(
        (np.log1p(c * np.expm1(np.minimum(t * w, 700))) - t * w * c).sum()
    )
    r = np.sqrt(max(2 * (t * size - kappa), 0.0))
    if bound:
        return float(np.exp(-(r**2) / 2))
    if r < 1e-3:
        return 0.5
    u = t * np.sqrt(second)
    return max(NORMAL.cdf(-r) + NORMAL.pdf(r) * (1 / u - 1 / r), 0.0)


def _between(low, high, w):
    """A point of the bracket, or twice as far where it has no end."""
    return (low + high) / 2 if np.isfinite(high) else 2 * low + 1 / w.max()


def _of_units(away, variance, unit):
    """The t-test of the sums of independent units, by Wallace's normal.

    Where nearly all rows are right the sums are nearly equal, and a unit that
    is wrong as a whole may only not have come: see `unseen_variance`.
    """
    sums = np.bincount(unit, away)[np.unique(unit)]
    if len(sums) < LEAST_UNITS or not (sums != 0).any():
        return 1.0
    degrees = len(sums) - 1
    square = len(sums) * sums.var(ddof=1)
    square += unseen_variance(away, variance, unit)
    # Sums that are all equal are told from 0 for certain.
    t = abs(sums.sum()) / max(np.sqrt(square), TINY64)
    normal = np.sqrt(degrees * np.log1p(t**2 / degrees))
    normal *= (8 * degrees + 1) / (8 * degrees + 3)
    return 2 * NORMAL.cdf(-normal)
