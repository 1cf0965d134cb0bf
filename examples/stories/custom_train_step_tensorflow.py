"""A `train_step` of one's own on TensorFlow, with ACLS as loss and ECE watched.

In the manner of the Keras guide on overriding `train_step`. The loss comes from
`compile`, so that one of ours needs no change of the step.

    cd examples/stories
    KERAS_BACKEND=tensorflow python custom_train_step_tensorflow.py
"""

import keras
import made
import tensorflow as tf
from common import train_and_tell

import keras_calib as kc


class CustomModel(keras.Model):
    """A model with a step of its own."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


if __name__ == "__main__":
    loss = kc.losses.ACLS(from_logits=True)
    train_and_tell(CustomModel, loss, made.table())
