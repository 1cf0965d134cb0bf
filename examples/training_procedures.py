"""Train with losses that need more than a batch, on scikit-learn's digits.

The same small network learns 200 images by seven procedures: cross-entropy, a
penalty in the loss, and methods that keep a history of each sample, update a
parameter between epochs or change the data. Every row of the table is one run
with one seed: it shows how each is used, not which is best. The floor is the
mean ECE of a calibrated network with the same confidences.

    python examples/training_procedures.py

Under two minutes on a CPU. What a method needs beside `compile` and `fit`
stands in its function. `--figure FILE` draws the NLL and the ECE of each.
"""

import argparse
import sys

import keras
import numpy as np
import pictures
from sklearn.datasets import load_digits

import keras_calib as kc

EPOCHS = 40
NLL, ECE = "negative_log_likelihood", "expected_calibration_error"
LOGITS = {"from_logits": True}
SB_ECE = {"weight": 0.3, "temperature": 0.01}


def digits():
    """200 images to train on, 400 to watch, the rest to test."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (images[order] / 16).astype("float32")
    labels = labels[order].astype("int32")
    return [
        (images[part], labels[part])
        for part in np.split(np.arange(len(labels)), [200, 600])
    ]


def network():
    """Logits for ten digits."""
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def fit(model, loss, *data, metrics=(), callbacks=(), **arguments):
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=list(metrics))
    return model.fit(
        *data,
        epochs=EPOCHS,
        verbose=0,
        callbacks=list(callbacks),
        **arguments,
    ).history


def cross_entropy(x, y, validation):
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(**LOGITS)
    fit(model, loss, x, y)
    return model, ""


def ranked_by_correctness(x, y, validation):
    """CRL: samples that are right more often get more confidence."""
    model = kc.models.SampleHistoryModel(network(), num_samples=len(x))
    watch = kc.callbacks.CorrectnessHistory()
    fit(
        model,
        kc.losses.CRL(weight=0.5, **LOGITS),
        kc.add_sample_index(x),
        y,
        callbacks=[watch],
    )
    hardest = watch.correctness.min()
    return model.model, f"hardest sample right in {hardest:.0%} of the epochs"


def adaptive_focal(x, y, validation):
    """AdaFocal: gammas follow the gaps on validation data."""
    model = network()
    loss = kc.losses.AdaFocalLoss(**LOGITS)
    schedule = kc.callbacks.AdaFocalSchedule(validation)
    fit(
        model,
        loss,
        x,
        y,
        metrics=loss.component_metrics(),
        callbacks=[schedule],
    )
    last = schedule.gammas[-1]
    return model, f"gammas from {last.min():.2f} to {last.max():.2f}"


def pruned(x, y, validation):
    """DTDP: the least confident samples leave the training data."""
    model = kc.models.SampleHistoryModel(network(), num_samples=len(x))
    pruning = kc.callbacks.DataPruning(x, y, fraction=0.1, every=10, seed=0)
    loss = kc.losses.FocalLoss(gamma=1.0, **LOGITS)
    logs = fit(model, loss, pruning.data, callbacks=[pruning])
    return model.model, f"{logs['kept_samples'][-1]} of {len(x)} samples kept"


def soft_binned(x, y, validation):
    """SB-ECE as a penalty on all training data."""
    model = network()
    fit(model, kc.losses.SoftBinnedECE(**SB_ECE, **LOGITS), x, y)
    return model, ""


def interleaved(x, y, validation):
    """The same penalty, each epoch after the rest, on samples kept for it."""
    model = kc.models.InterleavedTraining(network(), penalty_split=0.2)
    logs = fit(model, kc.losses.SoftBinnedECE(**SB_ECE, **LOGITS), x, y)
    return model.model, f"penalty on its part {logs['penalty'][-1]:.3f}"


def observed_frequencies(x, y, validation):
    """CaPE: one epoch in six learns frequencies instead of labels."""
    model = network()
    loss = keras.losses.CategoricalCrossentropy(**LOGITS)
    cape = kc.callbacks.EmpiricalTargets(x, y, num_classes=10, **LOGITS)
    fit(model, loss, cape.data, callbacks=[cape])
    return model, ""


PROCEDURES = {
    "cross-entropy": cross_entropy,
    "CRL": ranked_by_correctness,
    "AdaFocal": adaptive_focal,
    "focal, pruned (DTDP)": pruned,
    "cross-entropy + SB-ECE": soft_binned,
    "the same, interleaved": interleaved,
    "CaPE": observed_frequencies,
}


def measure(model, x, y):
    """Accuracy, NLL, ECE and its floor on the test images."""
    return kc.metrics.calibration_errors(
        y,
        model.predict(x, verbose=0),
        from_logits=True,
        metrics=["accuracy", NLL, ECE],
        floor=True,
    )


def draw(rows, path):
    """NLL and ECE of each procedure, with a line at the floor of each ECE."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(9, 3.6), sharey=True, layout="constrained"
    )
    left.margins(x=0.3)
    names, found = list(rows), list(rows.values())
    left.plot([row[NLL] for row in found], names, "o")
    left.set(xlabel="NLL on test images", xlim=(0, None))
    right.plot([row[ECE] for row in found], names, "o", label="ECE")
    floors = [row[f"{ECE}_floor"] for row in found]
    right.plot(floors, names, "|", color="black", ms=14, label="floor")
    right.set(xlabel="ECE on test images", xlim=(0, None))
    right.legend()
    left.invert_yaxis()  # in the order of the table
    pictures.save(figure, path)


def main(arguments=()):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    pictures.add_option(parser)
    picture = parser.parse_args(arguments).figure
    (x, y), validation, test = digits()
    print("| procedure | accuracy | NLL | ECE | floor | |")
    print("|---|---|---|---|---|---|")
    rows = {}
    for name, procedure in PROCEDURES.items():
        keras.utils.set_random_seed(0)
        model, remark = procedure(x, y, validation)
        found = rows[name] = measure(model, *test)
        keys = ("accuracy", NLL, ECE, f"{ECE}_floor")
        numbers = " | ".join(f"{found[key]:.3f}" for key in keys)
        print(f"| {name} | {numbers} | {remark} |", flush=True)
    if picture:
        draw(rows, picture)


if __name__ == "__main__":
    main(sys.argv[1:])
