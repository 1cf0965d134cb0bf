"""Canaries for the private names of Keras that several networks need."""

import keras
import numpy as np

from keras_calib import keras_private
from tests.helpers import small_network


def test_forward_losses_are_there_in_a_step_on_jax_alone():
    seen = []

    class Looking(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2, activity_regularizer="l2")

        def call(self, x):
            return self.dense(x)

        def compute_loss(self, *args, **kwargs):
            seen.append(len(keras_private.forward_losses(self)))
            return super().compute_loss(*args, **kwargs)

    model = Looking()
    model.compile("sgd", "mse")
    model.train_on_batch(np.ones((4, 3)), np.ones((4, 2)))
    assert seen[-1] == (1 if keras.backend.backend() == "jax" else 0)
    assert keras_private.forward_losses(model) == []


def test_weight_decay_exclusions_are_copied():
    source = keras.optimizers.SGD(1.0, weight_decay=0.5)
    target = keras.optimizers.SGD(1.0, weight_decay=0.5)
    kernel, bias, other = (
        keras.Variable(np.ones(2), name=name)
        for name in ("kernel", "bias", "other")
    )
    source.exclude_from_weight_decay(var_list=[other], var_names=["bias"])
    keras_private.copy_weight_decay_exclusions(source, target)
    variables = [kernel, bias, other]
    target.build(variables)
    target.apply([keras.ops.zeros(2)] * 3, variables)
    found = [float(keras.ops.convert_to_numpy(v)[0]) for v in variables]
    assert found == [0.5, 1.0, 1.0]


def test_moving_averages():
    optimizer = keras.optimizers.SGD(1.0, use_ema=True)
    model = small_network()
    optimizer.build(model.trainable_variables)
    averages = keras_private.moving_averages(optimizer)
    shapes = [tuple(average.shape) for average in averages]
    assert shapes == [tuple(v.shape) for v in model.trainable_variables]
