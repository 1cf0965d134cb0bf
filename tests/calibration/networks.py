"""Small networks whose best temperature is known, shared by these tests."""

import keras
import numpy as np
from keras import layers

from keras_calib.layers._base import CalibrationLayer
from keras_calib.solvers.temperature import fit_temperature

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 8)).astype("float32")
# What the networks below are built from; labels follow softer logits.
KERNEL = RNG.normal(size=(8, 3)).astype("float32") * 2
LOGITS = X @ KERNEL
Y = (LOGITS / 2 + RNG.gumbel(size=LOGITS.shape)).argmax(-1)
EXPECTED = fit_temperature(LOGITS.astype("float64"), Y).temperature


def dense(activation=None, **kwargs):
    return layers.Dense(3, activation, use_bias=False, **kwargs)


def functional(*stages):
    tensor = inputs = keras.Input((8,))
    for stage in stages:
        tensor = stage(tensor)
    return keras.Model(inputs, tensor)


def built(model):
    model(X[:1])
    for weight in model.weights:
        weight.assign(KERNEL)
    return model


@keras.saving.register_keras_serializable(package="tests")
class Subclassed(keras.Model):
    def __init__(self, activation=None, **kwargs):
        super().__init__(**kwargs)
        self.activation = activation
        self.dense = layers.Dense(3, activation, use_bias=False)

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        return {**super().get_config(), "activation": self.activation}


IDENTITY = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


@keras.saving.register_keras_serializable(package="tests")
class Affine(CalibrationLayer):
    """A map that any test can set: `logits @ matrix + bias`, never fitted."""

    def __init__(self, matrix=IDENTITY, **kwargs):
        super().__init__(**kwargs)
        self.matrix = matrix

    def build(self, input_shape):
        num_classes = max(2, input_shape[-1])
        self.kernel = self.add_weight(
            (num_classes, num_classes), "identity", name="kernel"
        )
        self.bias = self.add_weight((num_classes,), "zeros", name="bias")
        self.built = True

    def solve(self, logits, labels, weights, objective):
        bias = np.arange(logits.shape[-1]) / 10
        return {"kernel": np.array(self.matrix), "bias": bias}, {}

    def degrees_of_freedom(self, num_classes):
        return num_classes * (num_classes + 1)

    def as_affine(self, num_classes):
        return tuple(self.get_weights())

    def call(self, logits):
        return logits @ self.kernel + self.bias

    def get_config(self):
        return {**super().get_config(), "matrix": self.matrix}
