"""A frozen body of `keras.applications`, a new head, then fine-tuning.

In the manner of the Keras guide on transfer learning, without a download: the
body starts from random weights. The calibrated model is one file.

    python examples/stories/transfer_learning.py
"""

import pathlib
import tempfile

import keras
import made
import numpy as np
from common import tell
from keras import layers

import keras_calib as kc


def enlarged(part):
    """Images of 12 x 12 pixels as such of 32 x 32 with three channels."""
    x, y = part
    x = np.pad(x, [(0, 0), (2, 2), (2, 2), (0, 0)])
    return np.kron(x, np.ones((1, 2, 2, 3), "float32")), y


def with_new_head(body):
    inputs = keras.Input((32, 32, 3))
    # In inference mode, as batch statistics would undo what it has learned.
    features = body(inputs, training=False)
    dropped = layers.Dropout(0.2)(features)
    return keras.Model(inputs, layers.Dense(3)(dropped))


def main():
    keras.utils.set_random_seed(0)
    train, calibration, test = map(enlarged, made.images(400))
    body = keras.applications.MobileNetV2(
        (32, 32, 3), alpha=0.35, include_top=False, weights=None, pooling="avg"
    )
    body.trainable = False
    model = with_new_head(body)
    loss = kc.losses.LabelSmoothing(smoothing=0.05, from_logits=True)
    for trainable, rate in ((False, 0.05), (True, 0.001)):
        body.trainable = trainable
        model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
        model.fit(*train, epochs=2, batch_size=50, verbose=0)
    calibrated = kc.calibrate(model, *calibration, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "calibrated.keras"
        calibrated.save(file)
        calibrated = keras.saving.load_model(file)
    tell(model, calibrated, *test)


if __name__ == "__main__":
    main()
