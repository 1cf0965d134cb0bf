"""Every number of a report: errors, intervals, floors, groups, classes."""

import dataclasses
import functools
from typing import Any

import numpy as np

from keras_calib.evaluation.by_group import by_group
from keras_calib.evaluation.calibration_errors import errors_of_predictions
from keras_calib.evaluation.cell_resamples import intervals_by_cells
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.floor import residual_draws
from keras_calib.evaluation.gap_test import LEAST_UNITS
from keras_calib.evaluation.gap_test import gap_p_value
from keras_calib.evaluation.interval_ends import UNBIASED
from keras_calib.evaluation.interval_ends import from_zero
from keras_calib.evaluation.mean_interval import mean_interval
from keras_calib.evaluation.named_errors import BINARY
from keras_calib.evaluation.named_errors import MEANS
from keras_calib.evaluation.named_errors import TOP_LABEL
from keras_calib.evaluation.named_errors import defined_for
from keras_calib.evaluation.named_errors import statistic_range
from keras_calib.evaluation.null_variance import loss_variance
from keras_calib.evaluation.rare_errors import with_rare_errors
from keras_calib.evaluation.refinement import at_temperature
from keras_calib.evaluation.refinement import best_temperature
from keras_calib.inputs.arguments import generator
from keras_calib.inputs.arrays import TINY
from keras_calib.ops.bin_errors import divide
from keras_calib.reporting._clinical import measure_panel

NUM_BINS = 15
# Errors of the predicted class of more rows are resampled in cells.
LARGE = 10_000
# Sets of labels for floors without a formula: their mean is known to 1 to 5 %.
FLOOR_DRAWS = 200
# Draws at a time for the p-value of a group.
GROUP_DRAWS = 10_000
# Of all tests of a report that are of one kind.
LEVEL = 0.05
# Classes and groups with fewer rows say little.
FEWEST = 20
QUANTILE = 1.96
UNITS = "whole images or texts"
GAP = "confidence_gap"


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a report says about one model.

    Attributes:
        name: that of the model.
        num_rows: how many rows count.
        num_classes: int.
        num_impossible: how many rows give the probability 0 to their label,
            so that the NLL is infinite.
        metrics: dict from name to a dict of `value`, `low`, `high` (a 95 %
            interval, or `None`), `floor`, `floor_low` and `floor_high` (or
            `None`).
        intervals: in words, where the intervals come from.
        temperature: dict of `value`, the temperature with the least NLL on
            these rows, `error_after`, the ECE at it, `gain`, what it takes off
            the NLL of left-out rows, `refinement`, what is left (both NaN for
            one sample, image or text), `shown`, whether another temperature
            than 1 is no chance, and `num_units`, how many independent rows of
            equal weight tell as much.
        classes: rows of a table by predicted class, the farthest off first.
        groups: rows of a table by group, the worst first; or `None`.
        bins: dicts of the bins of the reliability diagram that are not empty.
        dependent: whether several rows are of one image, text or cluster.
        soft_labels: whether labels are distributions over the classes.
        gap_p_value: of the gap between mean confidence and accuracy, if rows
            are dependent.
        clinical_panel: of two classes, what `kc.metrics.clinical_panel` has
            for class 1, and `notes`, sentences; else `None`.
        num_units: how many images, texts or clusters there are, or rows if they
            are independent.
    """

    name: str
    num_rows: int
    num_classes: int
    num_impossible: int
    metrics: dict[str, dict[str, float | None]]
    intervals: str
    temperature: dict[str, Any]
    classes: list[dict[str, Any]]
    groups: list[dict[str, Any]] | None
    bins: list[dict[str, float]]
    dependent: bool
    soft_labels: bool
    gap_p_value: float | None
    clinical_panel: dict[str, Any] | None
    num_units: int


def measure(
    name,
    data,
    *,
    num_resamples,
    class_names=None,
    thresholds=None,
    seed=0,
    verbose=0,
):
    """`Measured` of the `Predictions` of one model."""
    wanted = defined_for(data.num_classes)
    if np.isinf(data.negative_log_likelihood()).any():
        # No temperature makes up for a logit of minus infinity. Probabilities
        # of 0 are taken for the smallest ones.
        data = dataclasses.replace(data, logits=None)
    found = errors_of_predictions(
        data,
        wanted,
        floor=True,
        max_draws=FLOOR_DRAWS,
        refinement=True,
        seed=seed,
        verbose=verbose,
    )
    ends, words = _intervals(data, found, wanted, num_resamples, seed)
    if data.unit is not None and GAP in ends:
        ends[GAP] = _wide_enough(ends[GAP], data)
    metrics = {}
    for key in wanted:
        low, high = ends.get(key, (None, None))
        metrics[key] = {
            "value": found[key],
            "low": low,
            "high": high,
            "floor": found.get(f"{key}_floor"),
            "floor_low": found.get(f"{key}_floor_low"),
            "floor_high": found.get(f"{key}_floor_high"),
        }
    return Measured(
        name=name,
        num_rows=len(data.labels),
        num_classes=data.num_classes,
        num_impossible=_num_impossible(data, found),
        metrics=metrics,
        intervals=words,
        temperature=_temperature(data, found),
        classes=_classes(data, class_names),
        groups=None if data.group is None else _groups(data),
        bins=_bins(data),
        dependent=data.unit is not None,
        soft_labels=data.targets is not None,
        gap_p_value=None
        if data.unit is None
        else gap_p_value(*data.top_label, data.weights, data.unit),
        clinical_panel=measure_panel(data, thresholds, seed),
        num_units=data.units,
    )


def _intervals(data, found, wanted, num_resamples, seed):
    """Both ends for each name, and in words how they were found."""
    if data.units == 1:
        return {}, "none for one sample, image or text"
    means = [n for n in wanted if n in MEANS]
    errors = [n for n in wanted if n in TOP_LABEL or n in BINARY]
    if len(data.labels) > LARGE:
        errors = [n for n in errors if n in TOP_LABEL]
        return _large_intervals(data, found, means, errors, num_resamples, seed)
    drawn = errors_of_predictions(
        data,
        [*means, *errors],
        num_resamples=num_resamples,
        floors=found,
        seed=seed,
    )
    ends = {name: (e.low, e.high) for name, e in drawn.items()}
    unit = "samples" if data.unit is None else UNITS
    return ends, f"bootstrap of {unit}, {num_resamples:,} resamples"


def _wide_enough(ends, data):
    """The interval of the gap, as wide as its test by units has it.

    Resamples of nearly equal units are nearly equal.
    """
    confidence, correct = data.top_label
    confidence = confidence.astype("float64")
    variance = confidence * (1 - confidence)
    gap = mean_interval(confidence - correct, data, 1 - LEVEL, variance)
    return min(ends[0], gap.low), max(ends[1], gap.high)


def _large_intervals(data, found, means, errors, num_resamples, seed):
    """Intervals for more than `LARGE` rows; see `_intervals`."""
    # An infinite mean has no distance from its ends.
    means = [n for n in means if np.isfinite(found[n])]
    by_cells = functools.partial(
        intervals_by_cells,
        data,
        bins=(NUM_BINS, 0.01),
        num_resamples=num_resamples,
        seed=seed,
    )
    if data.unit is not None:
        away = by_cells([*means, *errors])
        words = (
            f"bootstrap of {UNITS}, {num_resamples:,} resamples; errors of the "
            "predicted class: rows summed in 4,096 cells of neighboring "
            "confidences"
        )
    else:
        away = {n: _normal(MEANS[n](data), data.weights) for n in means}
        words = "means: normal; other errors: none for so many rows"
        if data.weights is None:
            away |= by_cells(errors)
            words = (
                "means: normal; errors of the predicted class: bootstrap of "
                "4,096 cells of neighboring confidences, "
                f"{num_resamples:,} resamples"
            )
    limits = {name: statistic_range(name, data.num_classes) for name in away}
    ends = {
        name: tuple(np.clip(found[name] + np.array(pair), *limits[name]))
        for name, pair in away.items()
    }
    for name in ends.keys() - UNBIASED if data.unit is None else ():
        ends[name] = from_zero(ends[name], found[name], found, name)
    for name, pair in ends.items():
        ends[name] = with_rare_errors(name, found[name], pair, data, 1 - LEVEL)
    return ends, words


def _normal(values, weights):
    """Distances of both ends of the interval of a mean."""
    weights = np.ones(len(values)) if weights is None else weights
    weights = weights / weights.sum()
    away = values - weights @ values
    width = QUANTILE * np.sqrt((weights**2) @ away**2)
    return -width, width


def _num_impossible(data, found):
    """How many rows have an infinite NLL."""
    if np.isfinite(found["negative_log_likelihood"]):
        return 0
    return int(np.isinf(data.negative_log_likelihood()).sum())


def _temperature(data, found):
    fit = best_temperature(data)
    after = at_temperature(data, fit.temperature)
    key = "expected_calibration_error"
    at_best = errors_of_predictions(after, [key], floor=True)
    # The mean entropy minus the NLL is the slope of the NLL in log T at 1.
    losses = np.minimum(data.negative_log_likelihood(), -np.log(TINY))
    slope = mean_interval(
        data.entropy() - losses, data, 1 - LEVEL, loss_variance(data)
    )
    few = data.unit is not None and data.units < LEAST_UNITS
    return {
        "value": float(fit.temperature),
        "error_after": at_best[key],
        "floor_after": at_best[f"{key}_floor"],
        "gain": found["calibration_loss"],
        "refinement": found["refinement_loss"],
        "shown": not few and not slope.low <= 0 <= slope.high,
        "num_units": slope.num_units,
    }


def _classes(data, class_names):
    """Confidence and accuracy by predicted class, the farthest off first."""
    confidence, correct = data.top_label
    predicted = data.probabilities.argmax(axis=1)
    number = np.bincount(predicted, minlength=data.num_classes)
    weights = np.ones(len(predicted)) if data.weights is None else data.weights
    total = np.bincount(predicted, weights, data.num_classes)
    confidence = confidence.astype("float64")
    variance = weights**2 * confidence * (1 - confidence)
    sums = [
        np.bincount(predicted, values, data.num_classes)
        for values in (weights * confidence, weights * correct, variance)
    ]
    rows = []
    by_class = np.split(np.argsort(predicted, kind="stable"), number.cumsum())
    for k in np.flatnonzero(number):
        mean, accuracy, spread = (s[k] / total[k] for s in sums)
        error = np.sqrt(spread / total[k])
        own = by_class[k]
        chance = gap_p_value(
            confidence[own],
            correct[own],
            None if data.weights is None else weights[own],
            None if data.unit is None else data.unit[own],
        )
        rows.append(
            {
                "class": int(k),
                "name": str(k) if class_names is None else class_names[k],
                "num_predicted": int(number[k]),
                "confidence": float(mean),
                "accuracy": float(accuracy),
                "gap": float(mean - accuracy),
                # Of the gap of a calibrated model.
                "standard_error": float(error),
                # Of a gap as large as this one.
                "p_value": chance,
            }
        )

    def badness(row):
        return abs(row["gap"]) - 2 * row["standard_error"]

    rows = [row for row in rows if row["num_predicted"] >= FEWEST] or rows
    return sorted(rows, key=badness, reverse=True)


def _groups(data):
    """Errors by group, the worst first: the ECE farthest above its floor."""
    names = [
        "accuracy",
        "mean_confidence",
        "expected_calibration_error",
        "negative_log_likelihood",
    ]
    key = "expected_calibration_error"

    def errors_of(part):
        found = errors_of_predictions(part, names, floor=True)
        chance = _chance_of_error(part, found[key], level)
        return {**found, "p_value": chance}

    level = LEVEL / len(np.unique(data.group))
    table = by_group(data, names, errors_of)["groups"]
    rows = [{"group": str(group), **found} for group, found in table.items()]
    return sorted(
        rows, key=lambda row: row[key] - row[f"{key}_floor"], reverse=True
    )


def _chance_of_error(data, error, level):
    """The p-value of an ECE, by draws of its noise floor.

    As long as none exceeds it, there are more draws, until it is below `level`.
    """
    events = sort_events(*data.top_label, data.weights)
    bins = events.bins(events.width_cuts(NUM_BINS))
    rng, exceeded, number = generator(0), 0, 0
    while not number or (not exceeded and 1 / (1 + number) > level):
        drawn, _, _ = residual_draws(bins, GROUP_DRAWS, rng)
        drawn = divide(drawn.sum(axis=1), bins.total)
        exceeded += np.count_nonzero(drawn >= error * (1 - 1e-6))
        number += GROUP_DRAWS
    return (1 + exceeded) / (1 + number)


def _bins(data):
    """The bins of the reliability diagram that are not empty."""
    events = sort_events(*data.top_label, data.weights)
    bins = events.bins(events.width_cuts(NUM_BINS))
    return [
        {
            "low": b / NUM_BINS,
            "high": (b + 1) / NUM_BINS,
            "fraction": float(bins.weight[b] / bins.total),
            "confidence": float(bins.confidence[b]),
            "accuracy": float(bins.accuracy[b]),
        }
        for b in np.flatnonzero(bins.weight)
    ]
