"""Affine maps in the weights of a layer, and what cannot hold one."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_calib.keras_graph.fuse import copy_with_bias
from keras_calib.keras_graph.fuse import fuse
from tests.helpers import to_numpy

X = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
MATRICES = {
    "scalar": np.array(0.5),
    "diagonal": np.array([0.3, 1.7]),
    "full": np.array([[0.9, 0.2], [-0.4, 1.6]]),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_one_unit_is_two_logits(kind):
    matrix, bias = MATRICES[kind], np.array([0.4, -1.1])
    layer = layers.Dense(1, bias_initializer="ones")
    z = to_numpy(layer(X))[:, 0]
    two = np.stack([np.zeros_like(z), z], axis=1)
    two = (two @ matrix if matrix.ndim == 2 else two * matrix) + bias
    fuse(layer, (matrix, bias))
    found = to_numpy(layer(X))[:, 0]
    np.testing.assert_allclose(found, two[:, 1] - two[:, 0], rtol=1e-4)


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize(
    "layer, shape",
    [
        (layers.Conv1D(6, 3, padding="causal", groups=3), (8, 9)),
        (layers.Conv2D(6, 2, dilation_rate=2, groups=2), (5, 5, 8)),
    ],
    ids=["1d", "2d"],
)
def test_a_convolution_of_groups(layer, shape, use_bias, kind):
    """A full matrix mixes filters of different channels."""
    rng = np.random.default_rng(1)
    matrix = {
        "scalar": np.array(0.5),
        "diagonal": rng.normal(size=6),
        "full": rng.normal(size=(6, 6)),
    }[kind]
    config = {**layer.get_config(), "use_bias": use_bias}
    layer = type(layer).from_config(config)
    inputs = keras.Input(shape)
    expected = layer(inputs)
    bias = rng.normal(size=6)
    logits, copy = copy_with_bias(layer, inputs, "copy", final=False)
    fuse(copy, (matrix, bias))
    x = rng.normal(size=(4, *shape)).astype("float32")
    z, found = keras.Model(inputs, [expected, logits]).predict(x, verbose=0)
    z = z @ matrix if kind == "full" else z * matrix
    np.testing.assert_allclose(found, z + bias, rtol=1e-4, atol=1e-4)


def test_classes_on_the_first_axis_are_refused():
    inputs = keras.Input((8, 4, 4))
    head = layers.Conv2D(3, 1, data_format="channels_first")
    head(inputs)
    with pytest.raises(ValueError, match="have their classes on the first"):
        copy_with_bias(head, inputs, "copy", final=False)
