"""What holds for every loss, whatever its formula."""

import inspect
import json

import keras
import numpy as np
import pytest
from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

import keras_calib as kc
from tests.helpers import small_network
from tests.helpers import to_numpy
from tests.helpers import value_and_gradient
from tests.losses.fixtures import ALL_LOSSES
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import B
from tests.losses.fixtures import assert_gradient
from tests.losses.fixtures import in_float64

LOSSES = [
    *ALL_LOSSES,
    kc.losses.ACLS(
        margin=1.0, stop_gradient=False, from_logits=True, name="acls"
    ),
    kc.losses.MarginLabelSmoothing(margin=1.0, from_logits=True, name="margin"),
    kc.losses.FocalLoss(from_logits=True, name="focal"),
]
EACH_LOSS = pytest.mark.parametrize("loss", LOSSES, ids=lambda x: x.name)


def rebuilt(loss, **changes):
    return type(loss).from_config({**loss.get_config(), **changes})


def test_every_public_loss_is_in_the_battery():
    bases = {"ClassificationLoss", "PenalizedLoss"}
    # They need state over epochs and have tests of their own.
    bases |= {"AdaFocalLoss", "CRL"}
    public = {
        name
        for name in kc.losses.__all__
        if isinstance(getattr(kc.losses, name), type)
        and issubclass(getattr(kc.losses, name), keras.losses.Loss)
    }
    assert public - bases == {type(loss).__name__ for loss in LOSSES}, (
        "a line in _losses of tests/losses/fixtures.py for each loss"
    )


def test_defaults_of_a_class_are_those_of_its_function():
    names = [name for name in kc.losses.__all__ if name.islower()]
    classes = {name.lower(): name for name in set(kc.losses.__all__) - {*names}}
    for name in names:
        one = inspect.signature(getattr(kc.losses, name)).parameters
        own = getattr(kc.losses, classes[name.replace("_", "")])
        two = inspect.signature(own).parameters
        for key in [key for key in one if key in two]:
            assert one[key].default == two[key].default, (name, key)


@EACH_LOSS
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_gradient_is_the_slope_of_the_value(loss, seed):
    if getattr(loss, "stop_gradient", False):
        return  # the gradient is another one on purpose
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(5, 4))
    labels = rng.integers(0, 4, 5)
    direction = rng.normal(size=logits.shape)

    def mean(z):
        # Without Keras' reduction, which is in float32.
        rows = loss.rows(labels, z)
        per_row, batch = loss.terms(rows)
        return rows.mean(per_row) + batch

    def slope(step):
        high, _ = in_float64(mean, logits + step * direction)
        low, _ = in_float64(mean, logits - step * direction)
        return (high - low) / (2 * step)

    expected = slope(1e-6)
    close = pytest.approx(expected, rel=1e-6, abs=1e-7)
    assume(slope(5e-7) == close)  # else a kink lies in between
    _, gradient = in_float64(mean, logits)
    assert np.sum(gradient * direction) == close


@EACH_LOSS
def test_void_pixels_are_pixels_filtered_by_hand(loss):
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(2, 2, 3, 4))
    labels = rng.integers(0, 4, (2, 2, 3))
    labels[0, 0, 1] = labels[1, 1] = 255
    keep = labels != 255
    alone, expected = value_and_gradient(
        lambda z: loss(labels[keep], z), logits[keep]
    )
    ignoring = rebuilt(loss, ignore_class=255)
    value, gradient = value_and_gradient(lambda z: ignoring(labels, z), logits)
    assert value == pytest.approx(alone, rel=2e-6)
    assert_gradient(gradient[keep], expected, tolerance=5e-6)
    np.testing.assert_array_equal(gradient[~keep], 0.0)


@EACH_LOSS
def test_order_of_rows_does_not_matter(loss):
    order = [2, 0, 3, 1]
    value, gradient = value_and_gradient(lambda z: loss(LABELS_B, z), B)
    again, moved = value_and_gradient(
        lambda z: loss(LABELS_B[order], z), B[order]
    )
    assert value == pytest.approx(again, rel=1e-6)
    assert_gradient(moved, gradient[order])


# Rows of two classes: saturated, tied, and nothing special.
EDGES = {
    "ties": np.zeros((4, 4)),
    "one of each": np.array(
        [[1e4, -1e4, 0, 0], [5, 5, 0, 0], [0, 0, 0, 0], [-1e4, 1e4, 1e4, 0]]
    ),
    "all right": 20 * np.eye(4)[LABELS_B],
    "all wrong": -20 * np.eye(4)[LABELS_B],
}


@EACH_LOSS
def test_edges_are_finite(loss):
    cases = [(LABELS_B, z) for z in EDGES.values()]
    cases += [(LABELS_B[1:2], B[1:2])]  # a batch of one
    cases += [(LABELS_B % 2, B[:, :2])]  # two classes
    for labels, logits in cases:
        value, gradient = value_and_gradient(
            lambda z, y=labels: loss(y, z), logits
        )
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


@EACH_LOSS
def test_equal_rows_have_equal_gradients(loss):
    # Two equal rows with equal labels: neither may come first.
    order = [0, 1, 1, 2]
    _, gradient = value_and_gradient(
        lambda z: loss(LABELS_B[order], z), B[order]
    )
    assert_gradient(gradient[1], gradient[2])


@EACH_LOSS
def test_half_precision_gradients_are_finite(loss):
    for dtype in ("float16", "bfloat16"):
        if dtype == "bfloat16" and not hasattr(np, dtype):
            import ml_dtypes  # comes with JAX and TensorFlow

            dtype = ml_dtypes.bfloat16
            if keras.backend.backend() == "torch":
                continue  # takes no such arrays; values are in test_base
        _, gradient = value_and_gradient(lambda z: loss(LABELS_B, z), B, dtype)
        assert np.isfinite(gradient.astype("float32")).all()


@EACH_LOSS
def test_a_replica_may_get_no_rows(loss):
    # A last batch of fewer rows than replicas leaves some with none.
    model = small_network(num_classes=4, inputs=4)
    model.compile("sgd", loss)
    # TensorFlow compiles for any size once sizes differ, JAX for each.
    on_jax = keras.backend.backend() == "jax"
    for batch in (0,) if on_jax else (40, 39, 0):
        x = np.resize(B, (batch, 4))
        value = model.train_on_batch(x, np.resize(LABELS_B, batch))
    assert value == 0
    for weights in model.get_weights():
        assert np.isfinite(weights).all()


PRIMARIES = {
    "cross_entropy": "cross_entropy",
    "focal": kc.losses.FocalLoss(from_logits=True),
    "brier": kc.losses.BrierLoss(from_logits=True),
    "smoothing": kc.losses.LabelSmoothing(from_logits=True),
    "dual": kc.losses.DualFocalLoss(from_logits=True),
    "keras": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
}
PENALTIES = {
    loss.name: loss
    for loss in LOSSES
    if isinstance(loss, kc.losses.PenalizedLoss)
}
# The objectives of Karandikar et al. (2021), Section 5: 3 x 5 of them.
PAPER = [
    (primary, penalty)
    for primary in ("cross_entropy", "focal", "brier")
    for penalty in ("mmce", "avuc", "avuc_gs", "sb_ece", "soft_avuc")
]


@pytest.mark.parametrize("penalty", PENALTIES)
def test_any_primary_meets_any_penalty(penalty):
    penalty = PENALTIES[penalty]
    bare = float(rebuilt(penalty, primary=None)(LABELS_B, B))
    for primary in PRIMARIES.values():
        loss = rebuilt(penalty, primary=None)
        loss.primary = primary
        if primary == "cross_entropy":
            alone = 0.88972146
        else:
            alone = float(primary(LABELS_B, B))
        value = float(loss(LABELS_B, B))
        assert value == pytest.approx(alone + bare, rel=1e-6)
        text = json.dumps(keras.saving.serialize_keras_object(loss))
        again = keras.saving.deserialize_keras_object(json.loads(text))
        assert float(again(LABELS_B, B)) == value


def fit_one_epoch(primary, penalty, digits, **compile_arguments):
    loss = rebuilt(PENALTIES[penalty], primary=None)
    loss.primary = PRIMARIES[primary]
    model = small_network()
    model.compile(
        "sgd",
        loss,
        metrics=["accuracy", *loss.component_metrics()],
        **compile_arguments,
    )
    (x, y), _, _ = digits
    logs = model.fit(x, y, batch_size=100, verbose=0).history
    total = logs["primary_loss"][0] + loss.weight * logs["penalty"][0]
    assert logs["loss"][0] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize(
    ("primary", "penalty"),
    [
        ("focal", "sb_ece"),
        ("brier", "soft_avuc"),
        ("cross_entropy", "mmce_weighted"),
    ],
)
def test_fit(primary, penalty, digits):
    fit_one_epoch(primary, penalty, digits)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("primary", PRIMARIES)
def test_fit_the_whole_product(primary, penalty, digits):
    assert {p for p, _ in PAPER} <= set(PRIMARIES)
    assert {p for _, p in PAPER} <= set(PENALTIES)
    fit_one_epoch(primary, penalty, digits)


class CountingDense(keras.layers.Dense):
    calls = 0

    def call(self, inputs):
        type(self).calls += 1
        return super().call(inputs)


def test_parts_cost_no_forward_pass(digits):
    (x, y), _, _ = digits
    loss = kc.losses.MDCA(from_logits=True)
    calls = []
    for metrics in ([], loss.component_metrics()):
        model = keras.Sequential([keras.Input((64,)), CountingDense(10)])
        model.compile("sgd", loss, metrics=metrics, run_eagerly=True)
        CountingDense.calls = 0
        model.fit(x[:200], y[:200], batch_size=100, verbose=0)
        calls.append(CountingDense.calls)
    assert calls[0] == calls[1] > 0


@pytest.mark.backends("torch", reason="torch has a default dtype")
@EACH_LOSS
def test_default_dtype_of_torch_changes_nothing(loss):
    import torch

    rng = np.random.default_rng(0)
    # More rows than MMCE takes to a matrix of pairs.
    logits = rng.normal(size=(200, 5)).astype("float32")
    labels = rng.integers(0, 5, 200)

    def found():
        z = torch.tensor(logits, requires_grad=True)
        value = loss(labels, z)
        value.backward()
        return value.detach().numpy(), z.grad.numpy()

    expected = found()
    torch.set_default_dtype(torch.float64)
    try:
        wide = found()
    finally:
        torch.set_default_dtype(torch.float32)
    for one, two in zip(wide, expected, strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)


SCALARS = ("mdca", "dca", "mmce", "soft_binned_ece", "avuc", "soft_avuc")
PER_ROW = (
    *("focal_loss", "brier_loss", "cpc", "dual_focal_loss", "label_smoothing"),
    *("margin_label_smoothing", "inverse_focal_loss", "entropy_regularization"),
    *("sample_dependent_focal_loss", "acls", "squared_logit_loss"),
)


@pytest.mark.parametrize("name", [*SCALARS, *PER_ROW])
def test_functions_give_nan_for_an_impossible_label_in_compiled_code(
    name, monkeypatch
):
    # Compiled code sees no values.
    sees = "keras_calib.inputs.rows.concrete_value"
    monkeypatch.setattr(sees, lambda tensor: None)
    logits = np.array([[2.0, 0.5, -1.0], [0.1, 0.3, 0.2]], "float32")
    found = to_numpy(getattr(kc.losses, name)(np.array([7, 1]), logits))
    if name in SCALARS:
        assert np.isnan(found)
    else:
        np.testing.assert_array_equal(np.isnan(found), [True, False])
