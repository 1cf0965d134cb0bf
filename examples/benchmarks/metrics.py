"""What the metrics cost: against torchmetrics, in `compile`, all at once.

    python examples/benchmarks/metrics.py [update] [compile] [all] [--store]

Each part prints ratios to a baseline of the same process. `update`: an epoch
of 50, and one of 400 batches of 1,000 x 10 with the value after each, as a
progress bar shows it, ours and torchmetrics'; and Keras' accuracy, for what
any metric costs there. `compile`: a training step of a ResNet-20 with and
without the metric, in turn. `all`: every metric of 1,000,000 x 10 predictions
in one call, against what other packages have of them, each by the fastest; and
1,000 resamples of 5,000 x 10.
"""

import argparse
import functools
import platform
import statistics
import time

import cost_rows
import keras
import numpy as np
from keras import ops

import keras_calib as kc
from keras_calib.evaluation.named_errors import METRICS
from keras_calib.inputs.predictions import top_label

BATCHES = (50, 400)


def predictions(n, num_classes=10):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(n, num_classes)).astype("float32")
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return labels, p / p.sum(axis=1, keepdims=True)


def seconds(function, repeats=7):
    """Shortest and median processor time of a call, after a warm-up.

    Of all threads of this process: what else runs does not count.
    """
    function()
    found = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        found.append(time.process_time() - start)
    return min(found), statistics.median(found)


def update(keep):
    import torch
    from torchmetrics.classification import MulticlassCalibrationError

    labels, p = predictions(1000)
    metric = kc.metrics.ExpectedCalibrationError()
    update_metric = compiled_update(metric, labels, p)

    update_accuracy = compiled_update(
        keras.metrics.SparseCategoricalAccuracy(), labels, p
    )
    theirs = MulticlassCalibrationError(10, n_bins=15, validate_args=False)
    tensors = torch.tensor(p), torch.tensor(labels)

    def epoch(call, batches):
        def run():
            theirs.reset()
            for _ in range(batches):
                call()

        return run

    def append():
        theirs.update(*tensors)

    def append_and_read():
        theirs.update(*tensors)
        theirs.compute()

    print("| update of 1,000 x 10 | batches | us a batch | median | ratio |")
    print("|---|---|---|---|---|")
    for batches in BATCHES:
        rows = {
            "keras_calib, read at every batch": update_metric,
            "Keras' accuracy, read at every batch": update_accuracy,
            "torchmetrics, read at every batch": append_and_read,
            "torchmetrics, never read": append,
        }
        found = {
            name: seconds(epoch(call, batches), 3)
            for name, call in rows.items()
        }
        base = found["keras_calib, read at every batch"][0]
        for name, (best, median) in found.items():
            print(
                f"| {name} | {batches} | {1e6 * best / batches:.0f} "
                f"| {1e6 * median / batches:.0f} | {best / base:.1f} |"
            )
            keep(what="update", name=name, batches=batches, seconds=best)
    held = sum(int(np.prod(v.shape)) * 4 for v in metric.variables)
    theirs_held = 1000 * (4 + 4)
    print(f"state: {held} bytes; torchmetrics: {theirs_held} a batch")
    for name, size in (("keras_calib", held), ("torchmetrics", theirs_held)):
        keep(what="state", name=name, batches=0, seconds=0, size=size)


def compiled_update(metric, labels, p):
    """A call that updates the metric and reads it, as `fit` would run it."""
    labels = ops.convert_to_tensor(labels, "int32")
    p = ops.convert_to_tensor(p)
    metric.update_state(labels, p)
    metric.reset_state()
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        @jax.jit
        def step(state, labels, p):
            state = metric.stateless_update_state(state, labels, p)
            return state, metric.stateless_result(state)

        held = {"state": [v.value for v in metric.variables]}

        def call():
            held["state"], value = step(held["state"], labels, p)
            return float(value)

        return call
    if backend == "tensorflow":
        import tensorflow as tf

        @tf.function
        def step(labels, p):
            metric.update_state(labels, p)
            return metric.result()

        return lambda: float(step(labels, p))

    def call():
        metric.update_state(labels, p)
        return float(metric.result())

    return call


def resnet_20():
    def convolution(x, filters, strides=1):
        x = keras.layers.Conv2D(
            filters, 3, strides, padding="same", use_bias=False
        )(x)
        return keras.layers.BatchNormalization()(x)

    inputs = keras.Input((32, 32, 3))
    x = keras.layers.ReLU()(convolution(inputs, 16))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            strides = 2 if stage and not block else 1
            y = keras.layers.ReLU()(convolution(x, filters, strides))
            y = convolution(y, filters)
            if strides == 2:
                x = keras.layers.Conv2D(filters, 1, 2, use_bias=False)(x)
            x = keras.layers.ReLU()(keras.layers.Add()([x, y]))
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def compile_cost(keep, batch_size=128, steps=8):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch_size, 32, 32, 3)).astype("float32")
    y = rng.integers(0, 10, batch_size)
    models = {}
    metrics = {
        "none": [],
        "ExpectedCalibrationError": [
            kc.metrics.ExpectedCalibrationError(from_logits=True)
        ],
    }
    for name, metric in metrics.items():
        keras.utils.set_random_seed(0)
        model = resnet_20()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=metric)
        for _ in range(2):
            model.train_on_batch(x, y)
        models[name] = model
    # Processor time of all threads: other processes do not count.
    spent = {name: [] for name in models}
    for _ in range(steps):
        for name, model in models.items():
            start = time.process_time()
            model.train_on_batch(x, y)
            spent[name].append(time.process_time() - start)
    base = statistics.median(spent["none"])
    print(f"| metrics in `compile`, ResNet-20, {batch_size} | ms | ratio |")
    print("|---|---|---|")
    for name, values in spent.items():
        median = statistics.median(values)
        print(f"| {name} | {1e3 * median:.1f} | {median / base:.3f} |")
        keep(what="compile", name=name, batches=0, seconds=median)


def all_at_once(keep, n=1_000_000):
    import torch
    from netcal.metrics import ECE
    from netcal.metrics import MCE
    from relplot import smECE
    from sklearn.metrics import log_loss
    from sklearn.metrics import roc_auc_score
    from torchmetrics.functional.classification import (
        multiclass_calibration_error,
    )

    labels, p = predictions(n)
    double = p.astype("float64")
    tensors = torch.tensor(p), torch.tensor(labels)
    confidence, correct = top_label(labels, p)

    def torchmetrics(norm):
        return lambda: multiclass_calibration_error(
            *tensors, num_classes=10, n_bins=15, norm=norm, validate_args=False
        )

    def by_class():
        for k in range(10):
            ECE(15).measure(p[:, k], labels == k)

    contestants = {
        "ECE": [torchmetrics("l1"), lambda: ECE(15).measure(p, labels)],
        "ECE, norm 2": [torchmetrics("l2")],
        "maximum": [torchmetrics("max"), lambda: MCE(15).measure(p, labels)],
        "equal mass": [
            lambda: ECE(15, equal_intervals=False).measure(p, labels)
        ],
        "classwise": [by_class],
        "smooth": [lambda: smECE(f=confidence.astype(float), y=correct)],
        "NLL": [lambda: log_loss(labels, double)],
        "AUROC": [lambda: roc_auc_score(correct, confidence)],
    }
    same = (
        "expected_calibration_error",
        "expected_calibration_error_l2",
        "maximum_calibration_error",
        "adaptive_calibration_error",
        "classwise_calibration_error",
        "smooth_calibration_error",
        "negative_log_likelihood",
        "auroc",
    )
    errors = kc.metrics.calibration_errors
    ours, _ = seconds(lambda: errors(labels, p), 3)
    ours_same, _ = seconds(lambda: errors(labels, p, metrics=same), 3)
    few, few_p = predictions(5000)
    resampled, _ = seconds(lambda: errors(few, few_p, num_resamples=1000), 1)
    fastest = {
        name: min(seconds(f, 1)[0] for f in functions)
        for name, functions in contestants.items()
    }
    found = {f"{name}, fastest package": s for name, s in fastest.items()}
    found |= {
        "all of these": sum(fastest.values()),
        f"keras_calib, {len(METRICS) - 1} values": ours,
        "keras_calib, the same eight": ours_same,
        "keras_calib, 1,000 resamples of 5,000": resampled,
    }
    print(f"| {n} x 10 | s |\n|---|---|")
    for name, each in found.items():
        print(f"| {name} | {each:.2f} |")
        keep(what="all", name=name, batches=0, seconds=each)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*")
    cost_rows.add_option(parser)
    arguments = parser.parse_args()
    parts = arguments.parts or ["update", "compile", "all"]
    keep = functools.partial(cost_rows.store, arguments.store, "metrics")
    import torch

    torch.set_num_threads(1)  # on every backend: torchmetrics runs on it
    print(f"{platform.machine()}, {keras.backend.backend()}")
    if "update" in parts:
        update(keep)
    if "compile" in parts:
        compile_cost(keep)
    if "all" in parts:
        all_at_once(keep)


if __name__ == "__main__":
    main()
