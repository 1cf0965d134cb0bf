"""A published network, whose training nobody here has seen, is calibrated.

The ResNet-20 of akamaster/pytorch_resnet_cifar10 (91.7 % on CIFAR-10), from a
file of its weights. Its authors trained on all training images, so the test
images are the only ones that it has not seen: a part of them calibrates, the
others tell what came of it.

    KERAS_CALIB_DATA=folder python examples/stories/published_network.py

needs `resnet20_cifar10_weights.npz` and CIFAR-10 in the folder; see
`kc.datasets.load`.
"""

import os
import pathlib
import sys

import keras
import numpy as np
from common import tell

import keras_calib as kc

sys.path.append(str(pathlib.Path(__file__).parents[1] / "papers"))
import networks

CALIBRATION, TEST = 1000, 3000


def main():
    keras.utils.set_random_seed(0)
    folder = pathlib.Path(os.environ["KERAS_CALIB_DATA"])
    inputs = keras.layers.Normalization(
        mean=networks.PUBLISHED_MEAN,
        variance=np.square(networks.PUBLISHED_DEVIATION),
    )
    model = networks.published(
        folder / "resnet20_cifar10_weights.npz", inputs=inputs
    )
    *_, (x, y) = kc.datasets.load("cifar10")
    order = np.random.default_rng(0).permutation(len(y))
    held, test = np.split(order[: CALIBRATION + TEST], [CALIBRATION])
    calibrated = kc.calibrate(model, x[held], y[held], verbose=0)
    accuracy = (model.predict(x[test], verbose=0).argmax(-1) == y[test]).mean()
    tell(
        model,
        calibrated,
        x[test],
        y[test],
        accuracy=float(accuracy),
        temperature=kc.calibration_record(calibrated)["temperature"],
    )


if __name__ == "__main__":
    main()
