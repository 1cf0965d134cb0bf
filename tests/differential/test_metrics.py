"""Every metric, streamed and from whole arrays, against the formula sheet."""

import functools
import math

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.differential import reference as ref
from tests.differential.cases import BY_NAME
from tests.differential.cases import CASES
from tests.differential.cases import pairs
from tests.helpers import to_numpy

INF = float("inf")


def top(function):
    """A formula of confidence, correctness and weight, of a case's rows."""
    return lambda r: function(r.c, r.a, r.w)


def width(norm=1, num_bins=15):
    return lambda c, a, w: ref.binned(
        c, a, w, ref.width_bins(c, num_bins), norm
    )


def mass(norm=1, num_bins=15):
    return lambda c, a, w: ref.binned(
        c, a, w, ref.mass_bins(c, w, num_bins), norm
    )


def root(value):
    return math.sqrt(max(value, 0.0))


def classwise(norm):
    def error(r):
        if not len(r):
            return 0.0
        errors = ref.per_class(r, width(norm))
        if norm == INF:
            return errors.max()
        return (errors**norm).mean() ** (1 / norm)

    return error


def positive(function):
    """The same of the probability of class 1, for two classes."""
    return lambda r: function(r.p[:, 1], (r.y == 1).astype("float64"), r.w)


def mean_entropy(r):
    return -r.mean(ref.negative_entropy(r))


def debiased(norm):
    def error(c, a, w):
        value = ref.debiased(c, a, w, ref.width_bins(c), norm)
        return root(value) if norm == 2 else value

    return error


m = kc.metrics
part = functools.partial
# Name: how to make it, and its formula.
METRICS = {
    "ExpectedCalibrationError": (m.ExpectedCalibrationError, top(width())),
    "ExpectedCalibrationError_l2": (
        part(m.ExpectedCalibrationError, norm=2, num_bins=10),
        top(width(2, 10)),
    ),
    "ExpectedCalibrationError_mass": (
        part(m.ExpectedCalibrationError, binning="mass", num_bins=5),
        top(mass(1, 5)),
    ),
    "MaximumCalibrationError": (m.MaximumCalibrationError, top(width(INF))),
    "AdaptiveCalibrationError": (m.AdaptiveCalibrationError, top(mass())),
    "AdaptiveCalibrationError_l2": (
        part(m.AdaptiveCalibrationError, norm=2, num_bins=7),
        top(mass(2, 7)),
    ),
    "LabelBinnedCalibrationError": (
        m.LabelBinnedCalibrationError,
        top(lambda c, a, w: ref.label_binned(c, a, w, ref.width_bins(c), 2)),
    ),
    "LabelBinnedCalibrationError_mass": (
        part(
            m.LabelBinnedCalibrationError,
            binning="mass",
            num_bins=6,
        ),
        top(
            lambda c, a, w: ref.label_binned(c, a, w, ref.mass_bins(c, w, 6), 2)
        ),
    ),
    "DebiasedCalibrationError": (
        part(m.DebiasedCalibrationError, binning="width"),
        top(debiased(2)),
    ),
    "DebiasedCalibrationError_l1": (
        part(m.DebiasedCalibrationError, binning="width", norm=1),
        top(debiased(1)),
    ),
    "DebiasedCalibrationError_mass": (
        part(m.DebiasedCalibrationError, num_bins=5),
        top(
            lambda c, a, w: root(ref.debiased(c, a, w, ref.mass_bins(c, w, 5)))
        ),
    ),
    "SweepCalibrationError": (m.SweepCalibrationError, top(ref.sweep)),
    "SweepCalibrationError_l1": (
        part(m.SweepCalibrationError, norm=1),
        top(lambda c, a, w: ref.sweep(c, a, w, 1)),
    ),
    "KSCalibrationError": (m.KSCalibrationError, top(ref.ks)),
    "SmoothCalibrationError": (m.SmoothCalibrationError, top(ref.smooth)),
    "SmoothCalibrationError_fixed": (
        part(m.SmoothCalibrationError, bandwidth=0.1),
        top(lambda c, a, w: ref.smooth(c, a, w, 0.1)),
    ),
    "OverconfidenceError": (
        m.OverconfidenceError,
        top(lambda c, a, w: ref.signed_parts(c, a, w)[0]),
    ),
    "OverconfidenceError_weighted": (
        part(m.OverconfidenceError, confidence_weighted=True),
        top(
            lambda c, a, w: ref.signed_parts(c, a, w, confidence_weighted=True)[
                0
            ]
        ),
    ),
    "UnderconfidenceError": (
        m.UnderconfidenceError,
        top(lambda c, a, w: ref.signed_parts(c, a, w)[1]),
    ),
    "ConfidenceGap": (m.ConfidenceGap, lambda r: r.mean(r.c - r.a)),
    "MeanConfidence": (m.MeanConfidence, lambda r: r.mean(r.c)),
    "MeanEntropy": (m.MeanEntropy, mean_entropy),
    "NegativeLogLikelihood": (m.NegativeLogLikelihood, ref.nll),
    "BrierScore": (m.BrierScore, lambda r: r.mean(ref.brier(r))),
    "ClasswiseCalibrationError": (
        m.ClasswiseCalibrationError,
        classwise(1),
    ),
    "ClasswiseCalibrationError_l2": (
        part(m.ClasswiseCalibrationError, norm=2),
        classwise(2),
    ),
    "ClasswiseCalibrationError_max": (
        part(m.ClasswiseCalibrationError, norm=INF),
        classwise(INF),
    ),
    "BinaryCalibrationError": (m.BinaryCalibrationError, positive(width())),
}
ELSEWHERE = {
    "CalibrationMetric": "the base class",
    "MultilabelCalibrationError": "takes other labels: see below",
    "clinical_panel": "by hand and statsmodels: tests/evaluation",
    "squared_kernel_calibration_error": "by its sum: tests/evaluation",
}
# Streamed from nodes that are 1/4096 apart.
TOLERANCE = {"SmoothCalibrationError": 3e-4}


def test_every_public_metric_has_a_case():
    compared = {name.split("_")[0] for name in METRICS}
    public = set(kc.metrics.__all__)
    functions = {"calibration_errors", "consistency_test"}
    assert public - compared == functions | set(ELSEWHERE)


def applies(name, case):
    binary = case.one_unit or case.num_units == 2
    return binary or name != "BinaryCalibrationError"


def tolerance(name, case):
    return {"rel": 2e-5, "abs": TOLERANCE.get(name.split("_")[0], 2e-5)}


_found = {}


def expected(name, rows):
    if not len(rows):
        return 0.0
    key = name, rows.p.tobytes(), rows.w.tobytes(), rows.t.tobytes()
    if key not in _found:
        _found[key] = METRICS[name][1](rows)
    return _found[key]


@functools.cache
def _tensor(name):
    return BY_NAME[name].tensor()


@pytest.mark.parametrize("name, case", pairs(METRICS, applies))
def test_value(name, case):
    metric = METRICS[name][0](**case.options)
    metric.update_state(case.labels, _tensor(case.name), case.weight)
    wanted = expected(name, case.rows())
    found = float(to_numpy(metric.result()))
    assert found == pytest.approx(wanted, **tolerance(name, case))


# Names of `calibration_errors` that are a metric's with its default arguments
# or with others; and those that no metric has.
NAMES = {
    "expected_calibration_error": "ExpectedCalibrationError",
    "maximum_calibration_error": "MaximumCalibrationError",
    "adaptive_calibration_error": "AdaptiveCalibrationError",
    "label_binned_calibration_error": "LabelBinnedCalibrationError",
    "sweep_calibration_error": "SweepCalibrationError",
    "ks_calibration_error": "KSCalibrationError",
    "smooth_calibration_error": "SmoothCalibrationError",
    "overconfidence_error": "OverconfidenceError",
    "underconfidence_error": "UnderconfidenceError",
    "weighted_overconfidence_error": "OverconfidenceError_weighted",
    "confidence_gap": "ConfidenceGap",
    "mean_confidence": "MeanConfidence",
    "brier_score": "BrierScore",
    "negative_log_likelihood": "NegativeLogLikelihood",
    "mean_entropy": "MeanEntropy",
    "classwise_calibration_error": "ClasswiseCalibrationError",
    "classwise_calibration_error_l2": "ClasswiseCalibrationError_l2",
    "binary_calibration_error": "BinaryCalibrationError",
}


def _above(r, threshold):
    def error(c, a, w):
        kept = c > threshold
        return mass()(c[kept], a[kept], w[kept])

    return ref.per_class(r, error).mean()


OTHERS = {
    "expected_calibration_error_l2": top(width(2)),
    "adaptive_calibration_error_l2": top(mass(2)),
    "label_binned_calibration_error_l1": top(
        lambda c, a, w: ref.label_binned(c, a, w, ref.width_bins(c), 1)
    ),
    "kernel_calibration_error": top(ref.kernel_error),
    "auroc": top(ref.auroc),
    "accuracy": lambda r: r.mean(r.a),
    "classwise_adaptive_calibration_error": lambda r: ref.per_class(
        r, mass()
    ).mean(),
    "marginal_calibration_error": lambda r: root(
        (ref.per_class(r, mass(2)) ** 2).mean()
    ),
    "thresholded_adaptive_calibration_error": lambda r: _above(r, 0.01),
}
UNWEIGHTED = {
    "area_under_risk_coverage": lambda r: ref.selective_risk(r.c, r.a)[0],
    "excess_area_under_risk_coverage": lambda r: ref.selective_risk(r.c, r.a)[
        1
    ],
}
# By the rule of `np.array_split`: `tests/metrics/test_exact.py`.
NOT_COMPARED = {
    "debiased_calibration_error",
    "debiased_calibration_error_l1",
    "debiased_marginal_calibration_error",
}
EMPTY = {"auroc": 0.5}


def errors_of(rows, weighted):
    """Name to value, of what every set of rows has."""
    found = {}
    formulas = dict(OTHERS)
    if not weighted:
        formulas |= UNWEIGHTED
    formulas |= {
        key: functools.partial(expected, name) for key, name in NAMES.items()
    }
    for name, formula in formulas.items():
        if name == "binary_calibration_error" and rows.num_classes != 2:
            continue
        found[name] = formula(rows) if len(rows) else EMPTY.get(name, 0.0)
    return found


def compare(found, wanted, case, where=""):
    wrong = {
        name: (found.get(name), value)
        for name, value in wanted.items()
        if found.get(name)
        != pytest.approx(value, **tolerance(NAMES.get(name, name), case))
    }
    assert not wrong, f"{where}: found, expected {wrong}"


# Without a mask: arrays have none.
NO_ROW = ("no_row", "no_row_garbage")
ARRAYS = [c for c in CASES if c.mask is None and c.name not in NO_ROW]


@pytest.mark.parametrize("name", NO_ROW)
def test_arrays_without_a_row_that_counts_are_refused(name):
    case = BY_NAME[name]
    for errors in (kc.metrics.calibration_errors, kc.metrics.consistency_test):
        with pytest.raises(ValueError, match="No row counts"):
            errors(case.labels, case.predictions, case.weight, **case.options)


@pytest.mark.parametrize("case", ARRAYS, ids=lambda case: case.name)
def test_every_public_error_of_arrays(case):
    predictions = case.predictions.astype("float32")
    if case.dtype == "float64":
        predictions = case.predictions
    found = kc.metrics.calibration_errors(
        case.labels, predictions, case.weight, **case.options
    )
    rows = case.rows()
    compare(found, errors_of(rows, case.weight is not None), case)
    left = set(found) - set(errors_of(rows, False))
    assert left == NOT_COMPARED, "a formula in NAMES or OTHERS, or a reason"


def test_calibration_errors_of_a_masked_tensor():
    case = BY_NAME["tokens_masked"]
    found = kc.metrics.calibration_errors(
        case.labels, case.tensor(), **case.options
    )
    compare(found, errors_of(case.rows(), False), case)


@pytest.mark.parametrize("case", ARRAYS, ids=lambda case: case.name)
def test_consistency_test(case):
    found = kc.metrics.consistency_test(
        case.labels,
        case.predictions.astype("float32"),
        case.weight,
        num_draws=20,
        **case.options,
    )
    wanted = expected("ExpectedCalibrationError", case.rows())
    assert found.value == pytest.approx(
        wanted, **tolerance("ExpectedCalibrationError", case)
    )


@pytest.mark.parametrize("case", ["tokens_weights_full", "weights"])
def test_weights_times_a_constant_change_nothing(case):
    case = BY_NAME[case]
    for factor in (1e-3, 100.0):
        weight = factor * case.weight
        streamed = {}
        for name in METRICS:
            if not applies(name, case):
                continue
            metric = METRICS[name][0](**case.options)
            metric.update_state(case.labels, _tensor(case.name), weight)
            streamed[name] = float(to_numpy(metric.result()))
        wanted = {name: expected(name, case.rows()) for name in streamed}
        compare(streamed, wanted, case, factor)
        plain, scaled = (
            kc.metrics.calibration_errors(
                case.labels,
                case.predictions.astype("float32"),
                given,
                **case.options,
            )
            for given in (case.weight, weight)
        )
        # Of 1e-3 as float32 the last digit is another one.
        assert scaled == pytest.approx(plain, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("case", ["tokens_weights_full", "soft", "sigmoid"])
def test_the_parts_of_the_brier_score(case):
    case = BY_NAME[case]
    metric = kc.metrics.BrierScore(**case.options)
    metric.update_state(case.labels, _tensor(case.name), case.weight)
    found = metric.decomposition()
    names = ("calibration", "resolution", "uncertainty", "within_bins")
    wanted = ref.brier_parts(case.rows())
    assert [found[name] for name in names] == pytest.approx(wanted, abs=2e-5)
    assert found["score"] == pytest.approx(
        case.rows().mean(ref.brier(case.rows())), rel=2e-5
    )


@pytest.mark.parametrize("average", ["macro", "micro"])
@pytest.mark.parametrize("form", ["weights", "tokens", "images", "masked"])
def test_labels_that_do_not_exclude_each_other(form, average):
    rng = np.random.default_rng(3)
    lead = {"weights": (24,), "images": (2, 3, 4)}.get(form, (6, 4))
    z = rng.normal(size=(*lead, 3)).astype("float32")
    labels = rng.integers(0, 2, z.shape)
    labels[rng.random(z.shape) < 0.1] = -1
    weight, mask, tensor = None, np.ones(lead, bool), z
    if form in ("weights", "tokens", "images"):
        weight = rng.choice([0.5, 1.0, 2.0], size=lead[:1])
    if form == "masked":
        mask = rng.random(lead) > 0.3
        table = keras.layers.Embedding(25, 3, mask_zero=True)
        index = np.where(mask, np.arange(1, 25).reshape(lead), 0)
        table.build()
        table.set_weights([np.concatenate([z[:1, 0], z.reshape(-1, 3)])])
        tensor = table(index)
    metric = kc.metrics.MultilabelCalibrationError(
        from_logits=True, ignore_class=-1, average=average
    )
    metric.update_state(labels, tensor, weight)
    w = np.ones(24)
    if weight is not None:
        w = np.repeat(weight, 24 // len(weight))
    p, y = 1 / (1 + np.exp(-z.reshape(-1, 3))), labels.reshape(-1, 3)
    used = (y >= 0) & mask.reshape(-1, 1)
    w = np.broadcast_to(w[:, None], p.shape)
    if average == "micro":
        wanted = width()(p[used], y[used], w[used])
    else:
        wanted = np.mean(
            [width()(p[i, k], y[i, k], w[i, k]) for k, i in enumerate(used.T)]
        )
    assert float(metric.result()) == pytest.approx(wanted, abs=2e-5)


def test_batches_and_merged_metrics_give_one_value():
    cases = [BY_NAME[n] for n in ("ids", "weights", "void_minus_1", "one_hot")]
    rows = [case.rows() for case in cases]
    for name, (make, formula) in METRICS.items():
        if name == "BinaryCalibrationError":
            continue
        metric, other = make(from_logits=True, ignore_class=-1), None
        other = make(from_logits=True, ignore_class=-1)
        for i, case in enumerate(cases):
            (other if i == 3 else metric).update_state(
                case.labels, _tensor(case.name), case.weight
            )
        metric.merge_state([other])
        whole = ref.Rows(
            *(
                np.concatenate([getattr(r, part) for r in rows])
                for part in ("z", "p", "y", "t", "w", "place")
            ),
            counted=0,
            total=0,
            shape=(),
            counts=None,
        )
        # Together they are not spread: cells of a histogram hold several.
        absolute = {"abs": 2e-5}
        if "mass" in name or name.split("_")[0] in (
            "AdaptiveCalibrationError",
            "KSCalibrationError",
            "SweepCalibrationError",
            "SmoothCalibrationError",
        ):
            continue
        found = float(to_numpy(metric.result()))
        assert found == pytest.approx(formula(whole), **absolute), name
