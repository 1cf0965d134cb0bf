"""What it takes to corrupt 1,000 images of 32 x 32 pixels, by kind.

    OMP_NUM_THREADS=1 KERAS_BACKEND=torch python examples/benchmarks/shift.py \
        [--images 1000] [--store]

Seconds of the clock, and of all processors, which other programs slow down
less; at severities 1 and 5, since some constants are sizes and numbers of
steps. A first call with a few images, which is not measured, prepares what is
made once.
"""

import argparse
import datetime
import platform
import time

import cost_rows
import keras
import numpy as np
from argument_types import positive_int

import keras_calib as kc

SEVERITIES = (1, 5)


def seconds(images, kind, severity):
    """Of the clock and of the processors, in one call."""
    kc.shift.corrupt(images[:8], kind, severity)
    start, used = time.perf_counter(), time.process_time()
    kc.shift.corrupt(images, kind, severity)
    return time.perf_counter() - start, time.process_time() - used


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=positive_int, default=1000)
    cost_rows.add_option(parser)
    arguments = parser.parse_args(arguments)
    number = arguments.images
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (number, 32, 32, 3), dtype="uint8")
    print(
        f"{platform.machine()}, {keras.backend.backend()}, {number:,} images; "
        f"{datetime.date.today()}\n"
    )
    print("| corruption | s, at 1 | at 5 | s of processor, at 1 | at 5 |")
    print("|---|---|---|---|---|")
    rows = []
    for kind in kc.shift.CORRUPTIONS:
        found = np.array([seconds(images, kind, each) for each in SEVERITIES])
        rows.append(found.T.ravel())
        for severity, (clock, used) in zip(SEVERITIES, found, strict=True):
            values = {"corruption": kind, "severity": severity}
            values |= {"images": number, "seconds": clock, "processor": used}
            cost_rows.store(arguments.store, "shift", **values)
        print(row(f"`{kind}`", rows[-1]), flush=True)
    print(row("all", np.sum(rows, axis=0)))


def row(name, numbers):
    return f"| {name} | " + " | ".join(f"{n:.2f}" for n in numbers) + " |"


if __name__ == "__main__":
    main()
