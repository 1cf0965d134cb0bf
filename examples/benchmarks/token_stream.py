"""Seconds and memory of a temperature for token scores that are never kept.

    python examples/benchmarks/token_stream.py [--tokens 10000 30000 100000] \
        [--store]

A network of one layer makes 32,000 scores per token from inputs that are drawn
anew in every pass; labels are drawn at temperature 2 before the clock starts.
Each number of tokens runs in a process of its own, so that its peak of resident
memory is its own; "before" is that of the process after one batch, with Keras
and the network. A network that is worth calibrating takes longer: add the time
of `passes` runs of it.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time

import cost_rows
from argument_types import positive_int

LIMIT = 2 << 30
BATCH, LENGTH, HIDDEN = 4, 128, 64  # 512 tokens a batch
TRUE_TEMPERATURE = 2.0


def batches(tokens, labels=None):
    """A new generator of `(x, y)`, the same at every call."""
    import numpy as np

    rng = np.random.default_rng(0)
    for start in range(0, tokens, BATCH * LENGTH):
        x = rng.normal(size=(BATCH, LENGTH, HIDDEN)).astype("float32")
        y = np.full(BATCH * LENGTH, -1, "int32")  # beyond the last token
        if labels is not None:
            part = labels[start : start + BATCH * LENGTH]
            y[: len(part)] = part
        yield x, y.reshape(BATCH, LENGTH)


def draw_labels(model, tokens):
    """A label for each token, drawn from `softmax(z / TRUE_TEMPERATURE)`."""
    import numpy as np

    rng = np.random.default_rng(1)
    labels = np.empty(tokens, "int32")
    for i, (x, _) in enumerate(batches(tokens)):
        z = model.predict_on_batch(x).reshape(BATCH * LENGTH, -1)
        first = i * len(z)
        for row, scores in enumerate(z[: tokens - first], start=first):
            p = np.exp((scores - scores.max()) / TRUE_TEMPERATURE)
            total = np.cumsum(p, dtype="float64")
            labels[row] = np.searchsorted(total, rng.uniform() * total[-1])
    return labels


def peak_bytes():
    """Largest resident memory of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure(tokens, classes):
    """One fit in this process, as a dict of numbers."""
    import keras

    import keras_calib as kc

    keras.utils.set_random_seed(0)
    inputs = keras.Input((LENGTH, HIDDEN))
    outputs = keras.layers.Dense(
        classes, kernel_initializer=keras.initializers.RandomNormal(stddev=0.5)
    )(inputs)
    model = keras.Model(inputs, outputs)
    labels = draw_labels(model, tokens)
    before = peak_bytes()
    start = time.perf_counter()
    calibrated = kc.calibrate(
        model,
        lambda: batches(tokens, labels),
        stream=True,
        ignore_class=-1,
        verbose=0,
    )
    seconds = time.perf_counter() - start
    record = kc.calibration_record(calibrated)
    return {
        "tokens": tokens,
        "temperature": record["temperature"],
        "passes": record["num_passes"] + 1,  # the last one for the record
        "seconds": seconds,
        "before": before,
        "peak": peak_bytes(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--tokens",
        type=positive_int,
        nargs="+",
        default=[10_000, 30_000, 100_000],
    )
    parser.add_argument("--classes", type=positive_int, default=32_000)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    cost_rows.add_option(parser)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.tokens[0], arguments.classes)))
        return
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{os.environ.get('KERAS_BACKEND', 'tensorflow')}; "
        f"{arguments.classes:,} classes, {BATCH * LENGTH} tokens a batch"
    )
    print("| tokens | T | passes | seconds | peak MiB | before | logits MiB |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for tokens in arguments.tokens:
        command = [sys.executable, __file__, "--one", "--tokens", str(tokens)]
        command += ["--classes", str(arguments.classes)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        row = json.loads(done.stdout.splitlines()[-1])
        rows.append(row)
        kept = {**row, "classes": arguments.classes}
        cost_rows.store(arguments.store, "tokens", **kept)
        logits = tokens * arguments.classes * 4
        print(
            f"| {tokens:,} | {row['temperature']:.4f} | {row['passes']} "
            f"| {row['seconds']:.1f} | {row['peak'] / 2**20:.0f} "
            f"| {row['before'] / 2**20:.0f} | {logits / 2**20:,.0f} |",
            flush=True,
        )
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        each = (last["seconds"] - first["seconds"]) / (
            last["tokens"] - first["tokens"]
        )
        hours = (last["seconds"] + each * (10**7 - last["tokens"])) / 3600
        print(
            f"\nExtrapolated, not measured: 10,000,000 tokens take {hours:.1f} "
            f"hours at {1e6 * each:.0f} microseconds a token."
        )
    largest = max(row["peak"] for row in rows)
    if largest > LIMIT:
        sys.exit(f"The peak is above the limit of {LIMIT / 2**20:.0f} MiB.")


if __name__ == "__main__":
    main()
