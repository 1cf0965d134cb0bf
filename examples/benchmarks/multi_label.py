"""Several sigmoid units: temperatures near each other, or each by itself.

NLL of a label of other samples, minus that of the untouched logits, of

- one temperature for all labels,
- each label by itself (`shrinkage=None`, and its Platt map),
- `MultiLabelScaling` at its defaults, and what `kc.calibrate(multi_label=True)`
  returns, with its guard; both with a temperature and with a Platt map.

Made labels, twenty with frequencies from 3 to 50 %, whose logits are right or
1.8 times too large, by as much for all labels or not; a hundred rare ones, with
frequencies from 0.1 to 10 %; and ten units that tell the digits apart, trained
until they are too sure.

    KERAS_BACKEND=torch python examples/benchmarks/multi_label.py
"""

import datetime
import os
import platform
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_calib as kc

SIZES = (50, 200, 1000)
DRAWS = 20
# Name: the factor of the logits, the standard deviation of its logarithm,
# number of labels, lowest and highest mean of the right logits of a label.
MADE = {
    "made, right": (1.0, 0.0, 20, -4, 0),
    "made, 1.8": (1.8, 0.0, 20, -4, 0),
    "made, 1.8, log by 0.3": (1.8, 0.3, 20, -4, 0),
    "made, 1.8, log by 0.8": (1.8, 0.8, 20, -4, 0),
    "rare, right": (1.0, 0.0, 100, -8, -3),
    "rare, 1.8": (1.8, 0.0, 100, -8, -3),
}
OTHERS = 20_000


def made(factor, spread, labels, lowest, highest):
    """A function that draws so many samples with a seed."""
    rng = np.random.default_rng(7)
    means = rng.uniform(lowest, highest, labels)
    factors = factor * np.exp(spread * rng.normal(size=labels))

    def draw(seed, size):
        rng = np.random.default_rng(seed)
        z = rng.normal(means, 1.5, (size, labels))
        y = rng.random(z.shape) < 1 / (1 + np.exp(-z))
        return (factors * z).astype("float32"), y.astype("int32")

    return draw


def digits():
    """The same of the outputs of a network, from the rows it has not seen."""
    x, labels = load_digits(return_X_y=True)
    x, y = x / 16, np.eye(10, dtype="int32")[labels]
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order].astype("float32"), y[order]
    keras.utils.set_random_seed(0)
    network = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(1e-2), loss)
    network.fit(x[:200], y[:200], epochs=200, verbose=0)
    z, y = network.predict(x[200:], verbose=0), y[200:]

    def draw(seed, size):
        if size == OTHERS:
            return z[1000:], y[1000:]
        rows = np.random.default_rng(seed).permutation(1000)[:size]
        return z[rows], y[rows]

    return draw


def identity(num_labels):
    outputs = keras.layers.Activation("sigmoid")
    return keras.Sequential([keras.Input((num_labels,)), outputs])


def nll(z, y):
    """Mean over labels, of logits."""
    z = np.asarray(z, "float64")
    return float((np.logaddexp(0, z) - y * z).mean())


def logits_of(p):
    p = np.clip(np.asarray(p, "float64"), 1e-12, 1 - 1e-12)
    return np.log(p / (1 - p))


def changes(z, y, test, labels):
    """Each of the maps, by name: NLL minus that of the untouched logits."""
    shared = kc.layers.TemperatureScaling().adapt(
        z.reshape(-1, 1), y.reshape(-1)
    )
    found = {"one for all": test / shared.temperature}
    for method in ("temperature", "platt"):
        for title, shrinkage in (("alone", None), ("default", "auto")):
            layer = kc.layers.MultiLabelScaling(
                method=method, shrinkage=shrinkage
            ).adapt(z, y)
            calibrated = keras.ops.convert_to_numpy(layer(test))
            found[f"{method}, {title}"] = calibrated
        model = kc.calibrate(
            identity(z.shape[1]),
            *(z, y),
            multi_label=True,
            method=method,
            verbose=0,
        )
        p = model.predict(test, batch_size=4096, verbose=0)
        found[f"{method}, `calibrate`"] = logits_of(p)
    untouched = nll(test, labels)
    return {name: nll(each, labels) - untouched for name, each in found.items()}


def main():
    print(
        f"{platform.machine()}, Keras {keras.__version__}, "
        f"{keras.backend.backend()}, "
        f"{datetime.datetime.now(tz=datetime.UTC).date()}. Means of {DRAWS} "
        "draws.\n"
    )
    sources = {name: made(*setting) for name, setting in MADE.items()}
    sources["digits"] = digits()
    begun = False
    for name, draw in sources.items():
        test, labels = draw(99, OTHERS)
        for size in SIZES:
            rows = []
            for number in range(DRAWS):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    data = draw(1000 * number + size, size)
                    rows.append(changes(*data, test, labels))
            if not begun:
                print("| data | samples |", " | ".join(rows[0]), "|")
                print("|---" * (len(rows[0]) + 2) + "|")
                begun = True
            means = [np.mean([row[key] for row in rows]) for key in rows[0]]
            cells = " | ".join(f"{mean:+.4f}" for mean in means)
            print(f"| {name} | {size} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
