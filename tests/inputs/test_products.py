"""Products in full precision, also where PyTorch lowers them."""

import contextlib

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.inputs.tensors import matmul
from tests.helpers import fitted_layers
from tests.helpers import to_numpy
from tests.helpers import value_and_gradient
from tests.losses.fixtures import ALL_LOSSES
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import B

RNG = np.random.default_rng(0)
LOGITS = (3 * RNG.normal(size=(200, 3))).astype("float32")
LABELS = RNG.integers(0, 3, 200)


def autocast():
    """PyTorch's block of half precision; elsewhere a block of nothing."""
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_a_product_of_either_kind():
    a, b = LOGITS[:4], LOGITS[:3]
    with autocast():
        found = matmul(keras.ops.convert_to_tensor(a), b)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(found), matmul(a, b), rtol=1e-5)


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=lambda loss: loss.name)
def test_losses(loss):
    def of(logits):
        return loss(LABELS_B, logits)

    expected, slope = value_and_gradient(of, B)

    def within(logits):
        with autocast():  # and not the way back, as PyTorch recommends
            return of(logits)

    found, found_slope = value_and_gradient(within, B)
    assert found == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(found_slope, slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        kc.metrics.ClasswiseCalibrationError,
        kc.metrics.ExpectedCalibrationError,
        kc.metrics.SmoothCalibrationError,
    ],
)
def test_metrics(make):
    outside, inside = make(from_logits=True), make(from_logits=True)
    outside.update_state(LABELS, LOGITS)
    with autocast():
        inside.update_state(LABELS, LOGITS)
    np.testing.assert_allclose(
        to_numpy(inside.result()), to_numpy(outside.result()), rtol=1e-5
    )


def test_calibrated_probabilities():
    for name, layer, classes in fitted_layers(LOGITS, LABELS):
        expected = layer(LOGITS[:, :classes])
        with autocast():
            found = layer(LOGITS[:, :classes])
        for one, other in zip(
            keras.tree.flatten(found), keras.tree.flatten(expected), strict=True
        ):
            np.testing.assert_allclose(
                to_numpy(one), to_numpy(other), rtol=1e-5, err_msg=name
            )
