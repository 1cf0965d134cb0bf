"""Pixels: segmentation with void borders, calibrated as whole images.

Discs and squares under noise, each with a border that nobody labeled. Pixels
of an image depend on each other, so folds and intervals are of images. The
picture has an image, its labels, the confidence and the errors.
`examples/segmentation.py` does the same with street scenes (CamVid), and with
a temperature per pixel.

    python examples/stories/pixels.py
"""

import keras
import numpy as np
from common import probabilities
from common import tell
from common import three_parts
from keras import layers

import keras_calib as kc

SIDE, VOID = 24, 255


def shapes(n=240, seed=0):
    """Background, discs and squares; the border of a shape is void."""
    rng = np.random.default_rng(seed)
    row, column = np.indices((SIDE, SIDE))
    labels = np.zeros((n, SIDE, SIDE), "uint8")
    for image in labels:
        for kind in (1, 2):
            middle, size = rng.uniform(6, SIDE - 6, 2), rng.uniform(3, 7)
            away = np.abs([row - middle[0], column - middle[1]])
            distance = away.max(axis=0) if kind == 2 else np.hypot(*away)
            image[distance < size] = kind
            image[np.abs(distance - size) < 0.5] = VOID
    shade = np.array([0.0, 0.5, 1.0])[np.where(labels == VOID, 0, labels)]
    noise = rng.normal(size=labels.shape) * rng.uniform(0.3, 1.2, (n, 1, 1))
    return three_parts((shade + noise)[..., None].astype("float32"), labels)


def network():
    """Scores of three classes at every pixel."""
    return keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            layers.Conv2D(16, 5, padding="same", activation="relu"),
            layers.Conv2D(16, 5, padding="same", activation="relu"),
            layers.Conv2D(3, 5, padding="same"),
        ]
    )


def main():
    keras.utils.set_random_seed(0)
    train, calibration, test = shapes()
    model = network()
    model.compile(
        keras.optimizers.Adam(0.003),
        kc.losses.FocalLoss(gamma=2.0, from_logits=True, ignore_class=VOID),
    )
    model.fit(*train, epochs=10, batch_size=10, verbose=0)
    calibrated = kc.calibrate(model, *calibration, ignore_class=VOID, verbose=0)

    def draw():
        from matplotlib import pyplot

        x, y = (part[:3] for part in test)
        p = probabilities(calibrated, x)
        figure, axes = pyplot.subplots(
            3, 4, figsize=(9, 6.5), layout="compressed"
        )
        for place, row in enumerate(axes):
            kc.plots.confidence_map(
                y[place],
                p[place],
                image=x[place, ..., 0],
                ignore_class=VOID,
                axes=row,
            )
        return figure

    tell(model, calibrated, *test, ignore_class=VOID, draw=draw)


if __name__ == "__main__":
    main()
