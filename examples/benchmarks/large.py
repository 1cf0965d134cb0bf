"""What predictions that no memory holds take: seconds, and anonymous memory.

Logits of 100 classes are written to a file, block by block, and read as a
memory map: by a fit of the temperature, by `kc.calibrate` with a network that
returns its inputs, by `calibration_errors`, by streaming metrics and by
`kc.report`. With `--maps`, `kc.calibrate` fits each of its maps in their place.
Anonymous memory (`RssAnon` of Linux) is what the process cannot give back: the
pages of files are not in it, those of temporary files neither. The largest
value during each is shown, with that before.

    OMP_NUM_THREADS=1 KERAS_BACKEND=torch python examples/benchmarks/large.py
    OMP_NUM_THREADS=1 python examples/benchmarks/large.py --rows 200000 \
        --parts fit metrics
    OMP_NUM_THREADS=1 python examples/benchmarks/large.py --maps vector isotonic
    OMP_NUM_THREADS=1 python examples/benchmarks/large.py --bytes

With `--bytes`, the memory of NumPy's arrays (`tracemalloc`; what is in a file
is not among them) in `kc.calibrate` with each map is measured for 84,000 and
for 168,000 rows, with files for arrays from 1 MiB on. The difference, by the
rows, is what each further row takes; it does not depend on the machine.

Prints Markdown, a table for each number of rows; needs about six times the size
of the logits on the disk (12 GB for 5 million rows).
`examples/results/large.md` has a run.
"""

import argparse
import contextlib
import datetime
import functools
import math
import pathlib
import platform
import sys
import tempfile
import threading
import time
import tracemalloc

import keras
import numpy as np

import keras_calib as kc
from keras_calib.calibration._methods import METHODS
from keras_calib.data import collect
from keras_calib.inputs import large
from keras_calib.solvers import isotonic

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from argument_types import positive_int

CLASSES = 100
# Rows that are made, or given to a metric, at a time.
BLOCK = 50_000
BATCH = 4_096
ROWS = (500_000, 1_000_000, 2_000_000, 5_000_000)
LOGITS = {"from_logits": True}
MIB = 1 << 20
# Rows with `--bytes`: inputs are float32 from 84,000 on, and samples of a
# million entries are as large in both.
FEW = 84_000, 168_000
OF_TWO_CLASSES = ("beta", "platt", "quadratic")


def anonymous_bytes():
    """Memory of this process that is no part of a file."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    raise OSError("This system does not show anonymous memory.")


@contextlib.contextmanager
def watched():
    """Seconds of a block, and anonymous memory: before it, and at most.

    Yields a dict, which has `seconds`, those of the processor (of all threads)
    as `processor`, `before` and `most` afterwards.
    """
    found = {"before": anonymous_bytes(), "most": anonymous_bytes()}
    done = threading.Event()

    def watch():
        while not done.wait(0.005):
            found["most"] = max(found["most"], anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin, used = time.perf_counter(), time.process_time()
    try:
        yield found
    finally:
        found["processor"] = time.process_time() - used
        found["seconds"] = time.perf_counter() - begin
        done.set()
        watcher.join()


def make(folder, rows, *, classes=CLASSES):
    """Overconfident logits, a memory map, and labels.

    Args:
        folder: where the file is written.
        rows: int, how many.
        classes: int.

    Returns:
        logits: float32, `(rows, classes)`.
        labels: int32, `(rows,)`.
    """
    path = pathlib.Path(folder) / "logits.npy"
    shape = (rows, classes)
    logits = np.lib.format.open_memmap(path, "w+", "float32", shape)
    labels = np.empty(rows, "int32")
    rng = np.random.default_rng(0)
    for start in range(0, rows, BLOCK):
        part = slice(start, start + BLOCK)
        true = 2 * rng.normal(size=logits[part].shape)
        labels[part] = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
        logits[part] = 1.5 * true
    logits.flush()
    del logits
    return np.load(path, mmap_mode="r"), labels


def fit(logits, labels, verbose):
    """The temperature of logits that are there."""
    layer = kc.layers.TemperatureScaling()
    layer.adapt(logits, labels)
    return layer.temperature


def calibrate(logits, labels, verbose, method="temperature"):
    """The NLL after a map of a network, which returns its inputs."""
    network = keras.Sequential(
        [keras.Input((logits.shape[1],)), keras.layers.Activation("linear")]
    )
    calibrated = kc.calibrate(
        network,
        logits,
        labels,
        batch_size=BATCH,
        verbose=verbose,
        method=method,
        **LOGITS,
    )
    record = kc.calibration_record(calibrated)
    return record["temperature" if method == "temperature" else "nll_after"]


def errors(logits, labels, verbose):
    """All errors of the predictions, without intervals."""
    found = kc.metrics.calibration_errors(
        labels, logits, verbose=verbose, **LOGITS
    )
    return found["expected_calibration_error"]


def metrics(logits, labels, verbose):
    """Streaming metrics, in batches."""
    streaming = [
        kc.metrics.ExpectedCalibrationError(**LOGITS),
        kc.metrics.SmoothCalibrationError(**LOGITS),
        kc.metrics.ClasswiseCalibrationError(**LOGITS),
        kc.metrics.BrierScore(**LOGITS),
    ]
    for start in range(0, len(labels), BATCH):
        part = slice(start, start + BATCH)
        batch = np.array(logits[part])
        for metric in streaming:
            metric.update_state(labels[part], batch)
    return streaming[0].result()


def report(logits, labels, verbose):
    """The report, with its intervals and noise floors."""
    found = kc.report(logits, y=labels, verbose=verbose, **LOGITS)
    (model,) = found.to_dict()["models"]
    return model["metrics"]["expected_calibration_error"]["value"]


PARTS = {each.__name__: each for each in (fit, calibrate, errors, metrics)}
PARTS["report"] = report
MAPS = {
    name: functools.partial(calibrate, method=name)
    for name in METHODS
    if name not in ("temperature", *OF_TWO_CLASSES)
}


def peak_of_arrays(compute, folder, rows, classes):
    """Bytes of NumPy's arrays at most, while arrays from 1 MiB on are files."""
    data = make(folder, rows, classes=classes)
    large.LIMIT = collect.SPILL = 1 << 20
    large.BLOCK, isotonic.ENTRIES = 1 << 18, 1 << 18
    tracemalloc.start()
    try:
        compute(*data, 0)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def print_bytes(maps, given):
    """A table of the bytes that a further row takes with each map."""
    print(
        f"{keras.backend.backend()}, Keras {keras.__version__}, "
        f"{datetime.date.today().isoformat()}.\n\n"
        "| map | bytes a row | MiB of 5,000,000 rows |\n|---|---|---|"
    )
    for name, compute in maps.items():
        peaks = dict.fromkeys(FEW, math.inf)
        for rows in 2 * FEW:  # a first call imports and keeps more
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                peak = peak_of_arrays(compute, folder, rows, given.classes)
            peaks[rows] = min(peak, peaks[rows])
        few, many = FEW
        each = (peaks[many] - peaks[few]) / (many - few)
        whole = 5_000_000 * each / MIB
        print(f"| {name} | {each:.0f} | {whole:,.0f} |", flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", type=positive_int, default=ROWS)
    parser.add_argument("--classes", type=positive_int, default=CLASSES)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--maps", nargs="*", choices=("temperature", *MAPS))
    parser.add_argument("--bytes", action="store_true")
    parser.add_argument("--folder", help="where the file of logits is made")
    parser.add_argument("--verbose", default="0", choices=["0", "1", "auto"])
    given = parser.parse_args(arguments)
    verbose = given.verbose if given.verbose == "auto" else int(given.verbose)
    maps = {"temperature": calibrate, **MAPS}
    if given.bytes:
        print_bytes({n: maps[n] for n in given.maps or maps}, given)
        return
    parts = {name: PARTS[name] for name in given.parts}
    if given.maps is not None:
        parts = {name: maps[name] for name in given.maps or MAPS}
    today = datetime.date.today().isoformat()
    print(
        f"{keras.backend.backend()}, {platform.machine()}, Keras "
        f"{keras.__version__}, {today}.\n\n"
        "| rows | what | result | seconds | of the processor | of it a row, "
        "microseconds | MiB before | MiB at most | MiB of the logits | more, "
        "bytes a row |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for rows in given.rows:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            logits, labels = make(folder, rows, classes=given.classes)
            for name, compute in parts.items():
                with watched() as found:
                    result = float(compute(logits, labels, verbose))
                seconds = found["processor"]
                more = found["most"] - found["before"]
                print(
                    f"| {rows:,} | {name} | {result:.4f} | "
                    f"{found['seconds']:.1f} | {seconds:.1f} | "
                    f"{1e6 * seconds / rows:.1f} | "
                    f"{found['before'] / MIB:.0f} | {found['most'] / MIB:.0f} "
                    f"| {logits.nbytes / MIB:.0f} | {more / rows:.0f} |",
                    flush=True,
                )
            del logits


if __name__ == "__main__":
    main()
