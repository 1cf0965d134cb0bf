"""Street scenes: train a segmentation, calibrate it, look at its errors.

A small U-Net learns CamVid (street scenes, 11 classes, void pixels count
nowhere). Its 101 validation images are halved: the first half watches training,
the second half calibrates, with one temperature, with a temperature per pixel
(`method="local_temperature"`) and with `method="auto"`, once with `groups=`
that take every image as independent of the others. The table is
of all valid pixels of the 233 test images; the noise floor of the ECE takes
pixels as independent, which they are not, so it is a lower limit.

    KERAS_CALIB_DATA=folder python examples/segmentation.py [--epochs 12]

needs `camvid_small.npz`, or the folder `CamVid` of the SegNet tutorial; see
`kc.datasets.load`. About ten minutes on two cores. `--figure FILE` draws the
labels, the confidence and the error of three test scenes: where the error is
light, the prediction is wrong and sure. On JAX (x86-64, two cores, 2026-11-26)
the table is

    | model | accuracy | mIoU | NLL | ECE | floor of ECE |
    |---|---|---|---|---|---|
    | as trained | 0.8073 | 0.3553 | 0.6400 | 0.0415 | 0.0005 |
    | temperature | 0.8073 | 0.3553 | 0.6351 | 0.0245 | 0.0006 |
    | local temperature | 0.8073 | 0.3553 | 0.8780 | 0.0958 | 0.0005 |
    | auto | 0.8073 | 0.3553 | 0.6351 | 0.0245 | 0.0006 |
    | auto, every image a group | 0.7728 | 0.3480 | 0.8394 | 0.0751 | 0.0005 |

What was fitted to more than a temperature is worse than nothing. It passed on
held-out images, but CamVid's validation images are frames of one drive, and the
test images are of others: the images are not independent, and `groups=` with a
number for each said that they are. So over pixels `"auto"` alone is temperature
scaling. With several drives, pass the drive of each image as `groups=`.
"""

import argparse
import pathlib
import sys

import keras
import numpy as np
import pictures

import keras_calib as kc

sys.path.insert(0, str(pathlib.Path(__file__).with_name("papers")))
import networks
import training
from argument_types import positive_int

VOID, NUM_CLASSES = 255, 11


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=positive_int, default=12)
    pictures.add_option(parser)
    options = parser.parse_args(arguments)
    train, (x, y), test = kc.datasets.load("camvid")
    middle = len(y) // 2
    validation, held = (x[:middle], y[:middle]), (x[middle:], y[middle:])
    keras.utils.set_random_seed(0)
    model = fit(train, validation, options.epochs)
    models = {
        "as trained": keras.Sequential([model, keras.layers.Softmax()]),
        "temperature": kc.calibrate(model, *held, ignore_class=VOID),
        "local temperature": kc.calibrate(
            model, *held, ignore_class=VOID, method="local_temperature"
        ),
        "auto": kc.calibrate(model, *held, ignore_class=VOID, method="auto"),
        "auto, every image a group": kc.calibrate(
            model,
            *held,
            ignore_class=VOID,
            method="auto",
            groups=np.arange(len(held[1])),
        ),
    }
    print("| model | accuracy | mIoU | NLL | ECE | floor of ECE |")
    print("|---|---|---|---|---|---|")
    for name, each in models.items():
        print_row(name, each.predict(test[0], 16, verbose=0), test[1])
    if options.figure:
        draw(models["temperature"], test, options.figure)
    return models


def fit(train, validation, epochs):
    """A U-Net with logits, and its calibration after every epoch."""
    model = networks.unet(
        NUM_CLASSES,
        shape=train[0].shape[1:3],
        inputs=training.Augment(0, mirror=False),
        width=12,
    )
    model.compile(
        keras.optimizers.Adam(2e-3),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=VOID
        ),
    )
    monitor = kc.callbacks.CalibrationMonitor(
        ignore_class=VOID, from_logits=True
    )
    batches = training.MirroredPairs(*train, batch_size=8, seed=0)
    model.fit(
        batches,
        epochs=epochs,
        validation_data=validation,
        callbacks=[monitor],
        verbose=2,
    )
    return model


def print_row(name, p, labels):
    """Errors of all valid pixels."""
    ece = "expected_calibration_error"
    found = kc.metrics.calibration_errors(
        labels,
        p,
        ignore_class=VOID,
        metrics=["accuracy", "negative_log_likelihood", ece],
        floor=True,
        verbose=0,
    )
    overlap = keras.metrics.MeanIoU(
        NUM_CLASSES, ignore_class=VOID, sparse_y_pred=True
    )
    overlap.update_state(labels.astype("int32"), p.argmax(axis=-1))
    print(
        f"| {name} | {found['accuracy']:.4f} | {float(overlap.result()):.4f} "
        f"| {found['negative_log_likelihood']:.4f} | {found[ece]:.4f} "
        f"| {found[f'{ece}_floor']:.4f} |"
    )


def draw(model, test, path):
    """Labels, confidence and error of three test scenes."""
    from matplotlib import pyplot

    x, y = (each[::80] for each in test)
    figure, axes = pyplot.subplots(3, 3, figsize=(9, 7), layout="compressed")
    p = model.predict(x, verbose=0)
    for row, labels, each in zip(axes, y, p, strict=True):
        kc.plots.confidence_map(labels, each, ignore_class=VOID, axes=row)
    pictures.save(figure, path)


if __name__ == "__main__":
    main()
