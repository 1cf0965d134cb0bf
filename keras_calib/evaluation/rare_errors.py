"""Intervals of statistics where few predictions are wrong, or few are right.

Resamples of rows that are all right are all right: the accuracy of each is 1,
and no loss of a wrong prediction is in their means. With fewer than `FEW` wrong
rows the interval of the error rate is therefore also Wilson's, and statistics
that grow with it follow it:

    low, high = value + d (rate_low - rate), value + d (rate_high - rate)

where `d` is what a wrong prediction adds: -1 to the accuracy, 1 to the
confidence gap, and to a loss what it adds by the predictions themselves, each
row by its probability of being wrong, or what the wrong rows did add, if that
is more. To an area under a curve of risks it is the mean of what the wrong rows
did add and of one more in a random place, which adds 1 (1/2 to the generalized
area). The interval goes to the farther of these ends and of the percentiles.
"""

import math
import statistics
from typing import NamedTuple

import numpy as np

from keras_calib.evaluation.named_errors import statistic_range
from keras_calib.inputs.arrays import TINY
from keras_calib.inputs.arrays import effective_num_samples
from keras_calib.ops.bin_errors import divide

# Of so many rows percentiles hold the true mean about as often as they should.
FEW = 10


class Rate(NamedTuple):
    """The part of rows that are wrong, and the ends of its interval.

    Attributes:
        value: float.
        low: float.
        high: float.
        wrong: how many rows are wrong; of dependent ones, how many units have
            such a row.
    """

    value: float
    low: float
    high: float
    wrong: float


def with_rare_errors(name, value, ends, data, level):
    """Ends of an interval, wider if few rows are wrong or right.

    Args:
        name: of any statistic; those without a part of labels keep their ends.
        value: float.
        ends: pair of floats, between percentiles.
        data: `Predictions`.
        level: nominal coverage.

    Returns:
        low, high: floats.
    """
    low, high = ends
    # A loss with soft labels is that of all of their entries.
    of_soft = name in LOSSES and data.targets is not None
    if name not in ADDED or of_soft or not math.isfinite(value):
        return low, high
    rate = error_rate(data, level)
    if rate is None:
        return low, high
    each = ADDED[name]
    if name in LOSSES:
        each = _added_loss(name, value, rate.value, data)
    elif name in RISKS:
        each = (divide(value, rate.value) * rate.wrong + each) / (
            rate.wrong + 1
        )
    away = sorted(each * (end - rate.value) for end in (rate.low, rate.high))
    limits = statistic_range(name, data.num_classes)
    farther = np.clip(value + np.array(away), *limits)
    return min(low, float(farther[0])), max(high, float(farther[1]))


def _added_loss(name, mean, rate, data):
    """What a wrong prediction adds to a loss, at most `ADDED`."""
    confidence = data.top_label[0].astype("float64")
    weights = data.weights
    weights = np.ones(len(confidence)) if weights is None else weights
    of_right, added = LOSSES[name](data, confidence)
    wrong = weights @ (1.0 - confidence)
    most = ADDED[name]
    # With confidences that are rounded to 1 the ratio has no digits.
    each = most * divide(weights @ added, max(wrong * most, weights @ added))
    if rate > 0:
        seen = mean - weights @ of_right / weights.sum()
        each = max(each, seen / rate)
    return min(float(each), most)


def error_rate(data, level):
    """`Rate` with Wilson's interval, or `None` if errors and hits are many.

    The interval is that of the part of units with an error (or hit), times the
    part of these units that is wrong (right): a row, if rows are independent.

    Reference:
        Wilson, "Probable Inference, the Law of Succession, and Statistical
        Inference", Journal of the American Statistical Association, 1927.
    """
    hits = np.asarray(data.top_label[1], "float64")
    weights = np.ones(len(hits)) if data.weights is None else data.weights
    parts = weights, weights * (1 - hits), weights * hits
    if data.unit is not None:
        parts = [np.bincount(data.unit, part) for part in parts]
    units, wrong, right = map(_number, parts)
    rare = min(wrong, right)
    if rare >= min(FEW, units / 2):
        return None
    total, each = parts[0].sum(), parts[1 if rare == wrong else 2]
    within = each.sum() / parts[0][each > 0].sum() if rare else 1.0
    share = each.sum() / total
    low, high = (within * end for end in wilson(share / within, units, level))
    if rare == wrong:
        return Rate(share, low, high, wrong)
    return Rate(1 - share, 1 - high, 1 - low, wrong)


def wilson(rate, number, level):
    """Ends of Wilson's interval of a rate among so many."""
    z = statistics.NormalDist().inv_cdf((1 + level) / 2)
    middle = (rate * number + z**2 / 2) / (number + z**2)
    spread = rate * (1 - rate) * number + z**2 / 4
    half = z * math.sqrt(spread) / (number + z**2)
    return max(0.0, middle - half), min(1.0, middle + half)


def _number(weights):
    """Of how many units; of unequal weights, as many as tell as much."""
    return effective_num_samples(weights) if weights.any() else 0.0


def _brier(data, confidence):
    squares = data.brier() + 2.0 * data.of_label(data.probabilities) - 1.0
    return squares - 2.0 * confidence + 1.0, 2.0 * (confidence - squares)


def _likelihood(data, confidence):
    log_confidence = data.log_probabilities.max(axis=1).astype("float64")
    return -log_confidence, data.entropy() + log_confidence


# The loss of each row if it is right; and what it adds in expectation that the
# row may be wrong: its mean by the prediction, minus the former.
LOSSES = {"brier_score": _brier, "negative_log_likelihood": _likelihood}
# What a wrong prediction in a random place adds to an area under risks.
RISKS = {
    "area_under_risk_coverage": 1.0,
    "excess_area_under_risk_coverage": 1.0,
    "area_under_generalized_risk_coverage": 0.5,
}
# What a wrong prediction adds to a statistic, at most to a loss.
ADDED = {
    **RISKS,
    "accuracy": -1.0,
    "confidence_gap": 1.0,
    "brier_score": 2.0,
    "negative_log_likelihood": -math.log(TINY),
}
