"""Processor seconds to fit each calibration map, the paper's and ours.

5,000 x 100 float32 logits that are off by a temperature, 5,000 x 2 for maps of
two classes, 5,000 x 100 sigmoid units for those of several labels, 25 images of
64 x 64 pixels and 11 classes for the local temperature, where one half of each
needs another temperature; one thread; the median of three fits after a first
one. "paper's" is without shrinkage and without regularization, for Dirichlet
with ODIR (maps with a `penalty` keep it); "default" is what a layer does if
nothing is said. "Guarded" is the fit
and the guard of `kc.calibrate` as a multiple of the fit, both ways: its guard
takes what a call takes more than one with `guard=False`, measured in turns. The
last rows are `kc.calibrate` with `method="auto"`, once.

    OMP_NUM_THREADS=1 python examples/benchmarks/map_costs.py [--only MAP] \
        [--store]
"""

import argparse
import datetime
import functools
import os
import platform
import statistics
import time
import warnings

os.environ.setdefault("KERAS_BACKEND", "torch")

import cost_rows
import keras
import numpy as np
import threadpoolctl
from argument_types import one_of_many

import keras_calib as kc

ROWS, CLASSES, REPEATS = 5_000, 100, 3
IMAGES, SIZE, IMAGE_CLASSES = 25, 64, 11
PLAIN = {"regularization": None}
UNSHRUNK = {"shrinkage": None}
STRUCTURED = 'MatrixScaling(regularization="structured")'
# Layer: what makes it the paper's map, or `None` where that is the default.
MAPS = {
    "TemperatureScaling": None,
    "BayesianTemperatureScaling": None,
    "BiasCorrectedTemperatureScaling": PLAIN,
    "ClassTemperatureScaling": PLAIN,
    "VectorScaling": PLAIN,
    "MatrixScaling": PLAIN,
    STRUCTURED: None,
    "DirichletScaling": {"regularization": "odir"},
    "EnsembleTemperatureScaling": None,
    "ParameterizedTemperatureScaling": UNSHRUNK,
    "IntraOrderPreserving": UNSHRUNK,
    "SplineCalibration": UNSHRUNK,
    "IsotonicCalibration": UNSHRUNK,
    "HistogramBinning": UNSHRUNK,
}
BINARY = {
    "BetaCalibration": UNSHRUNK,
    "PlattScaling": UNSHRUNK,
    "QuadraticScaling": UNSHRUNK,
}


def classes(number):
    """Logits at half of whose size labels are drawn."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(ROWS, number)).astype("float32")
    noise = rng.gumbel(size=logits.shape)
    return logits, (logits / 2 + noise).argmax(axis=1)


def labels_of_units():
    """The same, each unit a label of its own."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(ROWS, CLASSES)).astype("float32")
    chance = 1 / (1 + np.exp(-logits / 2))
    return logits, (rng.random(logits.shape) < chance).astype("int32")


def images():
    """Logits that need the temperature 1 in dark pixels, and 3 in bright ones.

    Returns:
        The pair of images and logits, and the labels.
    """
    rng = np.random.default_rng(0)
    shape = IMAGES, SIZE, SIZE
    logits = 3 * rng.normal(size=(*shape, IMAGE_CLASSES)).astype("float32")
    bright = np.broadcast_to(np.arange(SIZE) >= SIZE // 2, shape)[..., None]
    noise = rng.gumbel(size=logits.shape)
    labels = (logits / np.where(bright, 3, 1) + noise).argmax(axis=-1)
    return [bright.astype("float32"), logits], labels


def seconds(fit, repeats=REPEATS):
    """Median of processor seconds, after a first fit that does not count."""
    found = []
    for _ in range(1 + repeats):
        start = time.process_time()
        fit()
        found.append(time.process_time() - start)
    return statistics.median(found[1:])


def measured(name, paper, data, guarded=True):
    """Seconds of both fits, and what the guard makes of them; a dict."""
    layer = getattr(kc.layers, name.partition("(")[0])
    if name == STRUCTURED:
        layer = functools.partial(layer, regularization="structured")
    ways = [{}] if paper is None else [paper, {}]
    fits = [seconds(lambda way=way: layer(**way).adapt(*data)) for way in ways]
    ratios = [None]
    if guarded:
        ratios = [
            1 + guard_seconds(lambda way=way: layer(**way), data) / fit
            for way, fit in zip(ways, fits, strict=True)
        ]
    return {
        "map": name,
        "paper": fits[0],
        "default": fits[-1],
        "guarded_paper": ratios[0],
        "guarded_default": ratios[-1],
    }


def line(row):
    """The same as a line of a table."""
    fits = [
        "-" if row[key] is None else f"{row[key]:.3f}"
        for key in ("paper", "default")
    ]
    ratios = [
        "-" if row[key] is None else f"{row[key]:.1f}"
        for key in ("guarded_paper", "guarded_default")
    ]
    return f"| `{row['map']}` | {' | '.join([*fits, *ratios])} |"


# What is timed, on which data, and whether the guard judges it.
SOURCES = (
    (MAPS, lambda: classes(CLASSES), True),
    (BINARY, lambda: classes(2), True),
    ({"MultiLabelScaling": UNSHRUNK}, labels_of_units, False),
    ({"LocalTemperatureScaling": None}, images, False),
)


def rows(only=None):
    """Measured rows, in the order of the table, or that of one map."""
    for maps, data, guarded in SOURCES:
        for name, paper in maps.items():
            if only in (None, name):
                yield measured(name, paper, data(), guarded)
    for mixture in () if only else (False, True):
        option = ", mixture=True" if mixture else ""
        chosen = {"method": "auto", "mixture": mixture}
        keys = "paper", "guarded_paper", "guarded_default"
        yield {
            "map": f'method="auto"{option}',
            **dict.fromkeys(keys),
            "default": calibrated(classes(CLASSES), **chosen),
        }


def guard_seconds(layer, data):
    """What `kc.calibrate` takes more with its guard than without."""
    more = []
    for _ in range(1 + REPEATS):
        without = calibrated(data, method=layer(), guard=False)
        more.append(calibrated(data, method=layer()) - without)
    return max(0.0, statistics.median(more[1:]))


def calibrated(data, **options):
    """Seconds of `kc.calibrate`, once."""
    logits, labels = data
    inputs = keras.Input(logits.shape[1:])
    outputs = keras.layers.Softmax()(keras.layers.Identity()(inputs))
    model = keras.Model(inputs, outputs)
    start = time.process_time()
    kc.calibrate(
        model, logits, labels, preserve_accuracy=False, verbose=0, **options
    )
    return time.process_time() - start


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = [name for maps, *_ in SOURCES for name in maps]
    parser.add_argument("--only", metavar="MAP", **one_of_many(names))
    cost_rows.add_option(parser)
    arguments = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    print(
        f"{platform.machine()}, one thread, {keras.backend.backend()}, Keras "
        f"{keras.__version__}, {datetime.date.today()}.\n\n"
        "| map | paper's, s | default, s | guarded, paper's | default |\n"
        "|---|---|---|---|---|"
    )
    with threadpoolctl.threadpool_limits(1):
        for row in rows(arguments.only):
            print(line(row), flush=True)
            cost_rows.store(arguments.store, "maps", **row)


if __name__ == "__main__":
    main()
