"""A closed gradient in the way of Keras, which a compiler of torch takes."""

import numpy as np
import pytest
from keras import ops

from keras_calib.ops import gradients
from tests.helpers import to_numpy


def cube(x):
    return x**3, lambda upstream: 3 * x**2 * upstream


def test_the_way_of_keras_is_the_same_function():
    value_and_gradient = gradients._in_the_way_of_keras(cube)
    x, upstream = ops.arange(3, dtype="float32"), ops.ones(3)
    value, backward = value_and_gradient(x)
    np.testing.assert_allclose(to_numpy(value), [0, 1, 8])
    # JAX and TensorFlow pass `upstream` by position.
    np.testing.assert_allclose(to_numpy(backward(upstream)), [0, 3, 12])


@pytest.mark.backends("torch", reason="torch's own arguments")
def test_torch_passes_the_tensors_too():
    torch = pytest.importorskip("torch")
    _, backward = gradients._in_the_way_of_keras(cube)(torch.arange(3.0))
    x = torch.tensor([1.0, 2, 3], requires_grad=True)
    with torch.no_grad():
        found = backward(x.detach(), upstream=torch.ones(3))
    np.testing.assert_allclose(to_numpy(found), [0, 3, 12])
    # Where the gradient is recorded, it is that of these tensors.
    recorded = backward(x, upstream=torch.ones(3))
    np.testing.assert_allclose(to_numpy(recorded.detach()), [3, 12, 27])
    recorded.sum().backward()
    np.testing.assert_allclose(to_numpy(x.grad), [6, 12, 18])


@pytest.mark.backends("torch", reason="torch.compile")
def test_a_compiler_takes_the_way_of_keras(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    x = torch.tensor([1.0, 2], requires_grad=True)
    gradients.closed_gradient(cube)(x).sum().backward()
    np.testing.assert_allclose(to_numpy(x.grad), [3, 12])
