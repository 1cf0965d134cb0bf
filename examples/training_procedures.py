"""Training procedures with a memory, on scikit-learn's digits.

The same small network learns 200 images by seven procedures. Every row of the
table is one run with one seed: it shows how each is used, not which is best.

    python examples/training_procedures.py

Under two minutes on a CPU. What a method needs beside `compile` and `fit`
stands in its function.
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_calib as kc

EPOCHS = 40
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
    """The same penalty, each epoch after the rest, on held-out samples."""
    model = kc.models.InterleavedTraining(network(), penalty_split=0.2)
    logs = fit(model, kc.losses.SoftBinnedECE(**SB_ECE, **LOGITS), x, y)
    return model.model, f"held-out penalty {logs['penalty'][-1]:.3f}"


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
    probabilities = np.asarray(
        keras.ops.softmax(model.predict(x, verbose=0)), "float64"
    )
    ece = kc.metrics.ExpectedCalibrationError()
    ece.update_state(y, probabilities)
    likelihood = probabilities[np.arange(len(y)), y]
    return (
        (probabilities.argmax(-1) == y).mean(),
        float(ece.result()),
        -np.log(likelihood).mean(),
    )


def main():
    (x, y), validation, test = digits()
    print("| procedure | accuracy | ECE | NLL | |")
    print("|---|---|---|---|---|")
    for name, procedure in PROCEDURES.items():
        keras.utils.set_random_seed(0)
        model, remark = procedure(x, y, validation)
        accuracy, ece, nll = measure(model, *test)
        print(
            f"| {name} | {accuracy:.3f} | {ece:.3f} | {nll:.3f} | {remark} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
