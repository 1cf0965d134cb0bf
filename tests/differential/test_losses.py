"""Every loss, eagerly, against the formula sheet: value and gradient."""

import functools

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.differential import reference as ref
from tests.differential.cases import BY_NAME
from tests.differential.cases import pairs
from tests.helpers import to_numpy
from tests.helpers import value_and_gradient

EDGES = (np.arange(1, 4) / 4).astype("float32")
GAMMAS = np.array([1.0, -0.5, 2.0, 0.0], "float32")


def ada_focal(**options):
    loss = kc.losses.AdaFocalLoss(num_bins=4, **options)
    loss.table.set(EDGES, GAMMAS)
    return loss


def penalized(make, weight, **arguments):
    """A penalty by its class: with cross-entropy, and one weight for all."""
    return functools.partial(make, weight=weight, **arguments)


# Name: how to make it; the part per row; the part of the batch.
LOSSES = {
    "LabelSmoothing": (kc.losses.LabelSmoothing, ref.label_smoothing, None),
    "FocalLoss": (kc.losses.FocalLoss, ref.focal, None),
    "SampleDependentFocalLoss": (
        kc.losses.SampleDependentFocalLoss,
        ref.sample_dependent_focal,
        None,
    ),
    "InverseFocalLoss": (
        kc.losses.InverseFocalLoss,
        ref.inverse_focal,
        None,
    ),
    "DualFocalLoss": (kc.losses.DualFocalLoss, ref.dual_focal, None),
    "AdaFocalLoss": (
        ada_focal,
        lambda r: ref.ada_focal(r, EDGES, GAMMAS),
        None,
    ),
    "BrierLoss": (kc.losses.BrierLoss, ref.brier, None),
    "SquaredLogitLoss": (
        functools.partial(kc.losses.SquaredLogitLoss, label_weight=2.0),
        lambda r: ref.squared_logits(r, 2.0),
        None,
    ),
    "EntropyRegularization": (
        penalized(kc.losses.EntropyRegularization, 0.3),
        lambda r: ref.cross_entropy(r) + 0.3 * ref.negative_entropy(r),
        None,
    ),
    "MarginLabelSmoothing": (
        penalized(kc.losses.MarginLabelSmoothing, 0.3, margin=1.0),
        lambda r: ref.cross_entropy(r) + 0.3 * ref.margin_penalty(r, 1.0),
        None,
    ),
    "ACLS": (
        penalized(kc.losses.ACLS, 2.0, margin=0.5),
        lambda r: ref.cross_entropy(r) + 2 * ref.acls(r, 0.5, reference="zero"),
        None,
    ),
    "ACLS_min": (
        penalized(
            kc.losses.ACLS,
            2.0,
            margin=0.5,
            reference="min",
            stop_gradient=False,
        ),
        lambda r: ref.cross_entropy(r) + 2 * ref.acls(r, 0.5, reference="min"),
        None,
    ),
    "CPC": (
        penalized(kc.losses.CPC, 0.5),
        lambda r: ref.cross_entropy(r) + 0.5 * ref.cpc(r),
        None,
    ),
    "MDCA": (
        penalized(kc.losses.MDCA, 3.0),
        ref.cross_entropy,
        lambda r: 3 * ref.mdca(r),
    ),
    "MDCA_focal": (
        lambda **options: kc.losses.MDCA(
            primary=kc.losses.FocalLoss(
                gamma=1.0, from_logits=options.get("from_logits", False)
            ),
            **options,
        ),
        lambda r: ref.focal(r, 1.0),
        ref.mdca,
    ),
    "DCA": (
        penalized(kc.losses.DCA, 3.0),
        ref.cross_entropy,
        lambda r: 3 * ref.dca(r),
    ),
    "MMCE": (
        penalized(kc.losses.MMCE, 2.0),
        ref.cross_entropy,
        lambda r: 2 * ref.mmce(r),
    ),
    "MMCE_weighted": (
        penalized(kc.losses.MMCE, 2.0, weighted=True),
        ref.cross_entropy,
        lambda r: 2 * ref.mmce(r, weighted=True),
    ),
    "AvUC": (
        penalized(kc.losses.AvUC, 3.0, threshold=0.7),
        ref.cross_entropy,
        lambda r: 3 * ref.avuc(r, 0.7),
    ),
    "SoftAvUC": (
        penalized(kc.losses.SoftAvUC, 1.0, temperature=0.5),
        ref.cross_entropy,
        lambda r: ref.soft_avuc(r, temperature=0.5),
    ),
    "SoftBinnedECE": (
        penalized(kc.losses.SoftBinnedECE, 1.0, temperature=0.01),
        ref.cross_entropy,
        lambda r: ref.soft_binned_ece(r, "label", temperature=0.01),
    ),
    "SoftBinnedECE_bin": (
        penalized(kc.losses.SoftBinnedECE, 1.0, form="bin", temperature=0.01),
        ref.cross_entropy,
        lambda r: ref.soft_binned_ece(r, "bin", temperature=0.01),
    ),
    "cross_entropy_alone": (
        penalized(kc.losses.MDCA, 0.0),
        ref.cross_entropy,
        None,
    ),
    "foreign_primary": (
        lambda **options: kc.losses.DCA(
            weight=0.0,
            primary=keras.losses.CategoricalFocalCrossentropy(
                alpha=1.0,
                gamma=2.0,
                from_logits=options.get("from_logits", False),
            ),
            **options,
        ),
        lambda r: ref.focal(r, 2.0),
        None,
    ),
    "penalty_alone": (
        lambda **options: kc.losses.DCA(primary=None, weight=1.0, **options),
        lambda r: np.zeros(len(r)),
        ref.dca,
    ),
}
NEED_LOGITS = ("SquaredLogitLoss", "ACLS")
# What there is no comparison for here, and why.
ELSEWHERE = {
    "CRL": "needs a history: test_models.py",
    "AdaFocalTable": "a metric that holds what AdaFocalLoss uses",
    "ClassificationLoss": "the base class",
    "PenalizedLoss": "the base class of the penalties",
    "LossPart": "the parts: test_fit.py",
}


def test_every_public_loss_has_a_case():
    compared = {name.split("_")[0] for name in LOSSES}
    classes = {
        name
        for name in kc.losses.__all__
        if isinstance(getattr(kc.losses, name), type)
    }
    assert classes - compared == set(ELSEWHERE), (
        "a line in LOSSES, or a reason in ELSEWHERE, for each class"
    )
    functions = set(kc.losses.__all__) - classes
    assert functions - set(FUNCTIONS) == {"crl"}, (
        "a line in FUNCTIONS for each function"
    )


def applies(name, case):
    if name in NEED_LOGITS and not case.from_logits:
        return False
    # Keras' categorical losses want the classes on one side, and one-hot rows.
    if name == "foreign_primary":
        one_hot = case.labels.shape == case.predictions.shape
        return one_hot and not case.one_unit
    return True


@functools.cache
def _tensor(name):
    return BY_NAME[name].tensor()


def expected(name, rows, reduction="sum_over_batch_size"):
    _, per_row, batch = LOSSES[name]
    rows = rows.normalized()
    per_row = per_row(rows) if len(rows) else np.zeros(0)
    batch = batch(rows) if batch is not None and len(rows) else 0.0
    return ref.reduced(rows, per_row, batch, reduction)


@pytest.mark.parametrize("name, case", pairs(LOSSES, applies))
def test_value(name, case):
    loss = LOSSES[name][0](**case.options)
    found = to_numpy(loss(case.labels, _tensor(case.name), case.weight))
    # Float32 rounds what is subtracted; a weight of 1000 is no error.
    scale = 1.0 if case.weight is None else max(1.0, float(case.weight.max()))
    assert found == pytest.approx(
        expected(name, case.rows()), rel=2e-5, abs=3e-5 * scale
    )


REDUCTIONS = ["none", "sum", "mean", "mean_with_sample_weight"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "case",
    [
        BY_NAME[name]
        for name in ("weights", "tokens_masked", "images_axis_1", "volumes")
    ],
    ids=lambda case: case.name,
)
@pytest.mark.parametrize("name", ["FocalLoss", "CPC", "DCA"])
def test_reduction(name, case, reduction):
    options = {**case.options, "reduction": reduction}
    loss = LOSSES[name][0](**options)
    found = to_numpy(loss(case.labels, _tensor(case.name), case.weight))
    if reduction == "mean":
        reduction = "sum_over_batch_size"
    np.testing.assert_allclose(
        found, expected(name, case.rows(), reduction), rtol=2e-5, atol=3e-5
    )


@pytest.mark.parametrize(
    "case",
    ["ids", "weights_0_garbage", "tokens_masked_weights", "images_axis_1"],
)
@pytest.mark.parametrize("name", ["FocalLoss", "CPC", "DCA", "MMCE", "AvUC"])
def test_a_sum_is_the_sum_of_what_is_not_reduced(name, case):
    case = BY_NAME[case]
    rows = case.rows()
    both = {}
    for reduction in ("sum", "none"):
        loss = LOSSES[name][0](**case.options, reduction=reduction)
        both[reduction] = to_numpy(
            loss(case.labels, _tensor(case.name), case.weight)
        )
    wanted = expected(name, rows, "sum")
    assert wanted == pytest.approx(expected(name, rows, "none").sum())
    assert both["sum"] == pytest.approx(wanted, rel=2e-5)
    assert both["none"].sum() == pytest.approx(wanted, rel=2e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_weights_times_a_constant(name):
    # The part per row scales, as in Keras; the batch's statistic stays.
    case = BY_NAME["tokens_weights_full"]
    if not applies(name, case):
        pytest.skip("needs one-hot labels")
    _, per_row, batch = LOSSES[name]
    rows = case.rows()
    total = (rows.w * per_row(rows)).sum() / rows.counted
    batch = batch(rows) if batch is not None else 0.0
    for factor in (1e-2, 100.0):
        loss = LOSSES[name][0](**case.options)
        weight = factor * case.weight
        found = to_numpy(loss(case.labels, _tensor(case.name), weight))
        assert found == pytest.approx(
            factor * total + batch, rel=2e-5, abs=3e-5
        )


FUNCTIONS = {
    "acls": (
        functools.partial(kc.losses.acls, margin=0.5),
        lambda r: ref.acls(r, 0.5, reference="zero"),
    ),
    "ada_focal_loss": (
        functools.partial(kc.losses.ada_focal_loss, edges=EDGES, gammas=GAMMAS),
        lambda r: ref.ada_focal(r, EDGES, GAMMAS),
    ),
    "avuc": (kc.losses.avuc, ref.avuc),
    "brier_loss": (kc.losses.brier_loss, ref.brier),
    "cpc": (kc.losses.cpc, ref.cpc),
    "dca": (kc.losses.dca, ref.dca),
    "dual_focal_loss": (kc.losses.dual_focal_loss, ref.dual_focal),
    "entropy_regularization": (
        kc.losses.entropy_regularization,
        ref.negative_entropy,
    ),
    "focal_loss": (kc.losses.focal_loss, ref.focal),
    "inverse_focal_loss": (kc.losses.inverse_focal_loss, ref.inverse_focal),
    "label_smoothing": (kc.losses.label_smoothing, ref.label_smoothing),
    "margin_label_smoothing": (
        functools.partial(kc.losses.margin_label_smoothing, margin=1.0),
        lambda r: ref.margin_penalty(r, 1.0),
    ),
    "mdca": (kc.losses.mdca, ref.mdca),
    "mmce": (kc.losses.mmce, ref.mmce),
    "sample_dependent_focal_loss": (
        kc.losses.sample_dependent_focal_loss,
        ref.sample_dependent_focal,
    ),
    "soft_avuc": (kc.losses.soft_avuc, ref.soft_avuc),
    "soft_binned_ece": (
        functools.partial(kc.losses.soft_binned_ece, temperature=0.01),
        lambda r: ref.soft_binned_ece(r, "label", temperature=0.01),
    ),
    "squared_logit_loss": (kc.losses.squared_logit_loss, ref.squared_logits),
}
BATCH = ("avuc", "dca", "mdca", "mmce", "soft_avuc", "soft_binned_ece")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name):
    function, formula = FUNCTIONS[name]
    for case in ("ids", "one_hot_int8", "soft", "tokens", "sigmoid"):
        case = BY_NAME[case]
        found = to_numpy(function(case.labels, _tensor(case.name)))
        rows = case.rows()
        wanted = formula(rows)
        if name not in BATCH:
            wanted = wanted.reshape(case.lead)
        np.testing.assert_allclose(
            found, wanted, rtol=2e-5, atol=3e-5, err_msg=case.name
        )
    if name not in BATCH:
        return
    for case in ("weights", "tokens_weights_full", "images_weights"):
        case = BY_NAME[case]
        found = function(
            case.labels, _tensor(case.name), sample_weight=case.weight
        )
        assert to_numpy(found) == pytest.approx(
            formula(case.rows()), rel=2e-5, abs=3e-5
        ), case.name


# Here the gradient is another one on purpose.
DETACHED = ("ACLS",)


@pytest.mark.parametrize("name", [n for n in LOSSES if n not in DETACHED])
@pytest.mark.parametrize("case", ["ids", "soft", "tokens_weights_full"])
def test_gradient_is_the_slope_of_the_reference(name, case):
    case = BY_NAME[case]
    if not applies(name, case):
        pytest.skip("needs one-hot labels")
    loss = LOSSES[name][0](**case.options)
    start = case.predictions.astype("float64")

    def value(z):
        rows = ref.read(case.labels, z, case.weight, from_logits=True)
        return expected(name, rows)

    _, gradient = value_and_gradient(
        lambda z: loss(case.labels, z, case.weight), start
    )
    silent = np.ones(24, bool)
    silent[case.rows().place] = False
    flat = gradient.reshape(24, -1)
    np.testing.assert_array_equal(flat[silent], 0.0)
    rng = np.random.default_rng(0)
    clean = np.where(np.isfinite(start) & (np.abs(start) < 1e9), start, 0.0)
    for _ in range(4):
        direction = rng.normal(size=start.shape)
        direction[silent.reshape(case.lead)] = 0.0
        step = 1e-5 * direction
        slope = (value(clean + step) - value(clean - step)) / 2e-5
        found = (np.asarray(gradient, "float64") * direction).sum()
        assert found == pytest.approx(slope, rel=2e-3, abs=2e-5)
