"""A stateless `train_step` of one's own on JAX, with a focal loss and ECE.

In the manner of the Keras guide on overriding `train_step` with JAX: all that
changes comes in as `state` and goes out of the step.

    cd examples/stories
    KERAS_BACKEND=jax python custom_train_step_jax.py
"""

import jax
import keras
import made
from common import train_and_tell

import keras_calib as kc


class CustomModel(keras.Model):
    """A model with a step of its own."""

    def loss_and_updates(self, trainable, non_trainable, x, y):
        y_pred, non_trainable = self.stateless_call(
            trainable, non_trainable, x, training=True
        )
        return self.compute_loss(x, y, y_pred), (y_pred, non_trainable)

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        x, y = data
        gradient = jax.value_and_grad(self.loss_and_updates, has_aux=True)
        (loss, (y_pred, non_trainable)), gradients = gradient(
            trainable, non_trainable, x, y
        )
        trainable, optimizer = self.optimizer.stateless_apply(
            optimizer, gradients, trainable
        )
        logs, new_metrics = {}, []
        for metric in self.metrics:
            start = len(new_metrics)
            own = metrics[start : start + len(metric.variables)]
            given = (loss,) if metric.name == "loss" else (y, y_pred)
            own = metric.stateless_update_state(own, *given)
            logs[metric.name] = metric.stateless_result(own)
            new_metrics += own
        return logs, (trainable, non_trainable, optimizer, new_metrics)


if __name__ == "__main__":
    loss = kc.losses.FocalLoss(gamma=1.0, from_logits=True)
    train_and_tell(CustomModel, loss, made.table())
