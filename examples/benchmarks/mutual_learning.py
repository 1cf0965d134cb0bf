"""What the models of this package cost: a step, and inference.

Trains two residual networks apart and as a Diff-DML pair, in turns in one
process, and prints

- the time of a step of the pair over the sum of its networks' own steps,
- `evaluate` and `predict` of the pair over those of its primary alone.

With `--others`, instead, one network with dropout, by itself and as

- `MonteCarloDropout`, `predict` over `predict` of the network,
- `InterleavedTraining` and `SampleHistoryModel`, an epoch over an epoch of the
  network with the same loss, and with cross-entropy for the history alone.

    KERAS_BACKEND=jax python examples/benchmarks/mutual_learning.py [--store]
    KERAS_BACKEND=jax python examples/benchmarks/mutual_learning.py --others
"""

import argparse
import pathlib
import platform
import statistics
import sys
import time

import keras
import numpy as np

import keras_calib as kc

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import cifar10
import cost_rows
from argument_types import positive_int

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(model, loss=CROSS_ENTROPY, **kwargs):
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        loss,
        metrics=["accuracy"],
        **kwargs,
    )
    return model


def mutual(network, x, y, size):
    """What is timed, by name, and which of it is compared."""
    primary, auxiliary = (compiled(network()) for _ in range(2))
    pair = compiled(
        kc.models.DiffDML(network(), network()),
        auxiliary_optimizer=keras.optimizers.SGD(0.001, momentum=0.9),
    )
    work = {
        "step of the primary": lambda: primary.fit(x, y, size, verbose=0),
        "step of the auxiliary": lambda: auxiliary.fit(x, y, size, verbose=0),
        "step of the pair": lambda: pair.fit(x, y, size, verbose=0),
        "evaluate the primary": lambda: primary.evaluate(x, y, size, verbose=0),
        "evaluate the pair": lambda: pair.evaluate(x, y, size, verbose=0),
        "predict with the primary": lambda: primary.predict(x, size, verbose=0),
        "predict with the pair": lambda: pair.predict(x, size, verbose=0),
    }
    return work, [
        ("step of the pair", "step of the primary", "step of the auxiliary"),
        ("evaluate the pair", "evaluate the primary"),
        ("predict with the pair", "predict with the primary"),
    ]


def others(network, x, y, size):
    """The same for the models around one network."""

    def with_dropout():
        inner = network()
        features = keras.layers.Dropout(0.2)(inner.layers[-1].input)
        return keras.Model(inner.input, inner.layers[-1](features))

    def fit(model, loss, inputs=x):
        compiled(model, loss)
        return lambda: model.fit(inputs, y, batch_size=size, verbose=0)

    mdca, crl = (
        kind(from_logits=True) for kind in (kc.losses.MDCA, kc.losses.CRL)
    )
    one = with_dropout()
    sampled = kc.models.MonteCarloDropout(with_dropout(), num_masks=20)
    numbered = kc.add_sample_index(x)
    work = {
        "predict": lambda: one.predict(x, size, verbose=0),
        "predict, 20 masks": lambda: sampled.predict(x, size, verbose=0),
        "epoch": fit(with_dropout(), CROSS_ENTROPY),
        "epoch, MDCA": fit(with_dropout(), mdca),
        "epoch, MDCA interleaved": fit(
            kc.models.InterleavedTraining(with_dropout()), mdca
        ),
    }
    for name, loss in (("history", CROSS_ENTROPY), ("history and CRL", crl)):
        model = kc.models.SampleHistoryModel(with_dropout(), num_samples=len(x))
        work[f"epoch, {name}"] = fit(model, loss, numbered)
    return work, [
        ("predict, 20 masks", "predict"),
        ("epoch, MDCA interleaved", "epoch, MDCA"),
        ("epoch, history", "epoch"),
        ("epoch, history and CRL", "epoch"),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=positive_int, default=2000)
    parser.add_argument("--batch-size", type=positive_int, default=100)
    parser.add_argument("--width", type=positive_int, default=16)
    parser.add_argument("--repeats", type=positive_int, default=7)
    parser.add_argument("--others", action="store_true", help="no pair")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count the processor's time, on a machine that is not idle",
    )
    cost_rows.add_option(parser)
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(1)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(arguments.images, 32, 32, 3)).astype("float32")
    y = rng.integers(0, 10, arguments.images)
    shape = {"blocks": (1, 1, 1), "width": arguments.width, "stride": 2}
    size, steps = arguments.batch_size, arguments.images // arguments.batch_size
    make = others if arguments.others else mutual
    work, ratios = make(lambda: cifar10.resnet(**shape), x, y, size)
    seconds = {name: [] for name in work}
    for repeat in range(arguments.repeats + 1):
        for name, run in work.items():
            start = clock()
            run()
            if repeat:  # the first compiles
                seconds[name].append((clock() - start) / steps)

    print(f"{keras.backend.backend()}, {platform.machine()}, batches of {size}")
    print("| what | ms a batch, median (fastest) |")
    print("|---|---|")
    for name, found in seconds.items():
        median, least = statistics.median(found), min(found)
        print(f"| {name} | {1e3 * median:.2f} ({1e3 * least:.2f}) |")

    def ratio(whole, *parts):
        ratios = [
            one / sum(others)
            for one, *others in zip(
                seconds[whole],
                *(seconds[part] for part in parts),
                strict=True,
            )
        ]
        fastest = min(seconds[whole]) / sum(min(seconds[p]) for p in parts)
        median = statistics.median(ratios)
        print(
            f"{whole} / {' + '.join(parts)}: "
            f"median {median:.3f}, of the fastest {fastest:.3f}"
        )
        values = {"whole": whole, "parts": parts, "ratio": median}
        values |= {"fastest": fastest, "batch_size": size}
        values |= {"processor_time": arguments.cpu_time}
        values["seconds"] = statistics.median(seconds[whole])
        cost_rows.store(arguments.store, "models", **values)

    for names in ratios:
        ratio(*names)


if __name__ == "__main__":
    main()
