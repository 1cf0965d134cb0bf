"""Refine, then calibrate: which epoch to keep if its temperature is fitted.

A small network learns 200 of scikit-learn's digits, a fifth of them with a
wrong label, so that it becomes overconfident (they ship in its wheel, nothing
is downloaded). Each run is judged by three rules, on the same validation data:

- `val_loss`: the epoch with the least loss,
- `val_refinement_loss`: the epoch with the least loss after temperature
  scaling,
- the same, by `RestoreCalibrated`: among the epochs whose accuracy is within
  one point of the best (with 400 images, that is less than its noise).

The epochs are then calibrated by temperature scaling on the validation data.
Accuracy and negative log-likelihood (nats) are those of test images that no
rule and no fit has seen; after +- is the standard error over seeds, each of
which draws its own split. Test images of two seeds overlap, so the standard
error of a difference is the one to read.

    python examples/refine_then_calibrate.py

One to a few minutes on a CPU. `--figure FILE` draws both parts of the loss by
epoch, of the first seed.
"""

import argparse
import pathlib
import sys
import tempfile

import keras
import numpy as np
import pictures
from sklearn.datasets import load_digits

import keras_calib as kc

SEEDS = range(10)
EPOCHS = 40
NOISE = 0.2


def digits(seed):
    """200 images to train on, 400 to validate and calibrate, 1,197 to test."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    images = (images[order] / 16).astype("float32")
    labels = labels[order].astype("int32")
    splits = np.split(np.arange(len(labels)), [200, 600])
    # Wrong labels are everywhere, so that no prediction deserves certainty.
    wrong = rng.random(len(labels)) < NOISE
    labels[wrong] = rng.integers(0, 10, wrong.sum())
    return [(images[part], labels[part]) for part in splits]


def network():
    """Logits for ten digits."""
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def train(model, training, validation, folder):
    """Restore the epoch of the third rule, and save those of the others.

    Returns:
        The epoch by each rule, counted from 1, the files of the first two, and
        the logs by epoch.
    """
    model.compile(
        keras.optimizers.Adam(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    files = {
        key: str(folder / f"{key}.weights.h5")
        for key in ("val_loss", "val_refinement_loss")
    }
    restore = kc.callbacks.RestoreCalibrated("val_refinement_loss")
    logs = model.fit(
        *training,
        validation_data=validation,
        epochs=EPOCHS,
        batch_size=40,
        validation_batch_size=len(validation[1]),
        verbose=0,
        callbacks=[
            kc.callbacks.CalibrationMonitor(
                refinement=True, metrics=[], from_logits=True
            ),
            *(
                keras.callbacks.ModelCheckpoint(
                    file,
                    key,
                    mode="min",
                    save_best_only=True,
                    save_weights_only=True,
                )
                for key, file in files.items()
            ),
            restore,
        ],
    ).history
    epochs = [int(np.argmin(logs[key])) for key in files]
    epochs.append(restore.best_epoch)
    return [1 + epoch for epoch in epochs], files, logs


def scores_of(model, x):
    return model.predict(x, batch_size=len(x), verbose=0)


def measure(model, validation, test):
    """Accuracy, NLL and NLL after temperature scaling on the test images."""
    x, y = test
    logits = scores_of(model, x)
    scaling = kc.layers.TemperatureScaling()
    scaling.adapt(scores_of(model, validation[0]), validation[1])
    rows = []
    for scores in (logits, logits / scaling.temperature):
        found = kc.metrics.calibration_errors(
            y,
            scores,
            from_logits=True,
            metrics=["accuracy", "negative_log_likelihood"],
        )
        rows.append(found["negative_log_likelihood"])
    return [100 * found["accuracy"], *rows, scaling.temperature]


def with_error(values):
    """Mean and standard error over seeds."""
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.4f} ± {error:.4f}"


def draw(logs, path):
    """Where the NLL of the validation data comes from, by epoch."""
    parts = ["val_calibration_loss", "val_refinement_loss"]
    figure = kc.plots.calibration_history(
        logs, keys=parts, title="What a temperature mends, and the rest"
    )
    pictures.save(figure, path)


def main(arguments=()):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    pictures.add_option(parser)
    picture = parser.parse_args(arguments).figure
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            keras.utils.set_random_seed(seed)
            training, validation, test = digits(seed)
            model = network()
            epochs, files, logs = train(
                model, training, validation, pathlib.Path(folder)
            )
            if picture and seed == SEEDS[0]:
                draw(logs, picture)
            found = [measure(model, validation, test)]
            for file in reversed(files.values()):
                model.load_weights(file)
                found.insert(0, measure(model, validation, test))
            rows.append(np.column_stack([epochs, found]))
    # By rule, by column, by seed.
    by_loss, by_refinement, restored = np.transpose(rows, (1, 2, 0))
    print(f"{len(SEEDS)} seeds, {EPOCHS} epochs")
    print(
        "| stopped by | epoch | accuracy % | NLL | NLL after scaling "
        "| temperature |"
    )
    print("|---|---|---|---|---|---|")
    for name, columns in (
        ("`val_loss`", by_loss),
        ("`val_refinement_loss`", by_refinement),
        ("`RestoreCalibrated`", restored),
        ("second minus first", by_refinement - by_loss),
        ("third minus first", restored - by_loss),
    ):
        cells = " | ".join(with_error(values) for values in columns)
        print(f"| {name} | {cells} |")


if __name__ == "__main__":
    main(sys.argv[1:])
