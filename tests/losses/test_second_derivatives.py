"""Second derivatives: what a closed gradient is made of must have its own."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.losses._mmce import quadratic_form
from tests.helpers import compiled
from tests.helpers import to_numpy
from tests.losses.fixtures import in_float64
from tests.losses.test_battery import LOSSES

BACKEND = keras.backend.backend()
BOTH_WAYS = ("reverse", "forward") if BACKEND == "jax" else ("reverse",)


def curvature(function, x, direction, way="reverse", compiler=False):
    """The Hessian of a scalar function times a direction, with 64 bits."""
    wide = contextlib.nullcontext()
    if BACKEND == "jax":
        import jax

        wide = jax.enable_x64(True)
    keras.config.set_floatx("float64")
    try:
        with wide:
            x, direction = (ops.convert_to_tensor(a) for a in (x, direction))
            found = {
                "tensorflow": _with_tapes,
                "jax": _with_jax,
                "torch": _with_torch,
            }[BACKEND](function, way)
            found = compiled(found) if compiler else found
            return to_numpy(found(x, direction))
    finally:
        keras.config.set_floatx("float32")


def _with_tapes(function, way):
    import tensorflow as tf

    def product(x, direction):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = function(x)
            slope = tf.reduce_sum(inner.gradient(value, x) * direction)
        found = outer.gradient(slope, x)
        return tf.zeros_like(x) if found is None else found

    return product


def _with_jax(function, way):
    import jax

    slope = jax.grad(function)
    if way == "forward":
        return lambda x, direction: jax.jvp(slope, (x,), (direction,))[1]
    return lambda x, direction: jax.grad(
        lambda at: (slope(at) * direction).sum()
    )(x)


def _with_torch(function, way):
    import torch

    def product(x, direction):
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(function(x), x, create_graph=True)
        (found,) = torch.autograd.grad(
            (slope * direction).sum(), x, allow_unused=True
        )
        return torch.zeros_like(x) if found is None else found

    return product


def by_differences(function, x, direction, step=1e-5):
    _, high = in_float64(function, x + step * direction)
    _, low = in_float64(function, x - step * direction)
    return (high - low) / (2 * step)


def batch(rows=7, num_classes=5):
    rng = np.random.default_rng(1)
    logits = 1.5 * rng.normal(size=(rows, num_classes))
    labels = rng.integers(0, num_classes, rows)
    return logits, labels, rng.normal(size=logits.shape)


def mean_of(loss, labels):
    def mean(z):
        # Without Keras' reduction, which is in float32.
        rows = loss.rows(labels, z)
        per_row, batch = loss.terms(rows)
        return rows.mean(per_row) + batch

    return mean


@pytest.mark.parametrize("loss", LOSSES, ids=lambda x: x.name)
def test_curvature_is_the_slope_of_the_gradient(loss):
    # Held constant, as the gradient holds it.
    logits, labels, direction = batch()
    function = mean_of(loss, labels)
    expected = by_differences(function, logits, direction)
    found = curvature(function, logits, direction, BOTH_WAYS[-1])
    np.testing.assert_allclose(
        found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max() + 1e-9
    )


@pytest.mark.parametrize("confidence", ["softmax", "margin", "entropy"])
def test_curvature_of_crl(confidence):
    logits, labels, direction = batch()
    history = np.random.default_rng(0).uniform(size=len(labels))

    def function(z):
        return kc.losses.crl(labels, z, history, confidence=confidence)

    expected = by_differences(function, logits, direction)
    found = curvature(function, logits, direction)
    np.testing.assert_allclose(
        found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max()
    )


@pytest.mark.parametrize("way", BOTH_WAYS)
@pytest.mark.parametrize("num_classes", [3, 4])
def test_curvature_of_each_pair(num_classes, way):
    # With an even number of classes the last shift meets each pair twice.
    logits, labels, direction = batch(4, num_classes)

    def function(z):
        return ops.sum(kc.losses.cpc(labels, z))

    expected = by_differences(function, logits, direction)
    found = curvature(function, logits, direction, way)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("way", BOTH_WAYS)
@pytest.mark.parametrize(
    "arguments",
    [{}, {"weighted": True, "double_normalized": True}],
    ids=["plain", "double"],
)
def test_curvature_of_the_sorted_form(arguments, way, monkeypatch):
    logits, labels, direction = batch(40)
    logits[20:30] = logits[:10]  # equal confidences share a group

    def function(z):
        return kc.losses.mmce(labels, z, **arguments)

    expected = curvature(function, logits, direction, way)
    monkeypatch.setitem(quadratic_form.__globals__, "DENSE_ROWS", 0)
    found = curvature(function, logits, direction, way)
    scale = np.abs(expected).max()
    # On torch Keras' `cumsum` has 32 bits.
    np.testing.assert_allclose(found / scale, expected / scale, atol=1e-6)


@pytest.mark.parametrize("name", ["cpc", "mmce", "entropy_regularization"])
def test_compiled_curvature(name, monkeypatch):
    monkeypatch.setitem(quadratic_form.__globals__, "DENSE_ROWS", 0)
    logits, labels, direction = batch()

    def function(z):
        return ops.mean(getattr(kc.losses, name)(labels, z))

    found = curvature(function, logits, direction, compiler=True)
    expected = curvature(function, logits, direction)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)
