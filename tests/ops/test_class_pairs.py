"""The mean over pairs of classes, against a matrix of them."""

import numpy as np
import pytest
from keras import ops

from keras_calib.ops.class_pairs import mean_over_pairs_of_softplus
from tests.helpers import value_and_gradient


def over_pairs(function, z):
    """The mean over ordered pairs `k != l` of a function of `z_l - z_k`."""
    values = function(z[:, None, :] - z[:, :, None])
    off_diagonal = ~np.eye(z.shape[1], dtype=bool)
    return values[:, off_diagonal].mean(axis=1)


@pytest.mark.parametrize("num_classes", [2, 3, 4, 7, 10])
def test_value(num_classes):
    z = np.random.default_rng(num_classes).normal(size=(5, num_classes)) * 3
    found = mean_over_pairs_of_softplus(ops.convert_to_tensor(z, "float32"))
    expected = over_pairs(lambda d: np.logaddexp(0, d), z)
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected, rtol=1e-5)


@pytest.mark.parametrize("num_classes", [2, 5, 6])
def test_gradient(num_classes):
    z = np.random.default_rng(num_classes).normal(size=(3, num_classes))
    _, found = value_and_gradient(
        lambda z: ops.sum(mean_over_pairs_of_softplus(z)), z
    )
    step = 1e-6

    def value(change):
        return over_pairs(lambda d: np.logaddexp(0, d), z + change).sum()

    expected = np.zeros_like(z)
    for index in np.ndindex(*z.shape):
        change = np.zeros_like(z)
        change[index] = step
        expected[index] = (value(change) - value(-change)) / (2 * step)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_far_classes_are_finite():
    z = ops.convert_to_tensor([[0.0, 1e30, -1e30]], "float32")
    value = ops.convert_to_numpy(mean_over_pairs_of_softplus(z))
    # softplus(d) + softplus(-d) is |d| of a far pair: 1e30 + 1e30 + 2e30.
    np.testing.assert_allclose(value, [4e30 / 6], rtol=1e-6)


def test_gradient_of_tied_classes_is_that_of_the_others():
    # Of a tie it is tanh(0) = 0; other pairs give tanh(d / 2) / (n (n - 1)).
    z = np.array([[1.0, 1.0, 3.0], [2.0, 2.0, 2.0]])
    _, found = value_and_gradient(
        lambda z: ops.sum(mean_over_pairs_of_softplus(z)), z
    )
    t = np.tanh(1.0) / 6
    np.testing.assert_allclose(found, [[-t, -t, 2 * t], [0, 0, 0]], atol=1e-6)
