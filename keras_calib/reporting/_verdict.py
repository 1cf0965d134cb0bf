"""A report in words: what the numbers say, and what they cannot tell."""

import math

import numpy as np

from keras_calib.evaluation.interval_ends import ROUNDING
from keras_calib.evaluation.mean_interval import mean_interval
from keras_calib.evaluation.null_variance import difference_variance
from keras_calib.reporting._measure import LEVEL

ECE = "expected_calibration_error"
OF_SECOND_CLASS = "binary_calibration_error"
# Of the normal distribution: what is exceeded in one of five cases.
POWER_QUANTILE = 0.8416
# NLL of float32 predictions, in nats.
SAME = 1e-5
# Nobody collects so many times as many samples.
MOST_TIMES = 100
# A bin with less of the error is not worth a sentence.
LEAST_SHARE = 0.25
# Less off the NLL, in nats, is no reason to do anything.
LEAST_GAIN = 0.002


def verdict(measured):
    """Sentences about one model.

    Args:
        measured: `Measured`.

    Returns:
        list of str.
    """
    return [
        _over_or_under(measured),
        *_where(measured),
        _temperature(measured),
        *_class(measured),
        *_group(measured),
        *_of_soft_labels(measured),
    ]


def comparison(measured, predictions):
    """A sentence about each model and the one with the lowest NLL.

    That one is chosen on the same samples, so the intervals hold for all pairs
    of models together.

    Args:
        measured: list of `Measured`.
        predictions: list of `Predictions`, of the same rows.

    Returns:
        list of str; empty for one model.
    """
    if len(measured) < 2:
        return []
    losses = [each.negative_log_likelihood() for each in predictions]
    means = [m.metrics["negative_log_likelihood"]["value"] for m in measured]
    best = int(np.argmin(means))
    pairs = math.comb(int(np.isfinite(means).sum()), 2)
    sentences = []
    for i, other in enumerate(measured):
        if i == best:
            continue
        name = measured[best].name
        if not np.isfinite(means[i]):
            sentences.append(_of_infinite(name, means[best], other.name))
            continue
        difference = losses[i] - losses[best]
        if np.allclose(difference, 0, atol=SAME):
            sentences.append(
                f"{name} and {other.name} give all labels the same "
                "probability, but for rounding."
            )
            continue
        found = mean_interval(
            difference,
            predictions[best],
            1 - LEVEL / pairs,
            difference_variance(predictions[best], predictions[i]),
        )
        level = "95 %" if pairs == 1 else "95 % for all pairs"
        n = len(difference)
        sentences.append(_of_pair(name, other.name, found, n, level))
    return sentences


def _of_pair(best, other, found, n, level):
    if not np.isfinite(found.quantile):
        return (
            f"These samples cannot tell {best} from {other}: they are all of "
            "one unit, an image or a text, and nothing tells how much the "
            "difference varies."
        )
    mean, ends = found.mean, f"{found.low:.4f} to {found.high:.4f}"
    if found.low > 0:
        return (
            f"{best} predicts better than {other}: its NLL is lower by "
            f"{mean:.4f} ({level}: {ends})."
        )
    return (
        f"These samples cannot tell {best} from {other}: their NLL differs by "
        f"{mean:.4f}, with an interval ({level}) from {ends}. "
        + _samples_to_tell(mean, found.error, found.quantile, n)
    )


def _of_infinite(best, value, other):
    """Of two models, one or both of which rule out what then came."""
    if np.isfinite(value):
        return (
            f"{best} predicts better than {other}, whose NLL is infinite: it "
            "gives a label the probability 0."
        )
    return (
        f"The NLL cannot tell {best} from {other}: it is infinite for both, "
        "which give a label the probability 0."
    )


def _samples_to_tell(mean, error, quantile, n):
    """How many more samples would tell two models apart."""
    times = times_as_many(mean, error, quantile)
    if times > MOST_TIMES:
        return (
            "If the true difference is as small, not even "
            f"{MOST_TIMES} times as many samples would tell."
        )
    more = _two_digits(n * (times - 1))
    return (
        f"If the true difference is as large, {more:,} more samples would "
        "tell in four of five cases."
    )


def times_as_many(mean, error, quantile):
    """Samples with which four of five intervals leave out zero, as a factor.

    The standard error falls with the root of the number of samples. It must
    fall to mean / (quantile + z_.8), if the true difference is `mean`.

    Args:
        mean: difference that was found, at least 0.
        error: its standard error.
        quantile: standard errors from the middle of an interval to its ends.
    """
    if mean <= 0:
        return np.inf
    return ((quantile + POWER_QUANTILE) * error / mean) ** 2


def _two_digits(number):
    """A whole number of two significant digits."""
    return int(float(f"{number:.1e}"))


def _over_or_under(measured):
    """Over- or underconfident, or not to be told from calibrated."""
    error, gap = measured.metrics[ECE], measured.metrics["confidence_gap"]
    if not _shown(measured):
        if measured.dependent:
            return (
                "No over- or underconfidence can be shown: mean confidence and "
                f"accuracy agree. {_of_dependent(error)}"
            )
        found = (
            f"the ECE of {error['value']:.4f} is what a calibrated model has "
            f"on {measured.num_rows:,} samples ({_floor(error)})"
        )
        # What one class is overconfident by, another may be underconfident by.
        if _class_by_no_chance(measured) is None:
            return f"No miscalibration can be shown: {found}."
        return (
            f"Miscalibrated in its classes, though not in all together: {found}"
            f"{_of_second_class(measured)}."
        )
    above = (
        f"the ECE of {error['value']:.4f} is above what a calibrated model has "
        f"({_floor(error)})"
    )
    if not _gap_shown(gap):
        return (
            "Miscalibrated, in both directions: mean confidence and accuracy "
            f"agree, but {above}."
        )
    kind = "Overconfident" if gap["value"] > 0 else "Underconfident"
    ends = sorted(abs(gap[end]) for end in ("low", "high"))
    found = (
        f"{kind} by {100 * abs(gap['value']):.1f} points (95 %: "
        f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f})"
    )
    if measured.dependent:
        return f"{found}. {_of_dependent(error)}"
    return f"{found}; {above}."


def _shown(measured):
    """Whether miscalibration is more than chance.

    Rows of one image depend on each other. What the ECE of a calibrated model
    is then is not known, and the gap alone can tell, which has an interval and
    a test of whole images.
    """
    if measured.dependent:
        seen = _gap_shown(measured.metrics["confidence_gap"])
        return seen and measured.gap_p_value <= LEVEL
    error = measured.metrics[ECE]
    return error["value"] > error["floor_high"] + ROUNDING


def _of_second_class(measured):
    error = measured.metrics.get(OF_SECOND_CLASS)
    if not error:
        return ""
    return (
        f"; that of the probability of the second class is "
        f"{error['value']:.4f}, and {_floor(error)} if it is calibrated"
    )


def _gap_shown(gap):
    return gap["low"] is not None and not gap["low"] <= 0 <= gap["high"]


def _floor(error):
    low, high = error["floor_low"], error["floor_high"]
    return f"{low:.4f} to {high:.4f} in 95 % of cases"


def _of_dependent(error):
    return (
        f"The ECE is {error['value']:.4f}; a calibrated model with independent "
        f"rows has {_floor(error)}, and one whose rows depend on each other, "
        "as here, more."
    )


def _where(measured):
    """The bin that has the most of the error."""
    if not _shown(measured):
        return []
    error = measured.metrics[ECE]
    parts = [
        row["fraction"] * abs(row["confidence"] - row["accuracy"])
        for row in measured.bins
    ]
    row = measured.bins[int(np.argmax(parts))]
    share = max(parts) / error["value"]
    if share < LEAST_SHARE:
        return []
    return [
        f"{_percent(share, 0)} of that error comes from confidences between "
        f"{row['low']:.2f} and {row['high']:.2f}, which "
        f"{_percent(row['fraction'], 0)} of the samples have: "
        f"{_says(row)}."
    ]


def _temperature(measured):
    """What temperature scaling would do, unless the NLL is infinite."""
    if measured.num_impossible:
        return (
            f"The NLL is infinite: {measured.num_impossible:,} of "
            f"{measured.num_rows:,} rows give the probability 0 to their "
            "label. If that is rounding, pass logits."
        )
    found = measured.temperature
    nll = measured.metrics["negative_log_likelihood"]["value"]
    error, floor = (measured.metrics[ECE][key] for key in ("value", "floor"))
    gain = found["gain"]
    # One parameter costs about 1 / (2 n) on other samples.
    if gain <= 1 / found["num_units"]:
        return (
            "Temperature scaling would not help: on left-out samples it "
            f"changes the NLL of {nll:.4f} by {-gain:+.4f}."
        )
    if not found["shown"]:
        return (
            "That temperature scaling would help cannot be shown: on left-out "
            f"samples it takes {gain:.4f} off the NLL of {nll:.4f}, which may "
            "be chance."
        )
    sentence = (
        f"A temperature of {found['value']:.2f} takes {gain:.4f} off the NLL "
        f"of {nll:.4f} (on left-out samples)"
    )
    if gain < LEAST_GAIN:
        return f"{sentence}, which is hardly anything."
    after, floor_after = found["error_after"], found["floor_after"]
    if error > floor and after < error:
        removed = 1 - max(after - floor_after, 0.0) / (error - floor)
        sentence += (
            f" and {_percent(max(removed, 0.0), 0)} off the part of the ECE "
            f"above its floor ({error:.4f} to {after:.4f})"
        )
    return sentence + ": see `kc.calibrate`."


def _class(measured):
    """The predicted class that is farthest off, of those by no chance."""
    row = _class_by_no_chance(measured)
    if row is None:
        return []
    return [
        f"Farthest off when it predicts class {row['name']} "
        f"({row['num_predicted']:,} times): {_says(row)}."
    ]


def _group(measured):
    if not measured.groups:
        return []
    if measured.dependent:
        return [
            "Which groups are worse than others by more than chance is not "
            "told: their rows depend on each other."
        ]
    row = _by_no_chance(measured.groups, LEVEL)
    if row is None:
        return ["In no group can miscalibration be shown by its ECE."]
    return [
        f"Worst in group {row['group']} ({row['num_rows']:,} samples): ECE "
        f"{row[ECE]:.4f} (floor {row[f'{ECE}_floor']:.4f}), confidence "
        f"{_percent(row['mean_confidence'])}, accuracy "
        f"{_percent(row['accuracy'])}."
    ]


def _of_soft_labels(measured):
    if not measured.soft_labels:
        return []
    return [
        "Labels are distributions: accuracy and errors of the predicted class "
        "take the largest entry of each as its label, NLL and Brier score the "
        "whole row. The two need not agree."
    ]


def _class_by_no_chance(measured):
    """The first class that chance does not explain.

    The ECE of a calibrated model is above its range in 2.5 % of reports. Where
    it is not, the first sentence rests on classes, which have the other 2.5 %.
    """
    rests = not measured.dependent and not _shown(measured)
    return _by_no_chance(measured.classes, LEVEL / 2 if rests else LEVEL)


def _by_no_chance(rows, level):
    """The first row that chance explains in at most this share of reports.

    Of so many rows any may be off by chance (Bonferroni's bound).
    """
    level /= max(len(rows), 1)
    return next((row for row in rows if row["p_value"] <= level), None)


def _says(row):
    return (
        f"it says {_percent(row['confidence'])} and is right "
        f"{_percent(row['accuracy'])} of the time"
    )


def _percent(value, digits=1):
    return f"{100 * value:.{digits}f} %"
