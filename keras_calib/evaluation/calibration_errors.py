"""Every calibration error of a prediction set, from one sort per class."""

import time

import keras
import numpy as np

from keras_calib.evaluation import binless
from keras_calib.evaluation.binned import binned_error
from keras_calib.evaluation.binned import confidence_weighted
from keras_calib.evaluation.binned import debiased_absolute_error
from keras_calib.evaluation.binned import debiased_error
from keras_calib.evaluation.binned import label_binned_error
from keras_calib.evaluation.binned import over_and_under
from keras_calib.evaluation.binned import sweep
from keras_calib.evaluation.events import Events
from keras_calib.evaluation.events import sort_events
from keras_calib.inputs.predictions import read_predictions

INFINITY = float("inf")
# How many numbers a table of replicates may hold at a time.
TABLE = 1 << 22

TOP_LABEL = (
    "expected_calibration_error",
    "expected_calibration_error_l2",
    "maximum_calibration_error",
    "adaptive_calibration_error",
    "adaptive_calibration_error_l2",
    "label_binned_calibration_error",
    "label_binned_calibration_error_l1",
    "debiased_calibration_error",
    "debiased_calibration_error_l1",
    "sweep_calibration_error",
    "ks_calibration_error",
    "smooth_calibration_error",
    "kernel_calibration_error",
    "overconfidence_error",
    "underconfidence_error",
    "weighted_overconfidence_error",
    "area_under_risk_coverage",
    "excess_area_under_risk_coverage",
    "auroc",
)
MEANS = (
    "confidence_gap",
    "mean_confidence",
    "accuracy",
    "brier_score",
    "negative_log_likelihood",
    "mean_entropy",
)
CLASSWISE = (
    "classwise_calibration_error",
    "classwise_calibration_error_l2",
    "classwise_adaptive_calibration_error",
    "marginal_calibration_error",
    "thresholded_adaptive_calibration_error",
    "debiased_marginal_calibration_error",
)
BINARY = ("binary_calibration_error",)
METRICS = TOP_LABEL + MEANS + CLASSWISE + BINARY


class Estimate(float):
    """A number, with the ends of its interval as `low` and `high`.

    Args:
        value: the number itself.
        low: lower end of the interval.
        high: upper end of the interval.
    """

    def __new__(cls, value, low, high):
        self = super().__new__(cls, value)
        self.low = low
        self.high = high
        return self

    def __getnewargs__(self):
        return float(self), self.low, self.high

    def __repr__(self):
        return f"{float(self):.6g} [{self.low:.6g}, {self.high:.6g}]"


def calibration_errors(
    labels,
    probabilities,
    sample_weight=None,
    num_bins=15,
    threshold=0.01,
    from_logits=False,
    axis=-1,
    ignore_class=None,
    metrics=None,
    num_resamples=None,
    confidence_level=0.95,
    interval="percentile",
    seed=0,
    verbose="auto",
):
    """Every calibration error of a set of predictions, exact.

    In NumPy and float64, whatever the backend. Keys without a suffix are the
    values of the metric class of that name with its default arguments;
    `metrics/README.md` gives each definition.

    A bootstrap draws whole samples: for predictions of rank above 2 all pixels
    of an image, or tokens of a text, go together. Binned errors are biased
    upwards, and those of a resample once more, so that a percentile interval
    lies too high; `interval="basic"` reflects it at the value, which takes
    that bias out again, and keeps it in the range of the statistic.

    Args:
        labels: class ids, `(...)`, or one-hot rows, `(..., num_classes)`.
        probabilities: `(..., num_classes)`; `(..., 1)` or `(n,)` for one
            sigmoid unit. NumPy arrays or tensors.
        sample_weight: `None`, or weights that broadcast from the left.
        num_bins: int, how many bins.
        threshold: probabilities up to this do not count in
            `thresholded_adaptive_calibration_error` (TACE).
        from_logits: whether `probabilities` are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        metrics: names to compute; `None` for all. Those that look at each
            class cost a sort per class.
        num_resamples: `None`, or how many resamples; 1000 is usual.
        confidence_level: float, how often the interval is to hold the truth.
        interval: `"percentile"` or `"basic"`.
        seed: int; the same seed draws the same resamples.
        verbose: `"auto"` for a progress bar when a bootstrap takes more than
            a few seconds, 1 for a bar at once, 0 for silence.

    Returns:
        dict: name to float. With `num_resamples`, each float is an `Estimate`
        with attributes `low` and `high`. Without samples, all errors are 0
        and `auroc` is 0.5. `binary_calibration_error`, that of the positive
        class, is there for two classes only.

    Raises:
        ValueError: for bad input.

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

    Reference:
        For the bootstrap: Efron and Tibshirani, "An Introduction to the
        Bootstrap", 1993, sections 13.3 and 13.4.
    """
    _check(
        num_bins, threshold, metrics, num_resamples, confidence_level, interval
    )
    data = read_predictions(
        labels, probabilities, sample_weight, from_logits, axis, ignore_class
    )
    wanted = METRICS if metrics is None else tuple(metrics)
    wanted = [
        name for name in wanted if name not in BINARY or data.num_classes == 2
    ]
    draws = _Draws(data, num_resamples, seed, verbose)
    found = {}
    if not set(TOP_LABEL).isdisjoint(wanted):
        found |= draws.run(
            *data.top_label, lambda e: top_label_errors(e, num_bins, wanted)
        )
    if not set(MEANS).isdisjoint(wanted):
        found |= _means(data, draws, set(wanted))
    if not set(CLASSWISE).isdisjoint(wanted):
        found |= _classwise(data, draws, num_bins, threshold, wanted)
    if not set(BINARY).isdisjoint(wanted):
        found |= draws.run(
            data.by_class[1],
            data.labels == 1,
            lambda e: binary_errors(e, num_bins),
        )
    draws.finish()
    if not num_resamples:
        return {name: float(found[name][0]) for name in wanted}
    return {
        name: _estimate(
            found[name], confidence_level, interval, name, data.num_classes
        )
        for name in wanted
    }


def _check(num_bins, threshold, metrics, num_resamples, level, interval):
    if num_bins < 1 or not 0 <= threshold < 1:
        raise ValueError(
            "`num_bins` must be at least 1 and `threshold` in [0, 1). "
            f"Received: num_bins={num_bins}, threshold={threshold}."
        )
    unknown = set(metrics or ()) - set(METRICS)
    if unknown:
        raise ValueError(
            f"`metrics` must be names out of {METRICS}. "
            f"Received: {sorted(unknown)}."
        )
    if num_resamples is not None and num_resamples < 2:
        raise ValueError(
            "`num_resamples` must be at least 2, or `None` for no interval. "
            f"Received: num_resamples={num_resamples}."
        )
    if not 0 < level < 1 or interval not in ("percentile", "basic"):
        raise ValueError(
            "`confidence_level` must be between 0 and 1, and `interval` "
            f'"percentile" or "basic". Received: {level}, {interval!r}.'
        )


def binary_errors(events, num_bins):
    """The errors of the positive class's probability."""
    error = binned_error(events.bins(events.width_cuts(num_bins)))
    return {"binary_calibration_error": error}


def top_label_errors(events, num_bins, wanted):
    """The wanted errors of the predicted class, dict of `(...)` arrays."""
    width_cuts = events.width_cuts(num_bins)
    mass_cuts = events.mass_cuts(num_bins)
    width, mass = events.bins(width_cuts), events.bins(mass_cuts)
    split = events.bins(events.mass_cuts(num_bins, rule="split"))
    over, under = over_and_under(width)
    values = {
        "expected_calibration_error": lambda: binned_error(width),
        "expected_calibration_error_l2": lambda: binned_error(width, 2),
        "maximum_calibration_error": lambda: binned_error(width, INFINITY),
        "adaptive_calibration_error": lambda: binned_error(mass),
        "adaptive_calibration_error_l2": lambda: binned_error(mass, 2),
        "label_binned_calibration_error": lambda: label_binned_error(
            events, width_cuts, 2
        ),
        "label_binned_calibration_error_l1": lambda: label_binned_error(
            events, width_cuts, 1
        ),
        "debiased_calibration_error": lambda: debiased_error(split),
        "debiased_calibration_error_l1": lambda: debiased_absolute_error(split),
        "sweep_calibration_error": lambda: sweep(events)[0],
        "ks_calibration_error": lambda: binless.ks_error(events),
        "smooth_calibration_error": lambda: binless.smooth_error(events),
        "kernel_calibration_error": lambda: binless.kernel_error(events),
        "overconfidence_error": lambda: over,
        "underconfidence_error": lambda: under,
        "weighted_overconfidence_error": lambda: confidence_weighted(width),
        "auroc": lambda: binless.ranking(events),
    }
    found = {name: values[name]() for name in values if name in wanted}
    risks = ("area_under_risk_coverage", "excess_area_under_risk_coverage")
    if not set(risks).isdisjoint(wanted):
        found |= zip(risks, binless.selective_risk(events), strict=True)
    return found


def class_errors(events, num_bins, threshold, wanted):
    """The wanted errors of one class; squares where norm 2 is averaged."""
    width = events.bins(events.width_cuts(num_bins))

    def mass():
        return events.bins(events.mass_cuts(num_bins))

    def debiased():
        cuts = events.mass_cuts(num_bins, rule="split")
        return debiased_error(events.bins(cuts)) ** 2

    def thresholded():
        limit = np.asarray(threshold, events.confidence.dtype)
        start = np.searchsorted(events.confidence, limit, side="right")
        kept = events.from_position(int(start))
        return binned_error(kept.bins(kept.mass_cuts(num_bins)))

    values = {
        "classwise_calibration_error": lambda: binned_error(width),
        "classwise_calibration_error_l2": lambda: binned_error(width, 2) ** 2,
        "classwise_adaptive_calibration_error": lambda: binned_error(mass()),
        "marginal_calibration_error": lambda: binned_error(mass(), 2) ** 2,
        "thresholded_adaptive_calibration_error": thresholded,
        "debiased_marginal_calibration_error": debiased,
    }
    return {name: values[name]() for name in values if name in wanted}


def mean_over_classes(name, mean):
    """The error from the mean over the classes of `class_errors`."""
    squares = name.endswith("_l2") or "marginal" in name
    return np.sqrt(mean) if squares else mean


def _classwise(data, draws, num_bins, threshold, wanted):
    means = {}
    for k in range(data.num_classes):
        found = draws.run(
            data.by_class[k],
            data.labels == k,
            lambda e: class_errors(e, num_bins, threshold, wanted),
        )
        for name, value in found.items():
            means[name] = means.get(name, 0.0) + value / data.num_classes
    return {name: mean_over_classes(name, means[name]) for name in means}


def _means(data, draws, wanted):
    confidence, correct = data.top_label
    values = {
        "mean_confidence": lambda: confidence.astype("float64"),
        "accuracy": lambda: correct,
        "brier_score": data.brier,
        "negative_log_likelihood": data.likelihood,
        "mean_entropy": data.entropy,
    }
    with_gap = "confidence_gap" in wanted
    if with_gap:
        wanted = wanted | {"mean_confidence", "accuracy"}
    names = [name for name in values if name in wanted]
    rows = np.stack([values[name]() for name in names])
    found = dict(zip(names, draws.means(rows), strict=True))
    if with_gap:
        found["confidence_gap"] = found["mean_confidence"] - found["accuracy"]
    return found


class _Draws:
    """The sample itself, then its resamples, through the same functions."""

    def __init__(self, data, number, seed, verbose):
        self.data = data
        self.number = number or 0
        self.seed = seed
        rows = len(data.labels)
        self.chunk = max(1, TABLE // max(rows, 1))
        self.starts = range(0, self.number, self.chunk)
        parts = 2 + data.num_classes
        self.bar = ProgressBar(parts * len(self.starts), verbose)

    def counts(self, start):
        """How often each row is drawn, `(replicates, n)`."""
        units = self.data.units
        size = min(self.chunk, self.number - start)
        if not units:
            return np.zeros((size, 0), int)
        rng = np.random.default_rng([self.seed, start])
        drawn = rng.integers(0, units, (size, units), "int32")
        drawn += np.arange(0, size * units, units, dtype="int32")[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * units)
        counts = counts.reshape(size, units)
        return counts if self.data.unit is None else counts[:, self.data.unit]

    def run(self, confidence, correct, function):
        """Values of a function of events: the sample's, then the draws'."""
        weight = self.data.weight
        if not self.number:
            events = sort_events(confidence, correct, weight)
            return {k: np.reshape(v, 1) for k, v in function(events).items()}
        order = np.argsort(confidence, kind="stable")
        confidence = confidence[order]
        correct = np.asarray(correct, "float64")[order]
        weight = None if weight is None else weight[order]
        square = None if weight is None else weight**2
        whole = function(Events(confidence, correct, weight, square))
        found = {name: [np.reshape(v, 1)] for name, v in whole.items()}
        for start in self.starts:
            counts = self.counts(start)[:, order]
            events = Events(confidence, correct, counts)
            if weight is not None:
                events = Events(
                    confidence, correct, counts * weight, counts * square
                )
            for name, value in function(events).items():
                found[name].append(value)
            self.bar.step()
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def means(self, rows):
        """Weighted means of `(m, n)` values, `(m, 1 + replicates)`."""
        endless = np.isinf(rows)
        rows = np.where(endless, 0.0, rows) if endless.any() else rows
        endless = endless.astype("float64")
        weight = self.data.weight
        weight = np.ones(rows.shape[1]) if weight is None else weight

        def mean(weights):
            total = np.maximum(weights.sum(axis=-1), np.finfo("float64").tiny)
            value = rows @ weights.T / total
            return np.where(endless @ weights.T > 0, np.inf, value)

        found = [mean(weight[None])]
        for start in self.starts:
            found.append(mean(self.counts(start) * weight))
            self.bar.step()
        return np.concatenate(found, axis=1)

    def finish(self):
        self.bar.finish()


class ProgressBar:
    """A progress bar that shows itself when the work is long."""

    PATIENCE = 3.0  # seconds

    def __init__(self, total, verbose):
        self.total = total
        self.done = 0
        self.bar = None
        self.verbose = verbose
        self.start = time.monotonic()

    def step(self):
        self.done += 1
        waited = time.monotonic() - self.start
        if self.verbose == 0:
            return
        if self.bar is None and (self.verbose == 1 or waited > self.PATIENCE):
            self.bar = keras.utils.Progbar(self.total, unit_name="draw")
        if self.bar is not None:
            self.bar.update(min(self.done, self.total - 1))

    def finish(self):
        if self.bar is not None:
            self.bar.update(self.total, finalize=True)


def _estimate(values, level, interval, name, num_classes):
    value, drawn = float(values[0]), values[1:]
    low, high = _quantiles(drawn, level)
    if interval == "basic" and np.isfinite(value):
        least, most = statistic_range(name, num_classes)
        low, high = np.clip([2 * value - high, 2 * value - low], least, most)
    return Estimate(value, float(low), float(high))


def statistic_range(name, num_classes):
    """The least and the largest value that a statistic can have."""
    if name in ("confidence_gap", "debiased_calibration_error_l1"):
        return -1.0, 1.0
    most = {
        "brier_score": 2.0,
        "mean_entropy": np.log(num_classes),
        "negative_log_likelihood": np.inf,
    }
    return 0.0, most.get(name, 1.0)


def _quantiles(values, level):
    tail = (1 - level) / 2
    if np.isinf(values).any():
        # Interpolation between infinities is not a number.
        return np.quantile(values, [tail, 1 - tail], method="nearest")
    return np.quantile(values, [tail, 1 - tail])
