"""What it takes to corrupt 1,000 images of 32 x 32 pixels, by kind.

    OMP_NUM_THREADS=1 KERAS_BACKEND=torch python examples/benchmarks/shift.py \
        [number of images]

Seconds of the clock, and of all processors, which other programs slow down
less; at severities 1 and 5, since some constants are sizes and numbers of
steps. A first call with a few images, which is not measured, prepares what is
made once.
"""

import datetime
import platform
import sys
import time

import keras
import numpy as np

import keras_calib as kc

SEVERITIES = (1, 5)


def seconds(images, kind, severity):
    """Of the clock and of the processors, in one call."""
    kc.shift.corrupt(images[:8], kind, severity)
    start, used = time.perf_counter(), time.process_time()
    kc.shift.corrupt(images, kind, severity)
    return time.perf_counter() - start, time.process_time() - used


def main(arguments=()):
    number = int(arguments[0]) if arguments else 1000
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
        print(row(f"`{kind}`", rows[-1]), flush=True)
    print(row("all", np.sum(rows, axis=0)))


def row(name, numbers):
    return f"| {name} | " + " | ".join(f"{n:.2f}" for n in numbers) + " |"


if __name__ == "__main__":
    main(sys.argv[1:])
