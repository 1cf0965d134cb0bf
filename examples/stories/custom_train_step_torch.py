"""A `train_step` of one's own on PyTorch, with MDCA and ECE watched.

In the manner of the Keras guide on overriding `train_step` with PyTorch.

    cd examples/stories
    KERAS_BACKEND=torch python custom_train_step_torch.py
"""

import keras
import made
import torch
from common import tell

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


def main():
    keras.utils.set_random_seed(0)
    train, calibration, test = made.table()
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(64, activation="relu")(inputs)
    model = CustomModel(inputs, keras.layers.Dense(3)(hidden))
    model.compile(
        keras.optimizers.Adam(0.01),
        kc.losses.MDCA(from_logits=True),
        metrics=[kc.metrics.ExpectedCalibrationError(from_logits=True)],
    )
    history = model.fit(*train, epochs=30, verbose=0).history
    calibrated = kc.calibrate(model, *calibration, verbose=0)
    watched = history["expected_calibration_error"][-1]
    tell(model, calibrated, *test, training_ece=watched)


if __name__ == "__main__":
    main()
