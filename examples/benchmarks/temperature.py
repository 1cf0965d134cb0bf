"""Seconds to fit a temperature: ours, scikit-learn's, and a plain L-BFGS.

One process, the same logits, each after a warm-up, in turn; the ratio is of
the medians. Memory is the peak of NumPy's allocations during our fit, with the
logits themselves, relative to the logits.

    python examples/benchmarks/temperature.py [--rows 25000] [--classes 1000]
"""

import argparse
import pathlib
import platform
import statistics
import sys
import time
import tracemalloc

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.calibration import _TemperatureScaling

from keras_calib.solvers.temperature import fit_temperature

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from argument_types import positive_int


def ours(logits, labels):
    return fit_temperature(logits, labels).temperature


def scikit_learn(logits, labels):
    return 1 / _TemperatureScaling().fit(logits, labels).beta_


def plain_lbfgs(logits, labels):
    """What most scripts do, with the exact gradient and run to convergence."""
    chosen = logits[np.arange(len(labels)), labels]

    def loss(log_beta):
        beta = np.exp(log_beta[0]).astype(logits.dtype)
        z = beta * logits
        norm = logsumexp(z, axis=1)
        mean = (np.exp(z - norm[:, None]) * logits).sum(axis=1)
        value = np.mean(norm - beta * chosen, dtype=float)
        slope = beta * np.mean(mean - chosen, dtype=float)
        return value, np.array([slope])

    found = minimize(loss, [0.0], jac=True, method="L-BFGS-B", tol=1e-9)
    return float(np.exp(-found.x[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=positive_int, default=25_000)
    parser.add_argument("--classes", type=positive_int, default=1_000)
    parser.add_argument("--repeats", type=positive_int, default=5)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    shape = arguments.rows, arguments.classes
    logits = 3 * rng.normal(size=shape).astype("float32")
    noise = rng.gumbel(size=shape).astype("float32")
    labels = (logits / 2 + noise).argmax(axis=1)
    del noise

    contestants = {
        "keras_calib": ours,
        "scikit-learn": scikit_learn,
        "plain L-BFGS": plain_lbfgs,
    }
    seconds = {name: [] for name in contestants}
    found = {}
    for repeat in range(arguments.repeats + 1):
        for name, fit in contestants.items():
            start = time.perf_counter()
            found[name] = fit(logits, labels)
            if repeat:  # the first is the warm-up
                seconds[name].append(time.perf_counter() - start)

    tracemalloc.start()
    ours(logits, labels)
    peak = (tracemalloc.get_traced_memory()[1] + logits.nbytes) / logits.nbytes

    print(f"{platform.machine()}, {shape[0]} x {shape[1]} float32 logits")
    print("| solver | T | seconds (median) | ratio to ours |")
    print("|---|---|---|---|")
    fastest = statistics.median(seconds["keras_calib"])
    for name in contestants:
        median = statistics.median(seconds[name])
        print(
            f"| {name} | {found[name]:.6f} | {median:.3f} "
            f"| {median / fastest:.1f} |"
        )
    print(f"peak memory: {peak:.2f} times the logits")


if __name__ == "__main__":
    main()
