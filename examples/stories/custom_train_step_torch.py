"""A `train_step` of one's own on PyTorch, with MDCA and ECE watched.

In the manner of the Keras guide on overriding `train_step` with PyTorch.

    cd examples/stories
    KERAS_BACKEND=torch python custom_train_step_torch.py
"""

import keras
import made
import torch
from common import train_and_tell

import keras_calib as kc


class CustomModel(keras.Model):
    """A model with a step of its own."""

    def train_step(self, data):
        x, y = data
        self.zero_grad()
        y_pred = self(x, training=True)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        loss.backward()
        trainable = list(self.trainable_weights)
        gradients = [weight.value.grad for weight in trainable]
        with torch.no_grad():
            self.optimizer.apply(gradients, trainable)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


if __name__ == "__main__":
    loss = kc.losses.MDCA(from_logits=True)
    train_and_tell(CustomModel, loss, made.table())
