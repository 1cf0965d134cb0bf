"""A trained body, frozen under a new head, then fine-tuned on few images.

In the manner of the Keras guide on transfer learning, without a download: the
body learns horizontal stripes here, and is taken to vertical ones. The
calibrated model is one file.

    python examples/stories/transfer_learning.py
"""

import pathlib
import tempfile

import keras
import made
from common import tell
from keras import layers

import keras_calib as kc


def convnet():
    return keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
        ],
        name="body",
    )


def with_head(body):
    inputs = keras.Input((12, 12, 1))
    # In inference mode, as batch statistics would undo what it has learned.
    features = body(inputs, training=False)
    dropped = layers.Dropout(0.2)(features)
    return keras.Model(inputs, layers.Dense(3)(dropped))


def trained_body(loss):
    body = convnet()
    model = keras.Sequential([body, layers.Dense(3)])
    model.compile(keras.optimizers.Adam(0.003), loss)
    (x, y), _, _ = made.images(4000, seed=1)
    model.fit(x, y, epochs=6, batch_size=50, verbose=0)
    return body


def vertical(part):
    x, y = part
    return x.transpose(0, 2, 1, 3), y


def main():
    keras.utils.set_random_seed(0)
    loss = kc.losses.MarginLabelSmoothing(margin=10.0, from_logits=True)
    body = trained_body(loss)
    train, calibration, test = map(vertical, made.images(1200))
    model = with_head(body)
    for trainable, rate in ((False, 0.01), (True, 0.002)):
        body.trainable = trainable
        model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
        model.fit(*train, epochs=12, batch_size=50, verbose=0)
    calibrated = kc.calibrate(model, *calibration, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "calibrated.keras"
        calibrated.save(file)
        calibrated = keras.saving.load_model(file)
    tell(model, calibrated, *test)


if __name__ == "__main__":
    main()
