"""Vector scaling beside SVS with 5,000 samples, in random halves of the files.

`no_harm.py` has one draw of 5,000 samples, since its test rows stay the same.
Here each of six draws cuts 10,000 rows of a file into other halves, for all
files of its test data and made tables that have so many. In a table, the NLL
on the second half minus that of probmetrics' structured vector scaling (SVS):

- of `VectorScaling`;
- of the same on the input with which SVS begins, temperature scaling with a
  uniform part, `log((n softmax(z / T) + 1 / K) / (n + 1))`. That is no affine
  map of the logits, but shows what one does not have.

    KERAS_BACKEND=torch python examples/benchmarks/halves.py [--store]

`KERAS_CALIB_DATA` names the folder of the stored predictions. Needs probmetrics
(`pip install -e ".[peers]"`).
"""

import argparse
import datetime
import os
import pathlib
import platform

import cost_rows
import no_harm
import numpy as np

import keras_calib as kc
from keras_calib.solvers.shrinkage import log_mixture

SETS = ("test", "tables")
ROWS, DRAWS = 5000, 6
SVS = "probmetrics SVS"


def files(data):
    folder = pathlib.Path(os.environ["KERAS_CALIB_DATA"])
    for source in no_harm.SETS[data]:
        for name, logits, labels in source(folder):
            if len(labels) >= 2 * ROWS:
                yield name, logits, labels


def smoothed(logits, temperature, n):
    """The log-probabilities with which SVS begins."""
    log_p = no_harm.log_softmax(no_harm.log_softmax(logits) / temperature)
    return log_mixture(log_p, -np.log(log_p.shape[1]), 1 / (n + 1))


def losses(fitted, rest):
    """NLL of the two maps minus that of SVS."""

    def nll(name, fitted, rest):
        scores = no_harm.fitted(name, False, *fitted)
        return float(no_harm.losses(scores(rest[0]), rest[1]).mean())

    base = nll(SVS, fitted, rest)
    n = len(fitted[1])
    temperature = kc.layers.TemperatureScaling().adapt(*fitted).temperature
    begun = [
        (smoothed(logits, temperature, n), labels)
        for logits, labels in (fitted, rest)
    ]
    ours = nll("VectorScaling", fitted, rest)
    return ours - base, nll("VectorScaling", *begun) - base


def of_draws(logits, labels):
    """The mean over draws of what `losses` returns."""
    found = []
    for draw in range(DRAWS):
        rng = np.random.default_rng([ROWS, draw])
        rows = rng.permutation(len(labels))[: 2 * ROWS]
        halves = [
            (logits[half], labels[half]) for half in (rows[:ROWS], rows[ROWS:])
        ]
        found.append(losses(*halves))
    return np.mean(found, axis=0)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    cost_rows.add_option(parser)
    arguments = parser.parse_args(arguments)
    print(
        f"{platform.machine()}, one thread, {datetime.date.today()}\n\n"
        f"{ROWS:,} samples: NLL minus that of SVS, mean of {DRAWS} draws\n\n"
        "| data | file | `VectorScaling` | with the uniform part of SVS |\n"
        "|---|---|---|---|"
    )
    for data in SETS:
        means = []
        for name, logits, labels in files(data):
            means.append(of_draws(logits, labels))
            a, b = means[-1]
            print(f"| {data} | {name} | {a:+.4f} | {b:+.4f} |", flush=True)
            values = {"data": data, "file": name, "draws": DRAWS}
            values |= {"vector": a, "with_uniform_part": b}
            cost_rows.store(arguments.store, "halves", **values)
        error = np.std(means, axis=0, ddof=1) / len(means) ** 0.5
        a, b = (
            f"{m:+.5f} +- {e:.5f}"
            for m, e in zip(np.mean(means, axis=0), error, strict=True)
        )
        print(f"| {data} | mean and standard error over files | {a} | {b} |")


if __name__ == "__main__":
    main()
