"""Train, watch, calibrate, save, reload: the whole path in one file.

Trains a small CNN on scikit-learn's digits (they ship in its wheel, nothing is
downloaded), once with cross-entropy and once with ACLS; calibrates both with
temperature scaling; prints one table; writes `quickstart/calibrated.keras`,
`quickstart/reliability.png` and diagrams of two epochs of each training; loads
the file in a fresh process and compares.

    python examples/quickstart.py
"""

import argparse
import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_calib as kc

FOLDER = pathlib.Path("quickstart")
ECE = kc.metrics.ExpectedCalibrationError
ECE_NAME, NLL = "expected_calibration_error", "negative_log_likelihood"
EPOCHS = 100


def digits():
    """150 images to train on, so that there is something to calibrate."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = images[order].reshape(-1, 8, 8, 1).astype("float32") / 16
    splits = np.split(np.arange(len(labels)), [150, 450])
    return [(images[part], labels[order][part]) for part in splits]


def small_cnn(name):
    """Logits for ten digits."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ],
        name=name,
    )


def train(loss, train_data, validation_data):
    """`fit` as ever: a loss, ECE as a metric, and callbacks that watch."""
    keras.utils.set_random_seed(1)
    model = small_cnn(loss.name)
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=loss,
        metrics=["accuracy", ECE(from_logits=True, name="ece")],
    )
    history = model.fit(
        *train_data,
        validation_data=validation_data,
        epochs=EPOCHS,
        batch_size=50,
        verbose=0,
        callbacks=[
            kc.callbacks.CalibrationMonitor(from_logits=True),
            kc.callbacks.TemperatureTracker(from_logits=True),
            kc.callbacks.ReliabilityDiagram(
                FOLDER / f"{model.name}_{{epoch:03d}}.png",
                every=EPOCHS // 2,
                from_logits=True,
            ),
        ],
    ).history
    for epoch in (1, 20, EPOCHS):
        logs = {name: values[epoch - 1] for name, values in history.items()}
        print(
            f"  epoch {epoch:3}: val_accuracy {logs['val_accuracy']:.3f}, "
            f"val_ece {logs['val_ece']:.3f}, "
            f"val_brier_score {logs['val_brier_score']:.3f}, "
            f"best temperature {logs['val_temperature']:.2f}"
        )
    return model


def measure(model, data):
    """Accuracy, NLL, ECE, and the mean ECE of a calibrated model: its floor."""
    x, y = data
    probabilities = model.predict(x, verbose=0)
    found = kc.metrics.calibration_errors(
        y, probabilities, metrics=[NLL, ECE_NAME], floor=True
    )
    return {
        "accuracy": float((probabilities.argmax(-1) == y).mean()),
        "nll": found[NLL],
        "ece": found[ECE_NAME],
        "floor": found[f"{ECE_NAME}_floor"],
    }


def reload_in_a_fresh_process(file, x):
    """Predictions of the saved file, made by another Python."""
    code = (
        "import sys, numpy as np, keras, keras_calib\n"
        "model = keras.saving.load_model(sys.argv[1])\n"
        "x = np.load(sys.argv[2])\n"
        "np.save(sys.argv[3], model.predict(x, verbose=0))\n"
    )
    inputs, outputs = FOLDER / "inputs.npy", FOLDER / "outputs.npy"
    np.save(inputs, x)
    subprocess.run(
        [sys.executable, "-c", code, file, inputs, outputs], check=True
    )
    predictions = np.load(outputs)
    inputs.unlink()
    outputs.unlink()
    return predictions


def main():
    FOLDER.mkdir(exist_ok=True)
    training, calibration, test = digits()
    losses = {
        "cross-entropy": keras.losses.SparseCategoricalCrossentropy(
            from_logits=True
        ),
        "ACLS": kc.losses.ACLS(from_logits=True),
    }
    rows, models = [], {}
    for name, loss in losses.items():
        print(f"Training with {name}, {EPOCHS} epochs:")
        model = train(loss, training, calibration)
        softmax = keras.Sequential([model, keras.layers.Softmax()])
        calibrated = kc.calibrate(model, *calibration)
        rows.append(
            {
                "loss": name,
                "before": measure(softmax, test),
                "after": measure(calibrated, test),
                "T": kc.calibration_record(calibrated)["temperature"],
            }
        )
        models[name] = softmax, calibrated

    print(f"\n{len(test[1])} test images, {len(calibration[1])} to calibrate:")
    print_table(rows)
    (FOLDER / "table.json").write_text(json.dumps(rows, indent=2))

    x, y = test
    softmax, calibrated = models["cross-entropy"]
    draw(y, softmax.predict(x, verbose=0), calibrated.predict(x, verbose=0))

    file = FOLDER / "calibrated.keras"
    calibrated.save(file)
    same = np.array_equal(
        reload_in_a_fresh_process(file, x), calibrated.predict(x, verbose=0)
    )
    print(f"\n{file} reloaded in a fresh process: identical = {same}")
    if not same:
        sys.exit("the reloaded model predicts something else")
    figure = (FOLDER / "reliability.png").resolve()
    print(f"Reliability diagrams, before and after: {figure}")


def print_table(rows):
    """A row before and a row after calibration for each loss."""
    print("| loss | calibrated | accuracy | NLL | ECE | floor of ECE |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        for when, calibrated in (
            ("before", "no"),
            ("after", f"T = {row['T']:.3f}"),
        ):
            found = row[when]
            print(
                f"| {row['loss']} | {calibrated} | {found['accuracy']:.4f} "
                f"| {found['nll']:.4f} | {found['ece']:.4f} "
                f"| {found['floor']:.4f} |"
            )


def draw(labels, before, after):
    """Both reliability diagrams, side by side, in one file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        2, 2, figsize=(9, 6), height_ratios=(3, 1), layout="constrained"
    )
    for column, title, predictions in (
        (0, "cross-entropy", before),
        (1, "cross-entropy, calibrated", after),
    ):
        kc.plots.reliability_diagram(
            labels, predictions, title=title, axes=axes[:, column]
        )
    figure.savefig(FOLDER / "reliability.png", dpi=120)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    main()
