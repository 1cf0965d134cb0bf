"""What a loss costs, as a ratio to Keras' cross-entropy in the same process.

Forward and backward pass under the backend's compiler, for a batch of 512
images of 100 classes, one of 256 of 1,000 classes, and a segmentation crop of
512 x 512 pixels of 21 classes; then the whole training step of a ResNet-20 on
128 images of 32 x 32. One thread on one processor; seconds are processor time,
so that a busy machine disturbs less; losses take turns, and the least of the
repetitions counts.

CRL alone is the sum of cross-entropy and of the function of the ranking loss,
with a made history; pixels have none. In the step it is the loss of a
`SampleHistoryModel`, whose bookkeeping counts.

    KERAS_BACKEND=jax python examples/benchmarks/losses.py [--store]
    python examples/benchmarks/losses.py --step --only MDCA DCA
    python examples/benchmarks/losses.py --memory
"""

import argparse
import os
import platform
import resource
import shutil
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["XLA_FLAGS"] = (
    "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)
# XLA splits a loop among all processors that it sees, whatever the flags say.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import cost_rows
import keras
import numpy as np
from argument_types import positive_int

import keras_calib as kc

BACKEND = keras.backend.backend()
SHAPES = {
    "512 x 100": (512, 100),
    "256 x 1000": (256, 1000),
    "512 x 512 x 21": (1, 512, 512, 21),
}


class RankedCrossEntropy:
    """CRL of samples with a made history, which is a constant."""

    def __init__(self, from_logits):
        self.primary = keras.losses.SparseCategoricalCrossentropy(from_logits)

    def __call__(self, labels, logits):
        how_often = np.random.default_rng(1).random(len(labels), "float32")
        ranking = kc.losses.crl(labels, logits, how_often)
        return self.primary(labels, logits) + ranking


LOSSES = {
    "cross-entropy": keras.losses.SparseCategoricalCrossentropy,
    "LabelSmoothing": kc.losses.LabelSmoothing,
    "FocalLoss": kc.losses.FocalLoss,
    "SampleDependentFocalLoss": kc.losses.SampleDependentFocalLoss,
    "DualFocalLoss": kc.losses.DualFocalLoss,
    "InverseFocalLoss": kc.losses.InverseFocalLoss,
    "AdaFocalLoss": kc.losses.AdaFocalLoss,
    "BrierLoss": kc.losses.BrierLoss,
    "SquaredLogitLoss": kc.losses.SquaredLogitLoss,
    "EntropyRegularization": kc.losses.EntropyRegularization,
    "MarginLabelSmoothing": kc.losses.MarginLabelSmoothing,
    "ACLS": kc.losses.ACLS,
    "MDCA": kc.losses.MDCA,
    "DCA": kc.losses.DCA,
    "MMCE": kc.losses.MMCE,
    "AvUC": kc.losses.AvUC,
    "SoftAvUC": kc.losses.SoftAvUC,
    "SoftBinnedECE": kc.losses.SoftBinnedECE,
    "CPC": kc.losses.CPC,
    "CRL": RankedCrossEntropy,
}


def one_thread():
    if BACKEND == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    if BACKEND == "torch":
        import torch

        torch.set_num_threads(1)


def forward_and_backward(loss, labels, logits, eager):
    """A function without arguments that runs both, and waits for them."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        labels, logits = tf.constant(labels), tf.constant(logits)

        @tf.function(jit_compile=not eager)
        def run(labels, logits):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                value = loss(labels, logits)
            return value, tape.gradient(value, logits)

        return lambda: run(labels, logits)[0].numpy()
    if BACKEND == "jax":
        import jax

        labels, logits = jax.numpy.asarray(labels), jax.numpy.asarray(logits)
        run = jax.jit(jax.value_and_grad(loss, argnums=1))
        return lambda: jax.block_until_ready(run(labels, logits))

    import torch

    labels = torch.tensor(labels)
    logits = torch.tensor(logits, requires_grad=True)
    value = loss if eager else torch.compile(loss.__call__, dynamic=False)

    def run():
        logits.grad = None
        value(labels, logits).backward()

    return run


def resnet_20(classes=100):
    """He et al., 2016: three stages of three blocks, 16 to 64 channels."""

    def block(x, channels, stride):
        y = keras.layers.Conv2D(
            channels, 3, stride, padding="same", use_bias=False
        )(x)
        y = keras.layers.ReLU()(keras.layers.BatchNormalization()(y))
        y = keras.layers.Conv2D(channels, 3, padding="same", use_bias=False)(y)
        y = keras.layers.BatchNormalization()(y)
        if stride > 1:
            x = keras.layers.Conv2D(channels, 1, stride, use_bias=False)(x)
        return keras.layers.ReLU()(keras.layers.add([x, y]))

    inputs = keras.Input((32, 32, 3))
    x = keras.layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    for channels in (16, 32, 64):
        for number in range(3):
            first = channels > 16 and number == 0
            x = block(x, channels, 2 if first else 1)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(classes)(x))


def training_step(name, rng, batch=128):
    model, metrics = resnet_20(), []
    images = rng.normal(size=(batch, 32, 32, 3)).astype("float32")
    if name == "CRL":
        loss = kc.losses.CRL(from_logits=True)
        model = kc.models.SampleHistoryModel(model, num_samples=batch)
        images = kc.add_sample_index(images)
    else:
        loss = LOSSES[name](from_logits=True)
    if name == "AdaFocalLoss":
        metrics = loss.component_metrics()  # its gammas
    model.compile("sgd", loss, metrics=metrics)
    labels = rng.integers(0, 100, batch).astype("int32")
    return lambda: model.train_on_batch(images, labels)


def least_seconds(runs, repeats):
    """Least processor time of each, in turn, after a warm-up.

    A short run is repeated for 20 ms at a time, which a clock can measure.
    """
    calls, seconds = {}, {name: [] for name in runs}
    for name, run in runs.items():
        run()
        start = time.process_time()
        run()
        once = time.process_time() - start
        calls[name] = max(1, int(0.02 / max(once, 1e-4)))
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            for _ in range(calls[name]):
                run()
            taken = time.process_time() - start
            seconds[name].append(taken / calls[name])
    return {name: min(found) for name, found in seconds.items()}


def peak_memory(arguments, rng):
    """MiB that CPC adds to the peak of a process that ran cross-entropy."""
    shape = SHAPES["256 x 1000"]
    logits = rng.normal(size=shape).astype("float32")
    labels = rng.integers(0, shape[-1], shape[:-1]).astype("int32")
    peaks = []
    for name in ("cross-entropy", "CPC"):
        loss = LOSSES[name](from_logits=True)
        run = forward_and_backward(loss, labels, logits, arguments.eager)
        for _ in range(3):
            run()
        usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peaks.append(usage / 1024)
    added = peaks[1] - peaks[0]
    cost_rows.store(arguments.store, "memory of CPC", mebibytes=added)
    print(f"CPC at 256 x 1000 adds {added:.0f} MiB to the peak")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", choices=LOSSES, default=LOSSES)
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=SHAPES)
    parser.add_argument("--repeats", type=positive_int, default=20)
    parser.add_argument("--step", action="store_true", help="ResNet-20")
    parser.add_argument("--memory", action="store_true", help="peak of CPC")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    cost_rows.add_option(parser)
    arguments = parser.parse_args()
    one_thread()
    if BACKEND == "torch" and not shutil.which("g++"):
        arguments.eager = True  # torch.compile needs a C++ compiler
    rng = np.random.default_rng(0)
    if arguments.memory:
        return peak_memory(arguments, rng)

    names = ["cross-entropy"]
    names += [name for name in arguments.only if name not in names]
    columns = {}
    if arguments.step:
        runs = {name: training_step(name, rng) for name in names}
        columns["step"] = least_seconds(runs, arguments.repeats)
    for column in [] if arguments.step else arguments.shapes:
        shape = SHAPES[column]
        logits = 3 * rng.normal(size=shape).astype("float32")
        labels = rng.integers(0, shape[-1], shape[:-1]).astype("int32")
        runs = {
            name: forward_and_backward(
                LOSSES[name](from_logits=True), labels, logits, arguments.eager
            )
            for name in names
            if name != "CRL" or len(shape) == 2
        }
        columns[column] = least_seconds(runs, arguments.repeats)

    how = "eager" if arguments.eager else "compiled"
    if arguments.step:
        how = "as `fit` runs it"
    print(f"{platform.machine()}, one thread, {BACKEND}, {how}")
    print("  ".join(["loss".ljust(24), *columns]))
    for name in names:
        cells = [name.ljust(24)]
        for column, seconds in columns.items():
            base = seconds["cross-entropy"]
            if name not in seconds:
                cell = "-"
            elif name == "cross-entropy":
                cell = f"{1000 * base:.2f} ms"
            else:
                cell = f"{seconds[name] / base:.2f}"
            cells.append(cell.rjust(len(column)))
        print("  ".join(cells))
    for shape, seconds in columns.items():
        for name, each in seconds.items():
            values = {"shape": shape, "loss": name, "seconds": each}
            cost_rows.store(arguments.store, "losses", **values)


if __name__ == "__main__":
    main()
