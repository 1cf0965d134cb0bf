"""Every calibration map with every objective, on given predictions: one table.

A table of the shape of that in Jung et al., "Scaling of Class-wise Training
Losses for Post-hoc Calibration" (ICML 2023): a row for each map; columns for
the plain likelihood, label smoothing (LS), focal loss (FL) and class-wise loss
scaling (CS). Cells are ECE in percent (15 bins of equal width) and, in
brackets, accuracy in percent, on the part of the samples that no map was
fitted to: means over random splits, and the standard error of the mean ECE.
A dash stands where a map does not minimize a mean of losses, or not this one.

    python examples/posthoc_table.py predictions.npz --markdown

Files hold `logits`, or `probabilities` (also called `predictions`), of shape
`(n, num_classes)`, and `labels` (also called `ground_truth`). Without files,
those in `$KERAS_CALIB_DATA/predictions` are taken.
"""

import argparse
import functools
import os
import pathlib
import sys
import time
import warnings

import keras
import numpy as np
from argument_types import positive_int

import keras_calib as kc

layers = kc.layers

# The papers' maps, which the defaults of the library are not; PTS and IOP with
# its penalty, without which they are far worse.
MAPS = {
    "TS": layers.TemperatureScaling,
    "BCTS": functools.partial(
        layers.BiasCorrectedTemperatureScaling, regularization=None
    ),
    "ETS": layers.EnsembleTemperatureScaling,
    "PTS": functools.partial(
        layers.ParameterizedTemperatureScaling, shrinkage=None
    ),
    "CTS": functools.partial(
        layers.ClassTemperatureScaling, regularization=None
    ),
    "VS": functools.partial(layers.VectorScaling, regularization=None),
    "MS": functools.partial(layers.MatrixScaling, regularization="structured"),
    "Dirichlet": functools.partial(
        layers.DirichletScaling, regularization="odir"
    ),
    "IOP": functools.partial(layers.IntraOrderPreserving, shrinkage=None),
    "Spline": functools.partial(layers.SplineCalibration, shrinkage=None),
    "Isotonic": functools.partial(layers.IsotonicCalibration, shrinkage=None),
    "Isotonic per class": functools.partial(
        layers.IsotonicCalibration, per_class=True, shrinkage=None
    ),
    "Histogram": functools.partial(layers.HistogramBinning, shrinkage=None),
}
OBJECTIVES = {
    "plain": {},
    "+LS": {"objective": "label_smoothing"},
    "+FL": {"objective": "focal"},
    "+CS": {"class_loss_scaling": "normal"},
}


def read(file):
    """Logits and labels of one file."""
    with np.load(file) as arrays:
        labels = _first(file, arrays, "labels", "ground_truth").astype("int32")
        if "logits" in arrays:
            return arrays["logits"], labels
        p = _first(file, arrays, "probabilities", "predictions")
    return np.log(np.maximum(p, np.finfo("float32").tiny)), labels


def _first(file, arrays, *names):
    for name in names:
        if name in arrays:
            return arrays[name]
    sys.exit(f"{file} holds none of {names}, but {sorted(arrays)}.")


def supported(layer, settings):
    """Whether a map can be fitted in this way."""
    if "class_loss_scaling" in settings:
        return layer.fitted_by == "likelihood"
    return settings.get("objective", "nll") in layer.objectives


def measure(logits, labels, layer=None):
    """ECE and accuracy, in percent."""
    if layer is not None:
        logits = np.asarray(keras.ops.convert_to_numpy(layer(logits)))
    errors = kc.metrics.calibration_errors(
        labels,
        logits,
        from_logits=True,
        metrics=["expected_calibration_error"],
    )
    ece = float(errors["expected_calibration_error"])
    return 100 * ece, 100 * float((logits.argmax(-1) == labels).mean())


def compare(logits, labels, names, splits=20, share=0.5, seed=0, log=None):
    """Fit and measure every map with every objective on every split.

    Returns:
        dict from the map's name to a dict from the objective's name to an
        array `(splits, 2)` of ECE and accuracy, or `None`.
    """
    results = {"uncalibrated": {column: None for column in OBJECTIVES}}
    results["uncalibrated"]["plain"] = []
    for name in names:
        results[name] = {
            column: [] if supported(MAPS[name](), settings) else None
            for column, settings in OBJECTIVES.items()
        }
    for split in range(splits):
        order = np.random.default_rng([seed, split]).permutation(len(labels))
        calibration, test = np.split(order, [round(share * len(labels))])
        held_out = logits[test].astype("float32"), labels[test]
        results["uncalibrated"]["plain"].append(measure(*held_out))
        for name in names:
            for column, settings in OBJECTIVES.items():
                if results[name][column] is None:
                    continue
                start = time.perf_counter()
                layer = MAPS[name]()
                layer.adapt(
                    logits[calibration], labels[calibration], **settings
                )
                results[name][column].append(measure(*held_out, layer))
                if log:
                    seconds = time.perf_counter() - start
                    log(f"split {split + 1}: {name} {column} {seconds:.1f} s")
    return {
        name: {
            column: None if found is None else np.array(found)
            for column, found in row.items()
        }
        for name, row in results.items()
    }


def cell(found):
    """`ECE ± standard error (accuracy)`."""
    if found is None:
        return "-"
    ece, accuracy = found.mean(axis=0)
    error = ""
    if len(found) > 1:
        spread = found[:, 0].std(ddof=1) / np.sqrt(len(found))
        error = f" ± {spread:.2f}"
    return f"{ece:.2f}{error} ({accuracy:.2f})"


def table(results, markdown=False):
    """The results as lines of text."""
    rows = [["map", *OBJECTIVES]]
    for name, row in results.items():
        rows.append([name, *(cell(row[column]) for column in OBJECTIVES)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rows = [
        [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        for row in rows
    ]
    if not markdown:
        return ["  ".join(row).rstrip() for row in rows]
    rows.insert(1, ["-" * width for width in widths])
    return ["| " + " | ".join(row) + " |" for row in rows]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--splits", type=positive_int, default=20)
    parser.add_argument(
        "--share",
        type=float,
        default=0.5,
        help="share of the samples that maps are fitted to",
    )
    parser.add_argument("--maps", nargs="+", choices=MAPS, default=list(MAPS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument(
        "--verbose", action="store_true", help="tell each fit's time"
    )
    arguments = parser.parse_args(argv)
    files = arguments.files
    if not files and "KERAS_CALIB_DATA" in os.environ:
        folder = pathlib.Path(os.environ["KERAS_CALIB_DATA"])
        files = sorted((folder / "predictions").glob("*.npz"))
    if not files:
        parser.error("give files, or set KERAS_CALIB_DATA to their folder")

    def log(text):
        print(text, file=sys.stderr, flush=True)

    for file in files:
        logits, labels = read(file)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("default" if arguments.verbose else "ignore")
            results = compare(
                logits,
                labels,
                arguments.maps,
                arguments.splits,
                arguments.share,
                arguments.seed,
                log if arguments.verbose else None,
            )
        seconds = time.perf_counter() - start
        title = (
            f"{file.stem}: {len(labels)} samples, {logits.shape[1]} classes, "
            f"{arguments.splits} splits, {arguments.share:.0%} to calibrate, "
            f"{seconds:.0f} s"
        )
        print(f"## {title}\n" if arguments.markdown else title)
        print("\n".join(table(results, arguments.markdown)) + "\n", flush=True)


if __name__ == "__main__":
    main()
