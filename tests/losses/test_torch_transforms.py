"""Losses under `torch.func`: the derivatives that autograd finds."""

import keras
import numpy as np
import pytest

from keras_calib.losses._mmce import quadratic_form
from tests.losses.test_battery import LOSSES

pytestmark = pytest.mark.backends("torch", reason="transforms of torch")

LABELS = np.arange(9) % 5
LOGITS = 1.5 * np.random.default_rng(0).normal(size=(3, 9, 5))
DIRECTION = np.random.default_rng(1).normal(size=(9, 5))


@pytest.fixture(autouse=True)
def double_precision():
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx("float32")


@pytest.fixture(params=[*LOSSES, "sorted"], ids=lambda x: getattr(x, "name", x))
def function(request, monkeypatch):
    """A loss of logits alone, without Keras' reduction, which has 32 bits."""
    import torch

    loss = request.param
    if loss == "sorted":
        [loss] = [each for each in LOSSES if each.name == "mmce"]
        monkeypatch.setitem(quadratic_form.__globals__, "DENSE_ROWS", 0)
    labels = torch.tensor(LABELS)

    def mean(z):
        rows = loss.rows(labels, z)
        per_row, batch = loss.terms(rows)
        return rows.mean(per_row) + batch

    return mean


def tensors(*arrays):
    import torch

    return [torch.tensor(array) for array in arrays]


def by_autograd(function, z):
    """Gradient, and Hessian times `DIRECTION`, without a transform."""
    import torch

    z = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(z), z, create_graph=True)
    (direction,) = tensors(DIRECTION)
    (curved,) = torch.autograd.grad(
        (slope * direction).sum(), z, allow_unused=True
    )
    return slope.detach(), 0.0 * z if curved is None else curved


def assert_close(found, expected):
    # Keras' `cumsum`, in the sorted form of MMCE, has 32 bits.
    np.testing.assert_allclose(
        found.detach().numpy(), expected.detach().numpy(), rtol=1e-6, atol=1e-6
    )


def test_gradients(function):
    import torch

    (z,) = tensors(LOGITS[0])
    slope, curved = by_autograd(function, z)
    (direction,) = tensors(DIRECTION)
    assert_close(torch.func.grad(function)(z), slope)
    # Reverse over reverse, and forward over reverse.
    _, pull = torch.func.vjp(torch.func.grad(function), z)
    assert_close(pull(direction)[0], curved)
    _, pushed = torch.func.jvp(torch.func.grad(function), (z,), (direction,))
    assert_close(pushed, curved)


def test_forward_mode(function):
    import torch

    (z, direction) = tensors(LOGITS[0], DIRECTION)
    slope, _ = by_autograd(function, z)
    value, change = torch.func.jvp(function, (z,), (direction,))
    assert_close(value, function(z))
    assert_close(change, (slope * direction).sum())
    assert_close(torch.func.jacfwd(function)(z), slope)


def test_vmap(function):
    import torch

    (batches,) = tensors(LOGITS)
    expected = torch.stack([by_autograd(function, z)[0] for z in batches])
    values = torch.stack([function(z) for z in batches])
    assert_close(torch.func.vmap(function)(batches), values)
    found = torch.func.vmap(torch.func.grad(function))(batches)
    assert_close(found, expected)
    # Autograd outside of the transform.
    batches.requires_grad_()
    torch.func.vmap(function)(batches).sum().backward()
    assert_close(batches.grad, expected)
