"""A report in words: what the numbers say, and what they cannot tell."""

import math

import numpy as np

from keras_calib.evaluation.gap_test import LEAST_UNITS
from keras_calib.evaluation.interval_ends import ROUNDING
from keras_calib.reporting._measure import LEVEL

ECE = "expected_calibration_error"
PARTS = ("overconfidence_error", "underconfidence_error")
OF_SECOND_CLASS = "binary_calibration_error"
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


def _over_or_under(measured):
    """Over- or underconfident, or not to be told from calibrated."""
    if not _shown(measured):
        return _nothing_shown(measured)
    error, gap = measured.metrics[ECE], measured.metrics["confidence_gap"]
    above = (
        f"the ECE of {error['value']:.4f} is above what a calibrated model has "
        f"({_floor(error)})"
    )
    if not _gap_shown(gap):
        # Of a few rows the gap is not told from 0, whatever it is.
        parts = [measured.metrics[name] for name in PARTS]
        both = ", in both directions" * all(map(_above_floor, parts))
        return f"Miscalibrated{both}: {above}. {_means(measured)}."
    kind = "Overconfident" if gap["value"] > 0 else "Underconfident"
    ends = sorted(abs(gap[end]) for end in ("low", "high"))
    found = (
        f"{kind} by {100 * abs(gap['value']):.1f} points (95 %: "
        f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f})"
    )
    if measured.dependent:
        return f"{found}. {_of_dependent(error)}"
    return f"{found}; {above}."


def _nothing_shown(measured):
    """What is said where chance may explain all, or too few are there."""
    error = measured.metrics[ECE]
    if measured.dependent:
        few = measured.num_units < LEAST_UNITS
        found = (
            "Too few images or texts to tell over- or underconfidence, which "
            f"takes {LEAST_UNITS}, as for a class (here: {measured.num_units})"
            if few
            else "No over- or underconfidence can be shown (p = "
            f"{measured.gap_p_value:.3f})"
        )
        means = _means(measured, interval=not few)
        return f"{found}. {means}. {_of_dependent(error)}"
    samples = "sample" if measured.num_rows == 1 else "samples"
    found = (
        f"the ECE of {error['value']:.4f} is what a calibrated model has "
        f"on {measured.num_rows:,} {samples} ({_floor(error)})"
    )
    # What one class is overconfident by, another may be underconfident by.
    if _class_by_no_chance(measured) is None:
        return f"No miscalibration can be shown: {found}."
    return (
        f"Miscalibrated in its classes, though not in all together: {found}"
        f"{_of_second_class(measured)}."
    )


def _means(measured, interval=True):
    """Confidence and accuracy, and where their difference is, if known."""
    gap = measured.metrics["confidence_gap"]
    confidence, accuracy = (
        _percent(measured.metrics[name]["value"])
        for name in ("mean_confidence", "accuracy")
    )
    words = f"Mean confidence is {confidence}, accuracy {accuracy}"
    if not interval or gap["low"] is None:
        return words
    value, low, high = (100 * gap[key] for key in ("value", "low", "high"))
    return (
        f"{words}: a difference of {value:.1f} points (95 %: {low:.1f} to "
        f"{high:.1f})"
    )


def _shown(measured):
    """Whether miscalibration is more than chance.

    Rows of one image depend on each other. What the ECE of a calibrated model
    is then is not known, and the gap alone can tell, which has an interval and
    a test of whole images.
    """
    if measured.dependent:
        seen = _gap_shown(measured.metrics["confidence_gap"])
        return seen and measured.gap_p_value <= LEVEL
    return _above_floor(measured.metrics[ECE])


def _above_floor(error):
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
    if math.isnan(gain):
        return (
            "Whether temperature scaling would help cannot be told: it takes "
            "at least two samples, images or texts to leave some out."
        )
    # One parameter costs about 1 / (2 n) on other samples.
    costs = gain <= 1 / found["num_units"]
    if costs and gain < LEAST_GAIN:
        return (
            "Temperature scaling would not help: on left-out samples it "
            f"changes the NLL of {nll:.4f} by {-gain:+.4f}."
        )
    if costs or not found["shown"]:
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
