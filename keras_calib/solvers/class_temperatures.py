"""One temperature per class by the hard-binned calibration error: greedy."""

import numpy as np

from keras_calib.solvers.temperature_search import search_temperature

TEMPERATURES = np.arange(1, 101) / 10
SWEEPS = 5


def search_class_temperatures(logits, labels, weights, objective):
    """Lower a calibration error class by class over `T_k = 0.1, ..., 10.0`.

    Starts at the best common temperature, goes through the classes in order,
    keeps a change only if the error falls, and stops after a sweep without a
    change, or after five.

    Args:
        logits: `(n, num_classes)`.
        labels: int class ids, `(n,)`.
        weights: sample weights, `(n,)`.
        objective: `Objective` of confidence.

    Returns:
        temperatures: `(num_classes,)`.
        value: the error there.

    Reference:
        Frenkel and Goldberger, "Network Calibration by Class-based Temperature
        Scaling", EUSIPCO 2021.
    """
    common, value = search_temperature(logits, labels, weights, objective)
    temperatures = np.full(logits.shape[1], common)
    scores = logits.astype("float64") / common
    for _ in range(SWEEPS):
        before = value
        for k in range(logits.shape[1]):
            found, best = _best(
                scores, k, logits[:, k], labels, weights, objective
            )
            if best < value:
                temperatures[k], value = found, best
                scores[:, k] = logits[:, k] / found
        if value == before:
            break
    return temperatures, value


def _best(scores, k, logit, labels, weights, objective):
    """The best temperature of class `k` with all others fixed."""
    others = np.delete(scores, k, axis=1)
    largest = others.max(axis=1)
    predicted = others.argmax(axis=1)
    predicted += predicted >= k
    rest = np.exp(others - largest[:, None]).sum(axis=1)
    values = []
    for temperature in TEMPERATURES:
        score = logit.astype("float64") / temperature
        top = np.maximum(score, largest)
        total = rest * np.exp(largest - top) + np.exp(score - top)
        correct = np.where(score > largest, k, predicted) == labels
        values.append(objective.of(1 / total, correct.astype(float), weights))
    best = int(np.argmin(values))
    return TEMPERATURES[best], values[best]
