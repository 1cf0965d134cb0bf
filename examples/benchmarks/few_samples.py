"""Temperatures of few samples: what they do to other samples.

Ten development files (three networks, seven made tables), each as it is,
calibrated (divided by the temperature of half of its rows) and softer (0.7
times that). Two tables, of the NLL minus that of the untouched logits:

- where all calibration samples are right, the most probable temperature with
  the prior log T ~ N(0, 1), the one that `TemperatureScaling` has, and no
  temperature;
- for all draws, temperature scaling, the same unless its evidence is 2 nats
  below that of the logits as they are, and what the guard of `kc.calibrate`
  returns.

    KERAS_BACKEND=torch python examples/benchmarks/few_samples.py

`KERAS_CALIB_DATA` names the folder of the three networks' predictions.
"""

import collections
import datetime
import os
import pathlib
import platform
import sys
import warnings

import choice_rules
import no_harm
import numpy as np

import keras_calib as kc
from keras_calib.calibration._guard import PRIOR_OF_EVIDENCE
from keras_calib.calibration._guard import evidence_of_temperature
from keras_calib.calibration._guard import judge
from keras_calib.inputs.calibration_rows import read_rows
from keras_calib.solvers.root import golden_section
from keras_calib.solvers.temperature import fit_temperature

RIGHT, SIZES = (10, 20, 40, 60), (20, 50, 100, 200, 500)
DRAWS, MOST = 30, 3000
# Draws that are looked at for some whose samples are all right.
TRIES = 400


def files():
    """Name, logits and labels of each development file."""
    folder = pathlib.Path(os.environ["KERAS_CALIB_DATA"])
    sources = (
        *no_harm.SETS["development"],
        no_harm.development_tables,
        choice_rules.imbalanced_tables,
    )
    for source in sources:
        for name, logits, labels in source(folder):
            half = len(labels) // 2
            logits = np.asarray(logits, "float64")
            best = fit_temperature(logits[:half], labels[:half]).temperature
            yield name, "as it is", logits, labels
            yield name, "calibrated", logits / best, labels
            yield name, "softer", 0.7 * logits / best, labels


def nll(logits, labels):
    return float(no_harm.losses(logits, labels).mean())


def most_probable(logits, labels):
    """The temperature with the prior log T ~ N(0, 1)."""

    def loss(u):
        return len(labels) * nll(logits * np.exp(u), labels) + u**2 / 2

    return np.exp(-golden_section(loss, -4.0, 4.0, 1e-4))


def draws(labels, n, count):
    half = len(labels) // 2
    for draw in range(count):
        yield np.random.default_rng([n, draw]).permutation(half)[:n]


def where_all_are_right(logits, labels, rest):
    """Means over draws, by number of samples."""
    right = logits.argmax(axis=1) == labels
    untouched = nll(*rest)
    for n in RIGHT:
        found = []
        for rows in draws(labels, n, TRIES):
            if right[rows].all() and len(found) < DRAWS:
                data = logits[rows], labels[rows]
                temperatures = (
                    most_probable(*data),
                    fit_temperature(*data).temperature,
                )
                found.append(
                    [
                        nll(rest[0] / t, rest[1]) - untouched
                        for t in temperatures
                    ]
                )
        if found:
            yield n, np.mean(found, axis=0)


def guarded(logits, labels, rest):
    """Means over draws, by number of samples."""
    untouched = nll(*rest)
    for n in SIZES:
        found = []
        for rows in draws(labels, n, DRAWS):
            data = logits[rows], labels[rows]
            layer = kc.layers.TemperatureScaling().adapt(*data)
            samples = read_rows(*data)
            own = nll(rest[0] / layer.temperature, rest[1]) - untouched
            evidence = evidence_of_temperature(samples, layer.temperature)
            kept = judge(layer, samples).returned == "no_calibration"
            by_evidence = own if evidence > -PRIOR_OF_EVIDENCE else 0.0
            found.append([own, by_evidence, 0.0 if kept else own])
        yield n, np.mean(found, axis=0)


def print_table(title, columns, cells):
    """Mean over files, and the worst file, by form and number of samples."""
    print(f"\n{title}\n\n| files | samples | {' | '.join(columns)} |")
    print("|---|---" + "|---" * len(columns) + "|")
    for (form, n), rows in sorted(cells.items()):
        means, worst = np.mean(rows, axis=0), np.max(rows, axis=0)
        texts = [
            f"{a:+.4f} ({b:+.4f})" for a, b in zip(means, worst, strict=True)
        ]
        print(f"| {form}, {len(rows)} | {n} | {' | '.join(texts)} |")


def main():
    if not os.environ.get("KERAS_CALIB_DATA"):
        sys.exit("Set KERAS_CALIB_DATA to the folder that holds the data.")
    right = collections.defaultdict(list)
    every = collections.defaultdict(list)
    for _, form, logits, labels in files():
        half = len(labels) // 2
        rest = logits[half:][:MOST], labels[half:][:MOST]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for n, means in where_all_are_right(logits, labels, rest):
                right[form, n].append(means)
            for n, means in guarded(logits, labels, rest):
                every[form, n].append(means)
    date = datetime.datetime.now(tz=datetime.UTC).date()
    print(f"{platform.machine()}, {date}.")
    print_table(
        "All samples right: NLL minus that of the untouched logits, mean over "
        "files (worst file)",
        ("prior log T ~ N(0, 1)", "`TemperatureScaling`"),
        right,
    )
    print_table(
        "All draws: the same",
        ("`TemperatureScaling`", "guarded by evidence", "guarded"),
        every,
    )


if __name__ == "__main__":
    main()
