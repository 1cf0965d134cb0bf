"""`calibration_errors`: all errors of a data set, with intervals."""

import functools
from collections.abc import Collection
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_calib._printed_dict import PrintedDict
from keras_calib._typing import ArrayLike
from keras_calib.evaluation.by_group import by_group
from keras_calib.evaluation.clinical_statistics import clinical_statistics
from keras_calib.evaluation.drawn_floor import MOST_DRAWS
from keras_calib.evaluation.drawn_floor import drawn_floors
from keras_calib.evaluation.floor import LEVEL
from keras_calib.evaluation.floor import noise_floors
from keras_calib.evaluation.interval_ends import PERCENTILE
from keras_calib.evaluation.interval_ends import SYMMETRIC
from keras_calib.evaluation.interval_ends import TAKEN_OFF
from keras_calib.evaluation.interval_ends import UNBIASED
from keras_calib.evaluation.interval_ends import from_zero
from keras_calib.evaluation.interval_ends import interval_ends
from keras_calib.evaluation.named_errors import CLINICAL
from keras_calib.evaluation.named_errors import METRICS
from keras_calib.evaluation.named_errors import NAMES
from keras_calib.evaluation.named_errors import defined_for
from keras_calib.evaluation.named_errors import statistic_range
from keras_calib.evaluation.rare_errors import with_rare_errors
from keras_calib.evaluation.refinement import RANGES
from keras_calib.evaluation.refinement import refinement_statistics
from keras_calib.evaluation.replicates import Resamples
from keras_calib.inputs.arguments import is_one_of
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_fraction
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.arguments import require_positive
from keras_calib.inputs.label_rules import refuse_no_rows
from keras_calib.inputs.predictions import read_predictions

# Sets of labels for the floor of the ICI: its mean is known to 1 to 2 %.
PANEL_DRAWS = 1000
# Sets of labels that tell whether an error is within its floor.
BASIC_DRAWS = 200


class Estimate(float):
    """A number, with the ends of its interval as `low` and `high`.

    Args:
        value: the number itself.
        low: lower end of the interval.
        high: upper end of the interval.
    """

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> "Estimate":
        self = super().__new__(cls, value)
        self.low = low
        self.high = high
        return self

    def __getnewargs__(self):
        return float(self), self.low, self.high

    def __repr__(self):
        return f"{float(self):.6g} [{self.low:.6g}, {self.high:.6g}]"


def calibration_errors(
    labels: ArrayLike,
    probabilities: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    num_bins: int = 15,
    threshold: float = 0.01,
    from_logits: bool = False,
    axis: int = -1,
    ignore_class: int | None = None,
    metrics: Collection[str] | None = None,
    groups: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    num_resamples: int | None = None,
    confidence_level: float = 0.95,
    interval: str = "auto",
    floor: bool = False,
    max_seconds: float | None = None,
    refinement: bool = False,
    seed: int = 0,
    verbose: int | str = "auto",
) -> dict[str, Any]:
    """Compute all calibration errors of a set of predictions, exactly.

    All backends use NumPy with float64. A key without a suffix is the value of
    the metric class with this name and default arguments; `metrics/README.md`
    has the definitions.

    The bootstrap draws whole samples: with predictions of rank above 2, all
    pixels of an image or tokens of a text are drawn together, and with
    `clusters` all samples of a patient or document. Calibration errors have an
    upward bias, which resampling adds again, so that percentiles are too high.
    Those of binned errors, of the smooth error and of ICI, E50, E90 and Emax
    come from a grid bootstrap: the gaps are multiplied by a scale, the noise of
    the resamples is added, and the interval has the scales for which the value
    is no surprise; that of classwise errors is longer, as bins may have few
    rows. The sweep, label-binned and weighted overconfidence errors have the
    basic interval, which reflects the percentiles about the estimate. Debiased
    errors of norm 2 have that of what they debias. For norm 1, percentiles are
    moved by what the mean of the resamples is above the estimate. The
    calibration slope has half the width between percentiles on both sides. The
    calibration parts of `refinement` have the interval of their root near 0.
    Means, KS and kernel errors, the rest of the clinical panel and the other
    parts have the percentile interval; with fewer than ten wrong (or right)
    rows, that of means and of areas under risks is widened by Wilson's of the
    accuracy. Within the noise floor of a calibrated model an interval begins at
    0. Of rows that depend on each other it is not known: a lower end above 0 is
    then evidence of binned and smooth errors alone. Ends are within the range.

    Args:
        labels: class ids, `(...)`, or one-hot rows, `(..., num_classes)`. A
            distribution counts as its largest entry, except in the NLL and the
            Brier score. To compare with all of it, pass each prediction once
            for each class, with the probability of the class as its weight
            (`metrics/README.md`).
        probabilities: `(..., num_classes)`; `(..., 1)` or `(n,)` for one
            sigmoid unit. NumPy arrays or tensors.
        sample_weight: `None`, or weights that broadcast from the left.
        num_bins: int, number of bins.
        threshold: float, probabilities up to this value are ignored in
            `thresholded_adaptive_calibration_error` (TACE).
        from_logits: whether `probabilities` are logits.
        axis: the class axis.
        ignore_class: rows with this label are ignored.
        metrics: names to compute, or `None` for all but those that have to be
            named. Of selective prediction:
            `area_under_generalized_risk_coverage` (AUGRC), `coverage_at_risk`,
            the largest coverage with 5 % errors at most, and
            `risk_at_coverage`, the share of errors among the most confident
            80 %. Of the clinical panel, for class 1 of two:
            `calibration_slope`, `calibration_intercept`,
            `calibration_in_the_large`, `observed_expected_ratio`,
            `spiegelhalter_z`, `integrated_calibration_index`, `e50`, `e90` and
            `emax`; see `clinical_panel`. Errors of each class need a sort per
            class.
        groups: `None`, or ids for a table of errors by group, such as a site
            or an age band. Broadcasts as `sample_weight`.
        clusters: `None`, or ids of samples that depend on each other, such as
            those of one patient: the bootstrap draws all or none of them, and
            `kc.calibrate` would call them groups. Broadcasts as
            `sample_weight`.
        num_resamples: `None`, or number of resamples, e.g. 1000.
        confidence_level: float, nominal coverage of the intervals.
        interval: `"auto"` for the best one of each; or `"percentile"` or
            `"basic"` for all. Debiased errors are never reflected: with
            `"basic"` their percentiles are moved, see above.
        floor: whether to add the noise floor of each calibration error: what a
            perfectly calibrated model with these confidences would show.
        max_seconds: the floors of the ECE, the maximum and the adaptive error
            have a formula; for the others up to 1,000 sets of labels are
            drawn. `None` draws as many as take some seconds, by the size of the
            data. A number of seconds draws as many as it allows, so the result
            depends on the machine.
        refinement: whether to add what recalibration takes off the NLL and the
            Brier score, and lower bounds of calibration errors without bins;
            see below.
        seed: int; the same seed draws the same resamples and folds.
        verbose: `"auto"` for a progress bar after a few seconds, 1 for a bar
            at once, 0 for none.

    Returns:
        dict: name to float. With `num_resamples`, each float is an `Estimate`
        with attributes `low` and `high`, which are NaN for one sample, image or
        cluster, because that says nothing about others.
        `binary_calibration_error`, the error of the positive class, is computed
        for two classes only. With `floor=True`, `<name>_floor` is the mean of
        the floor of `<name>`, and 95 % of it lies between `<name>_floor_low`
        and `<name>_floor_high`. Where labels were drawn, `<name>_floor_draws`
        is the number of sets; with fewer than 40, both ends are NaN. With
        `groups`, the key `groups` has a dict from each id to the errors of its
        rows, with their number as `num_rows`; and `worst_group` a dict from
        each name to the id where it is worst. A group without a mistake, or
        without a hit, has an `auroc` of 0.5, and is not the worst by it. Errors
        over bins are larger in small groups also of calibrated models: with
        `floor=True` the group is taken whose error is farthest above its floor.

        With `refinement=True`, five folds (of whole images or texts) are
        recalibrated by the temperature that fits the others best. The keys are
        `refinement_loss`, the NLL that remains, and `calibration_loss`, what
        was taken off; `brier_refinement_loss` and `brier_calibration_loss`,
        the same of the Brier score, by the temperature of the NLL;
        `calibration_error_lower_bound`, at most the L1 error of the confidence
        in the mean over samples, and its parts
        `overconfidence_error_lower_bound` and
        `underconfidence_error_lower_bound`;
        `isotonic_calibration_error_lower_bound`, with isotonic regression in
        place of a temperature; `calibration_error_l2_lower_bound`, of the mean
        L2 distance between predictions and true probabilities. They can be
        negative, and are NaN for one sample, image or cluster, which leaves no
        other to recalibrate by. Resamples do not fit the recalibrations again,
        but for the calibration parts.

    Raises:
        ValueError: if the input is invalid, or no row counts.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> p = rng.dirichlet([1, 1, 1], size=2000)
        >>> labels = (p.cumsum(1) > rng.random((2000, 1))).argmax(1)
        >>> found = kc.metrics.calibration_errors(
        ...     labels, p, num_resamples=200, verbose=0
        ... )
        >>> error = found["expected_calibration_error"]
        >>> bool(error.low < error < error.high) and bool(error < 0.05)
        True

        >>> found = kc.metrics.calibration_errors(
        ...     labels, p, metrics=[], refinement=True
        ... )
        >>> bool(abs(found["calibration_loss"]) < 0.002)  # p is calibrated
        True

    Reference:
        For the bootstrap: Efron and Tibshirani, "An Introduction to the
        Bootstrap", 1993, Sections 13.3 and 13.4; on a grid: Hansen, Review of
        Economics and Statistics, 1999. For the noise floor: Broecker
        and Smith, "Increasing the Reliability of Reliability Diagrams", 2007,
        Section 3. For the refinement: Berta et al., "Rethinking Early
        Stopping: Refine, Then Calibrate", 2025, arXiv:2501.19195; for the
        lower bounds: arXiv:2602.24230, 2026.
    """
    check_bins_and_threshold(num_bins, threshold)
    names = check_names(metrics)
    require_flags(floor=floor, refinement=refinement)
    _check_intervals(num_resamples, confidence_level, interval, max_seconds)
    data = read_predictions(
        labels,
        probabilities,
        sample_weight,
        from_logits,
        axis,
        ignore_class,
        groups=groups,
        clusters=clusters,
    )
    refuse_no_rows(data)
    wanted = defined_for(data.num_classes, names)
    errors_of = functools.partial(
        errors_of_predictions,
        wanted=wanted,
        bins=(num_bins, threshold),
        num_resamples=num_resamples or 0,
        interval=(confidence_level, interval),
        floor=floor,
        refinement=refinement,
        max_seconds=_seconds_of_part(max_seconds, data),
        seed=seed,
        verbose=verbose,
    )
    errors = errors_of(data)
    if groups is not None:
        compared = [*wanted, *(RANGES if refinement else ())]
        errors |= by_group(data, compared, errors_of)
    return PrintedDict(errors)


def errors_of_predictions(
    data,
    wanted,
    *,
    bins=(15, 0.01),
    num_resamples=0,
    interval=(0.95, "auto"),
    floor=False,
    floors=None,
    refinement=False,
    max_seconds=None,
    max_draws=MOST_DRAWS,
    seed=0,
    verbose=0,
):
    """`calibration_errors` of `Predictions` with a row.

    With `floors`, a dict with their noise floors, basic intervals draw none.
    """
    passes, (level, kind) = 2 + data.num_classes, interval
    resamples = Resamples(
        data, num_resamples, seed, passes, verbose, scales=kind == "auto"
    )
    found = resamples.statistics(wanted, *bins)
    of_panel = [name for name in wanted if name in CLINICAL]
    panel, floor_of_index = clinical_statistics(
        data,
        of_panel,
        num_resamples,
        num_draws=min(max_draws, PANEL_DRAWS) if floor else 0,
        scales=kind == "auto",
        seed=seed,
        verbose=verbose,
    )
    found |= panel
    limits = {name: statistic_range(name, data.num_classes) for name in wanted}
    if refinement:
        limits |= RANGES
        found |= refinement_statistics(data, num_resamples, seed, verbose)
    errors = {}
    biased = [n for n in wanted if n not in UNBIASED and n not in CLINICAL]
    basic = _with_basic_intervals(kind, limits, biased)
    for name, ends in limits.items():
        errors[name] = float(found[name].flat[0])
        if resamples.number == 0:
            continue
        options = {"basic": name in basic, "limits": ends, "data": data}
        errors[name] = _estimate(name, found[name], interval, **options)
    draw = functools.partial(
        _floors, data, bins=bins, seed=seed, max_seconds=max_seconds
    )
    if floor:
        errors |= floor_of_index
        errors |= draw(wanted, max_draws=max_draws, verbose=verbose)
    from_floors = resamples.number and kind != "percentile"
    if from_floors and data.unit is None and data.units > 1:
        if floors is None:
            floors = errors
            if not floor or level != LEVEL:
                draws = max(BASIC_DRAWS, round(10 / (1 - level)))
                floors = draw(biased, max_draws=draws, level=level)
        errors |= {n: _from_zero(errors[n], floors, n) for n in biased}
    return errors


def _from_zero(error, floors, name):
    """An error with an interval that begins at 0 if chance explains it."""
    ends = from_zero((error.low, error.high), error, floors, name)
    return Estimate(float(error), *ends)


def _with_basic_intervals(kind, names, biased):
    if kind == "auto":
        return set(biased) - PERCENTILE | SYMMETRIC | TAKEN_OFF
    return set(names) if kind == "basic" else set()


def _floors(data, wanted, *, bins, seed, level=LEVEL, **options):
    """Noise floors of the wanted errors; see `drawn_floors` for options."""
    options |= {"seed": seed, "level": level}
    floors = noise_floors(data, wanted, bins[0], seed, level)
    return floors | drawn_floors(data, wanted, bins, **options)


def _seconds_of_part(max_seconds, data):
    """The time for all rows, and for each group of them."""
    if max_seconds is None or data.group is None:
        return max_seconds
    return max_seconds / (1 + len(np.unique(data.group)))


def check_bins_and_threshold(num_bins, threshold):
    """Raise `ValueError` if an argument is out of range."""
    require_integer(1, num_bins=num_bins)
    require_fraction(zero=True, threshold=threshold)


def check_names(metrics):
    """The names as a list; raise unless all are those of errors."""
    if metrics is not None and not isinstance(metrics, Iterable):
        raise ValueError(
            f"`metrics` must be a list of names. Received: metrics={metrics!r}."
        )
    names = list(METRICS if metrics is None else metrics)
    unknown = [each for each in names if not is_one_of(each, NAMES)]
    if unknown:
        raise ValueError(
            f"`metrics` must be names out of {NAMES}. Received: {unknown}."
        )
    return names


def _check_intervals(num_resamples, level, interval, max_seconds):
    if num_resamples is not None:
        require_integer(2, num_resamples=num_resamples)
    require_fraction(confidence_level=level)
    require_one_of(("auto", "percentile", "basic"), interval=interval)
    if max_seconds is not None:
        require_positive(max_seconds=max_seconds)


def _estimate(name, values, interval, *, basic, limits, data):
    value, (level, kind) = float(values.flat[0]), interval
    if data.units == 1:  # every resample is the sample
        return Estimate(value, np.nan, np.nan)
    ends = interval_ends(name, values, level, basic=basic)
    if basic and np.isfinite(value):
        ends = map(float, np.clip(ends, *limits))
    if kind == "auto":
        ends = with_rare_errors(name, value, ends, data, level)
    return Estimate(value, *ends)
