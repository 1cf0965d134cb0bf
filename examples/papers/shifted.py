"""Fine-tuned networks on corrupted test images, one line per method.

The corruptions are those of CIFAR-10-C, by `kc.shift`, on the test images of
the protocol; nothing is trained or chosen on them. A network is measured as it
was trained and with two temperatures of its calibration images: that of the NLL
(TS), and that of the soft-binned ECE (TS-SB-ECE), which lines of before do not
have.
"""

import dataclasses
import datetime
import pathlib
import sys
import time

import data_sets
import keras
import measures
import methods
import numpy as np
import protocols
import work
from missing import refused
from places import slug
from processes import late
from row_files import read_rows

import keras_calib as kc

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import stored_rows

TRAINED, SCALED, TO_SB_ECE = "as trained", "after TS", "after TS-SB-ECE"
VALUES = ("accuracy", "ece", "ece_floor", "nll")
ERRORS = ("accuracy_se", "ece_se", "nll_se")
# Logits are stored with 11 bits, and another machine sums in another order.
SAME = {"rtol": 0.01, "atol": 0.05}
# How far a temperature may be from that of the stored row, relative to it.
SAME_TEMPERATURE = 0.02


def measure_missing(arguments):
    """Measure every stored row of a table that has weights, one at a time.

    Args:
        arguments: of `run.parse`. The lines are appended to
            `<table>_shift.jsonl`; a method that is there is not run again.
    """
    begin = time.time()
    stored = read_rows(arguments.results / f"{arguments.table}.jsonl")
    names = [*(method for method, _ in stored), *protocols.OTHER_PUBLISHED]
    known, who = dict.fromkeys(names), f"{arguments.table} has rows of"
    if refused(arguments, known, who):
        return 2
    path = arguments.results / f"{arguments.table}_shift.jsonl"
    subjects = list(wanted(arguments, read_rows(path)))
    print(f"{path.name}: {len(subjects)} rows to run", flush=True)
    for number, (method, seed, row) in enumerate(subjects):
        if late(arguments, begin):
            print(f"time is over, {len(subjects) - number} rows left")
            break
        found = measure_one(arguments, method, seed, row)
        stored_rows.append(path, found)
        each = (time.time() - begin) / (number + 1)
        left = each * (len(subjects) - number - 1)
        left = datetime.timedelta(seconds=int(left))
        place = f"[{number + 1}/{len(subjects)}]"
        print(f"{place} {method}, seed {seed}: done, {left} left", flush=True)
    return 0


def wanted(arguments, done):
    """Yields method, seed and row of what is not measured yet.

    The row is `None` for a network that is only published.
    """
    rows = read_rows(arguments.results / f"{arguments.table}.jsonl")
    others = {(name, 0): None for name in protocols.OTHER_PUBLISHED}
    for (method, seed), row in {**rows, **others}.items():
        if arguments.only and method not in arguments.only:
            continue
        weights = weights_of(arguments, method, seed)
        if row and not (as_published(method) or weights.exists()):
            print(f"{method}, seed {seed}: no weights in {weights}")
        elif not holds(arguments, done.get((method, seed)), row):
            yield method, seed, row


def holds(arguments, found, row):
    """Whether a stored line is of these weights and of enough images.

    One without a temperature of the soft-binned ECE lacks a part.
    """
    if found is None or found["num_images"] < (arguments.images or 0):
        return False
    if TO_SB_ECE not in found:
        return False
    return row is None or found["date_of_training"] == row["date"]


def as_published(method):
    """Whether a row is of a published network that nobody trained further."""
    return methods.METHODS[method]["train"] == "as_it_is"


def weights_of(arguments, method, seed):
    name = f"{slug(method, seed)}-primary.weights.h5"
    return arguments.work / arguments.table / name


def measure_one(arguments, method, seed, row):
    """The line of one network."""
    begin = time.time()
    protocol = protocols.PROTOCOLS[arguments.table]
    keras.config.set_dtype_policy(protocol.dtype)
    parts = data_sets.load(protocol, arguments.work)
    network = network_of(arguments, protocol, method, seed, row)
    logits = network.predict(
        parts["calibration"][0], protocol.predict_batch, verbose=0
    )
    if row is not None and not as_published(method):
        check_weights(arguments, method, seed, logits)
    temperatures = temperatures_of(row, logits, parts["calibration"][1])
    x, y = (part[: arguments.images] for part in parts["test"])
    result = evaluate(network, temperatures, x, y)
    found = {name: of_model(result, name) for name in temperatures}
    found[TO_SB_ECE]["temperature"] = temperatures[TO_SB_ECE]
    return {
        "table": arguments.table,
        "method": method,
        "seed": seed,
        "temperature": temperatures[SCALED],
        "num_images": result.num_images,
        "num_bins": result.num_bins,
        "corruption_seed": result.seed,
        **found,
        "seconds": round(time.time() - begin, 1),
        "date_of_training": row and row["date"],
        **stored_rows.provenance(arguments.threads),
    }


def temperatures_of(row, logits, labels):
    """What the logits are divided by, by the name of a part.

    The temperatures of a row where it has them, else fitted to these logits.

    Raises:
        ValueError: if the row has another temperature than the logits.
    """
    fitted = measures.fit_temperature(logits, labels)
    stored = row and row["test_scaled"]["temperature"]
    if row and as_published(row["method"]):
        if abs(stored / fitted - 1) > SAME_TEMPERATURE:
            raise ValueError(
                f"The published weights have the temperature {fitted:.3g}, and "
                f"the stored row {stored:.3g}. Run the row again."
            )
    soft = (row or {}).get("test_scaled_to_sb_ece", {}).get("temperature")
    if soft is None:
        soft = measures.fit_temperature(logits, labels, "soft_binned_ece")
    return {TRAINED: 1.0, SCALED: stored or fitted, TO_SB_ECE: soft}


def network_of(arguments, protocol, method, seed, row):
    """The network with the weights of a row, or a published one."""
    if row is None:
        weights = protocols.OTHER_PUBLISHED[method]
        protocol = dataclasses.replace(protocol, weights=weights)
    network = work.Task({}, protocol, {}, seed).network(protocol.network)
    if row is not None and not as_published(method):
        network.load_weights(weights_of(arguments, method, seed))
    return network


def check_weights(arguments, method, seed, logits):
    """Compare with the logits that were stored at the end of the training.

    Raises:
        ValueError: if the weights are not those of the stored row.
    """
    name = f"{slug(method, seed)}.npz"
    path = arguments.work / arguments.table / name
    with np.load(path, allow_pickle=False) as file:
        stored = file["calibration_logits"].astype("float32")
    if not np.allclose(logits, stored, **SAME):
        away = np.abs(logits - stored).max()
        raise ValueError(
            f"The weights of {method}, seed {seed}, give other logits than "
            f"those in {path}. Largest difference: {away:.3g}. Run the row of "
            f"{arguments.table} again."
        )


def evaluate(network, temperatures, x, y):
    """`kc.shift.evaluate` of the logits of a network over temperatures.

    The network stands in the place of the preprocessing, so that it runs once
    for all; what is evaluated divides its logits.

    Args:
        network: a model whose outputs are logits.
        temperatures: a dict, by the name of what is evaluated.
        x: clean images.
        y: their labels.
    """
    models = {}
    for name, factor in temperatures.items():
        logits = keras.Input(network.output_shape[1:])
        scaled = keras.layers.Rescaling(1 / factor)(logits)
        models[name] = keras.Model(logits, scaled)
    return kc.shift.evaluate(
        models, x, y, preprocess=Once(network), from_logits=True, verbose=0
    )


class Once:
    """Logits of a batch, computed once if the same batch comes again."""

    def __init__(self, network):
        self.network, self.batch, self.logits = network, None, None

    def __call__(self, batch):
        # Each model gets a copy.
        if self.batch is None or not np.array_equal(batch, self.batch):
            self.logits = self.network.predict_on_batch(batch)
            self.batch = batch
        return self.logits


def of_model(result, name):
    """Clean images, means, and all cells of one model, rounded."""
    clean, *cells = [row for row in result.rows if row["model"] == name]
    means = [row for row in result.means if row["model"] == name]
    found = {
        "clean": rounded(clean),
        "severities": {},
        "corruptions": {},
        "cells": {},
    }
    for row in means:
        if row["severity"] is not None:
            found["severities"][str(row["severity"])] = rounded(row)
        elif row["corruption"] is not None:
            found["corruptions"][row["corruption"]] = rounded(row)
        else:
            found["mean"] = rounded(row)
    for row in cells:
        values = found["cells"].setdefault(row["corruption"], {})
        for key in VALUES:
            values.setdefault(key, []).append(round(row[key], 5))
    return found


def rounded(row):
    return {key: round(row[key], 5) for key in (*VALUES, *ERRORS)}
