"""Every value of `calibration_errors`: its name and its formula."""

import dataclasses
import functools

import numpy as np

from keras_calib.evaluation import binless
from keras_calib.evaluation import decisions
from keras_calib.evaluation.events import Events
from keras_calib.evaluation.events import SortedBins
from keras_calib.evaluation.label_binned import label_binned_error
from keras_calib.evaluation.sweep import sweep
from keras_calib.ops.bin_errors import INFINITY
from keras_calib.ops.bin_errors import calibration_error
from keras_calib.ops.bin_errors import debiased_power
from keras_calib.ops.bin_errors import ks_error
from keras_calib.ops.bin_errors import signed_error

# Of `coverage_at_risk` and `risk_at_coverage`.
RISK = 0.05
COVERAGE = 0.8


@dataclasses.dataclass(frozen=True)
class BinsOfEvents:
    """Events, and the bins that the errors share, computed when asked for.

    Attributes:
        events: `Events`.
        num_bins: int.
        threshold: float; `above` has the probabilities above it.
    """

    events: Events
    num_bins: int
    threshold: float = 0.0

    @functools.cached_property
    def width(self) -> SortedBins:
        return self.events.bins(self.events.width_cuts(self.num_bins))

    @functools.cached_property
    def mass(self) -> SortedBins:
        return self.events.bins(self.events.mass_cuts(self.num_bins))

    @functools.cached_property
    def split(self) -> SortedBins:
        cuts = self.events.mass_cuts(self.num_bins, rule="split")
        return self.events.bins(cuts)

    @functools.cached_property
    def above(self) -> SortedBins:
        confidence = self.events.confidence
        limit = np.asarray(self.threshold, confidence.dtype)
        start = np.searchsorted(confidence, limit, side="right")
        kept = self.events.from_position(int(start))
        return kept.bins(kept.mass_cuts(self.num_bins))

    @functools.cached_property
    def smooth(self):
        return binless.smooth_error(self.events)

    @functools.cached_property
    def risk(self):
        return binless.selective_risk(self.events)

    def debiased(self):
        return np.sqrt(np.maximum(debiased_power(self.split), 0.0))


# From the bins of the predicted class.
# The adaptive calibration error is `sum_m n_m / n |C_m - A_m|` as the ECE is,
# over bins of equal mass.
TOP_LABEL = {
    "expected_calibration_error": lambda b: calibration_error(b.width),
    "expected_calibration_error_l2": lambda b: calibration_error(b.width, 2),
    "maximum_calibration_error": lambda b: calibration_error(b.width, INFINITY),
    "adaptive_calibration_error": lambda b: calibration_error(b.mass),
    "adaptive_calibration_error_l2": lambda b: calibration_error(b.mass, 2),
    "label_binned_calibration_error": lambda b: label_binned_error(b.width, 2),
    "label_binned_calibration_error_l1": lambda b: label_binned_error(b.width),
    "debiased_calibration_error": lambda b: b.debiased(),
    "debiased_calibration_error_l1": lambda b: debiased_power(b.split, 1),
    "sweep_calibration_error": lambda b: sweep(b.events)[0],
    "ks_calibration_error": lambda b: ks_error(b.events.tie_bins),
    "smooth_calibration_error": lambda b: b.smooth,
    "kernel_calibration_error": lambda b: binless.kernel_error(b.events),
    "overconfidence_error": lambda b: signed_error(b.width),
    "underconfidence_error": lambda b: signed_error(b.width, -1),
    "weighted_overconfidence_error": lambda b: signed_error(b.width, 1, True),
    "area_under_risk_coverage": lambda b: b.risk[0],
    "excess_area_under_risk_coverage": lambda b: b.risk[1],
    "auroc": lambda b: binless.auroc(b.events),
}
# Of accepting the most confident samples; computed where they are named.
SELECTIVE = {
    "area_under_generalized_risk_coverage": (
        lambda b: decisions.area_under_generalized_risk(b.events)
    ),
    "coverage_at_risk": (
        lambda b: decisions.coverage_at_risk(b.events, RISK)[0]
    ),
    "risk_at_coverage": (
        lambda b: decisions.risk_at_coverage(b.events, COVERAGE)[0]
    ),
}
# Weighted means over the rows of `Predictions`.
MEANS = {
    "confidence_gap": lambda data: np.subtract(*data.top_label),
    "mean_confidence": lambda data: data.top_label[0].astype("float64"),
    "accuracy": lambda data: data.top_label[1],
    "brier_score": lambda data: data.brier(),
    "negative_log_likelihood": lambda data: data.negative_log_likelihood(),
    "mean_entropy": lambda data: data.entropy(),
}
# From the bins of each class; then the mean over the classes.
CLASSWISE = {
    "classwise_calibration_error": lambda b: calibration_error(b.width),
    "classwise_calibration_error_l2": lambda b: calibration_error(b.width, 2),
    "classwise_adaptive_calibration_error": lambda b: calibration_error(b.mass),
    "marginal_calibration_error": lambda b: calibration_error(b.mass, 2),
    "thresholded_adaptive_calibration_error": (
        lambda b: calibration_error(b.above)
    ),
    "debiased_marginal_calibration_error": lambda b: b.debiased(),
}
# For these the root of the mean square over the classes.
MEAN_SQUARE = {
    "classwise_calibration_error_l2",
    "marginal_calibration_error",
    "debiased_marginal_calibration_error",
}
# From the bins of the second of two classes.
BINARY = {"binary_calibration_error": lambda b: calibration_error(b.width)}
# Errors whose noise floor needs no drawn labels: their bins, and their norm.
FLOORS = {
    "expected_calibration_error": ("width", 1),
    "expected_calibration_error_l2": ("width", 2),
    "maximum_calibration_error": ("width", INFINITY),
    "adaptive_calibration_error": ("mass", 1),
    "adaptive_calibration_error_l2": ("mass", 2),
    "binary_calibration_error": ("width", 1),
}
# Of how well confidences rank, not of calibration.
NO_FLOOR = {
    "area_under_risk_coverage",
    "excess_area_under_risk_coverage",
    "auroc",
}
# Differences, which may be negative.
SIGNED = (
    "confidence_gap",
    "debiased_calibration_error_l1",
    "calibration_in_the_large",
)
METRICS = (*TOP_LABEL, *MEANS, *CLASSWISE, *BINARY)
# Of the clinical panel of the second of two classes; computed where named.
INDICES = ("integrated_calibration_index", "e50", "e90", "emax")
RECALIBRATION = ("calibration_slope", "calibration_intercept")
CLINICAL = (
    *RECALIBRATION,
    "calibration_in_the_large",
    "observed_expected_ratio",
    "spiegelhalter_z",
    *INDICES,
)
# Those that have to be named, too.
NAMES = (*METRICS, *SELECTIVE, *CLINICAL)


def defined_for(num_classes, names=METRICS):
    """Those of the names that have a meaning for so many classes."""
    of_two = {*BINARY, *CLINICAL}
    return [n for n in names if n not in of_two or num_classes == 2]


def confidence_and_correct(data, k=None):
    """Confidence that the label is `k`, by default the predicted class."""
    if k is None:
        return data.top_label
    return data.by_class[k], data.labels == k


def errors_of_events(events, table, wanted, num_bins, threshold=0.0):
    """The wanted errors of one of the tables above, dict of `(...)` arrays."""
    binned = BinsOfEvents(events, num_bins, threshold)
    return {name: table[name](binned) for name in table if name in wanted}


def statistic_range(name, num_classes):
    """The least and the largest value that a statistic can have."""
    if name in SIGNED:
        return -1.0, 1.0
    if name in (*RECALIBRATION, "spiegelhalter_z"):
        return -np.inf, np.inf
    if name in INDICES:  # the curve may leave [0, 1]
        return 0.0, np.inf
    most = {
        "brier_score": 2.0,
        "mean_entropy": np.log(num_classes),
        "negative_log_likelihood": np.inf,
        "observed_expected_ratio": np.inf,
    }
    return 0.0, most.get(name, 1.0)
