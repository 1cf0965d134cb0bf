"""A report and a model card: what a calibrated network may be trusted with.

A small network learns 100 of scikit-learn's digits, which ship in its wheel. So
few make it overconfident. It is calibrated with 400 others. The report compares
both on test images, in words, numbers and a picture. The card for the folder of
the model has the same numbers, and the whole record of the calibration.

    python examples/report_and_card.py

writes `report.html`, and the card, `README.md` and `reliability.png`, into the
folder `report`, and prints the words of the report. `--figure FILE` writes
the picture of the card there, too.
"""

import argparse
import pathlib
import shutil
import sys

import keras
import numpy as np
import pictures
from sklearn.datasets import load_digits

import keras_calib as kc


def digits():
    """100 images to train on, 400 to calibrate, the rest to test."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (images[order] / 16).astype("float32")
    splits = np.split(np.arange(len(labels)), [100, 500])
    return [(images[part], labels[order][part]) for part in splits]


def network():
    """Logits for ten digits."""
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main(arguments=()):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=pathlib.Path, default="report")
    pictures.add_option(parser)
    given = parser.parse_args(arguments)
    page = given.folder / "README.md"
    if page.exists() and not page.read_text("utf-8").startswith("---"):
        parser.error(f"{page} is no model card, and would be overwritten.")
    keras.utils.set_random_seed(0)
    training, calibration, test = digits()
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    model.fit(*training, epochs=100, verbose=0)
    calibrated = kc.calibrate(model, *calibration, verbose=0)

    report = kc.report({"before": model, "after": calibrated}, *test)
    card = kc.model_card(
        calibrated,
        report,
        task="image-classification",
        dataset=f"digits, {len(test[1]):,} test images",
    )
    card.save(given.folder, overwrite=True)
    report.save(given.folder / "report.html")
    for name, sentences in report.verdicts.items():
        print(f"{name}: {' '.join(sentences)}")
    print(" ".join(report.comparison))
    if given.figure:
        shutil.copy(given.folder / "reliability.png", given.figure)


if __name__ == "__main__":
    main(sys.argv[1:])
