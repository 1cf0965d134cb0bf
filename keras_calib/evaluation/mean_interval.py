"""The interval of a mean over rows that may depend on each other."""

import math
import statistics
from typing import NamedTuple

import numpy as np

from keras_calib.inputs.arrays import effective_num_samples

# With more degrees of freedom Student's distribution is the normal one.
NORMAL = 10_000


class MeanInterval(NamedTuple):
    """A mean over rows, and where it is.

    Attributes:
        mean: float.
        error: its standard error; infinite for a single unit.
        quantile: standard errors from the middle of the interval to its ends.
        num_units: of independent units; of unequal weights as many equal ones
            as have the same variance.
    """

    mean: float
    error: float
    quantile: float
    num_units: float

    @property
    def low(self):
        return self.mean - self.quantile * self.error

    @property
    def high(self):
        return self.mean + self.quantile * self.error


def mean_interval(values, data, level, variance=None):
    """`MeanInterval` of values by row.

    Args:
        values: `(n,)`.
        data: `Predictions` of the same rows. Those of one image or text depend
            on each other.
        level: in which share of cases the interval holds the true mean.
        variance: that of each value by the hypothesis that is tested, `(n,)`;
            see `unseen_variance`. `None` if it is not known.
    """
    n = len(values)
    weights = np.ones(n) if data.weights is None else data.weights
    weights = weights / weights.sum()
    mean = float(weights @ values)
    away = weights * (values - mean)
    unseen = 0.0
    if variance is not None:
        unseen = unseen_variance(away, weights**2 * variance, data.unit)
    if data.unit is not None:
        away = np.bincount(data.unit, away)
        weights = np.bincount(data.unit, weights)
    units = effective_num_samples(weights)
    quantile = student_quantile(level, units - 1)
    error = math.inf
    if math.isfinite(quantile):
        error = math.sqrt(away @ away * units / (units - 1) + unseen)
    return MeanInterval(mean, error, quantile, units)


def unseen_variance(away, variance, unit):
    """Variance of a sum that its rows should have and do not have.

    If what makes most of the variance is rare, e.g. an error of a model that is
    sure, a sample may hold less of it than is expected, and then takes its mean
    for too exact. Of the sum of terms with standard deviations `s_i` that share
    of the variance is missing for which the squares of the sample are too
    small,

        max(0, 1 - sum_i away_i^2 / sum_i s_i^2) * sum_u (sum_{i in u} s_i)^2

    and may come in whole units, all rows of one at once. If each row is its own
    unit, the variance of the sample and this one together are the larger of
    both variances.

    Args:
        away: terms of the sum less their means, `(n,)`.
        variance: that of each term by a hypothesis, `(n,)`.
        unit: ids of what is independent, `(n,)`; `None` for rows.
    """
    expected = float(variance.sum())
    seen = float(away @ away)
    if seen >= expected:
        return 0.0
    if unit is not None:
        of_unit = np.bincount(unit, np.sqrt(variance))
        return (1 - seen / expected) * float(of_unit @ of_unit)
    return expected - seen


def student_quantile(share, degrees):
    """What |t| is below in this share of cases; infinite without a degree.

    With `t = sqrt(degrees) tan(angle)` the density is that of
    `cos(angle) ** (degrees - 1)`.
    """
    if degrees < 1e-9:
        return math.inf
    if degrees > NORMAL:
        return statistics.NormalDist().inv_cdf((1 + share) / 2)
    # The middle of each of many parts, and what is below its end.
    ends = np.linspace(0, math.pi / 2, 20_001)
    middle = (ends[1:] + ends[:-1]) / 2
    below = np.cumsum(np.cos(middle) ** (degrees - 1))
    angle = np.interp(share, below / below[-1], ends[1:])
    return float(math.sqrt(degrees) * math.tan(angle))
