"""Errors of all cells of a model, their means, and standard errors."""

import math

import numpy as np

from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.floor import binned_floor
from keras_calib.inputs.arguments import generator
from keras_calib.ops.bin_errors import calibration_error
from keras_calib.ops.binning import bin_index

# Counts of images, in resamples, that are held at a time: 8 MiB.
BLOCK = 1 << 20
METRICS = ("accuracy", "ece", "nll")


def measure(name, predicted, cells, num_bins, num_resamples, seed):
    """Rows of the cells of a model, and rows of means over cells.

    Args:
        name: that of the model.
        predicted: `Predicted`.
        cells: list of `(corruption, severity)`; the first one is clean.
        num_bins: see `evaluate`.
        num_resamples: see `evaluate`.
        seed: see `evaluate`.
    """
    drawn = resampled_ece(predicted, num_bins, num_resamples, seed)
    rows = []
    for cell, (corruption, severity) in enumerate(cells):
        values = {
            "accuracy": predicted.correct[cell],
            "nll": predicted.nll[cell],
        }
        confidence, correct = predicted.confidence[cell], values["accuracy"]
        events = sort_events(confidence, correct)
        bins = events.bins(events.width_cuts(num_bins))
        rows.append(
            {
                "model": name,
                "corruption": corruption,
                "severity": severity,
                "accuracy": float(correct.mean()),
                "ece": float(calibration_error(bins)),
                "ece_floor": float(binned_floor(bins).mean),
                "nll": float(values["nll"].mean(dtype="float64")),
                "accuracy_se": error_of_mean(correct),
                "ece_se": error_of_draws(drawn[cell], len(correct)),
                "nll_se": error_of_mean(values["nll"]),
            }
        )
    corrupted = cells[1:]
    means = [mean_row(rows, predicted, drawn, corrupted, None, None)]
    for severity in dict.fromkeys(s for _, s in corrupted):
        means.append(
            mean_row(rows, predicted, drawn, corrupted, None, severity)
        )
    for corruption in dict.fromkeys(c for c, _ in corrupted):
        means.append(
            mean_row(rows, predicted, drawn, corrupted, corruption, None)
        )
    return rows, means


def mean_row(rows, predicted, drawn, corrupted, corruption, severity):
    """Mean over the cells of a corruption or of a severity, or over all.

    `_se` is the standard error for another draw of images: each image is one
    unit, with its mean over the cells. `_sd` is the standard deviation between
    the cells, 0 for one cell.
    """
    chosen = [
        number
        for number, (kind, strength) in enumerate(corrupted, 1)
        if corruption in (None, kind) and severity in (None, strength)
    ]
    found = {
        "model": rows[0]["model"],
        "corruption": corruption,
        "severity": severity,
        "num_cells": len(chosen),
    }
    for key in (*METRICS, "ece_floor"):
        values = np.array([rows[number][key] for number in chosen])
        found[key] = float(values.mean())
        if key in METRICS:
            found[f"{key}_sd"] = float(
                values.std(ddof=1) if len(values) > 1 else 0.0
            )
    found["accuracy_se"] = error_of_mean(predicted.correct[chosen].mean(axis=0))
    found["nll_se"] = error_of_mean(
        predicted.nll[chosen].mean(axis=0, dtype="float64")
    )
    found["ece_se"] = error_of_draws(
        drawn[chosen].mean(axis=0), predicted.correct.shape[1]
    )
    return found


def error_of_draws(values, num_images):
    """Standard error by resamples of images; NaN for one image."""
    return float(values.std(ddof=1)) if num_images > 1 else math.nan


def error_of_mean(values):
    """Standard error of a mean of independent values; NaN for one value."""
    if len(values) < 2:
        return float("nan")
    return float(np.std(values, ddof=1, dtype="float64") / np.sqrt(len(values)))


def resampled_ece(predicted, num_bins, num_resamples, seed):
    """ECE of each cell on resampled images, `(cells, num_resamples)`.

    The same images are drawn for all cells, as cells share their images.
    """
    cells, n = predicted.confidence.shape
    rng = generator(seed)
    chance = np.full(n, 1 / n)
    found = np.zeros((cells, num_resamples))
    block = max(1, BLOCK // n)
    for start in range(0, num_resamples, block):
        part = slice(start, min(start + block, num_resamples))
        counts = rng.multinomial(n, chance, size=part.stop - part.start)
        counts = counts.astype("float64")
        for cell in range(cells):
            confidence = predicted.confidence[cell]
            away = np.zeros((n, num_bins))
            index = bin_index(confidence, num_bins)
            away[np.arange(n), index] = confidence - predicted.correct[cell]
            found[cell, part] = np.abs(counts @ away).sum(axis=1) / n
    return found
