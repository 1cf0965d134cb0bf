"""Shift: is it still calibrated on noisy, blurred and foggy images?

A small network learns scikit-learn's digits, enlarged to 32 x 32 pixels, and is
calibrated on clean images. Then the corruptions of CIFAR-10-C are drawn over
the test images: the temperature of clean images is too low for most of them.

    python examples/stories/corrupted_images.py
"""

import keras
import numpy as np
from common import tell
from common import three_parts
from keras import layers
from sklearn.datasets import load_digits

import keras_calib as kc

KINDS = ["gaussian_noise", "defocus_blur", "fog", "contrast"]


def digits():
    """Bytes, in color, as the corruptions need them."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = images[order].reshape(-1, 8, 8, 1) * (255 / 16)
    images = np.kron(images, np.ones((1, 4, 4, 3))).astype("uint8")
    return three_parts(images, labels[order])


def network():
    return keras.Sequential(
        [
            keras.Input((32, 32, 3), dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 5, 2, activation="relu"),
            layers.Conv2D(32, 3, 2, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def main():
    keras.utils.set_random_seed(0)
    train, calibration, test = digits()
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.002), loss)
    model.fit(*train, epochs=15, batch_size=50, verbose=0)
    calibrated = kc.calibrate(model, *calibration, verbose=0)
    result = kc.shift.evaluate(
        {"as trained": model, "calibrated": calibrated},
        *test,
        corruptions=KINDS,
        severities=(1, 3, 5),
        num_resamples=50,
        verbose=0,
    )
    worst = {
        row["model"]: row["ece"] for row in result.means if row["severity"] == 5
    }
    tell(
        model,
        calibrated,
        *test,
        draw=result.plot,
        ece_at_5=worst["as trained"],
        calibrated_ece_at_5=worst["calibrated"],
    )


if __name__ == "__main__":
    main()
