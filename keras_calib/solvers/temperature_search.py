"""The temperature with the smallest value of any objective.

Calibration errors and training losses are not convex in the temperature, and
a hard-binned error is piecewise: a grid finds the valley, and what follows
stays in it.
"""

import math

import numpy as np

from keras_calib.solvers.temperature import BLOCK
from keras_calib.solvers.temperature import threads

# Elements of the logits above which the grid looks at a subsample.
SMALL = 1 << 22
# Where the minimum is looked for: calibration errors, all other objectives.
RANGES = {True: (0.1, 10.0), False: (0.01, 100.0)}


def search_temperature(logits, labels, weight, objective):
    """Minimise an objective of `logits / T` over T.

    Hard bins: a grid of 65 in log T over [0.1, 10], refined three times to one
    cell on either side. Everything else: 129 nodes, then the zero of the slope
    in the best cell where the objective has one, or a golden section. For
    large logits the 129 look at every k-th sample.

    Args:
        logits: `(n, num_classes)`.
        labels: int class ids, `(n,)`.
        weight: `None`, or sample weights, `(n,)`.
        objective: an `Objective`.

    Returns:
        temperature, value: floats.

    Reference:
        Karandikar et al., "Soft Calibration Objectives for Neural Networks",
        NeurIPS 2021, Section 4.3 and Appendix C.
    """
    whole = _along_temperature(logits, labels, weight, objective)
    if objective.name == "ece":
        return _refined_grid(whole)
    coarse = whole
    step = logits.size // SMALL + 1
    if step > 1 and objective.per_sample | objective.of_confidence:
        part = None if weight is None else weight[::step]
        coarse = _along_temperature(
            logits[::step], labels[::step], part, objective
        )
    low, high = RANGES[objective.of_confidence]
    nodes = np.linspace(math.log(low), math.log(high), 129)
    values = [coarse(u) for u in nodes]
    best = int(np.argmin(values))
    left, right = nodes[max(best - 1, 0)], nodes[min(best + 1, 128)]
    if best in (0, 128):
        return math.exp(nodes[best]), whole(nodes[best])
    u = None
    if not objective.of_confidence:
        u = zero(
            lambda u: _slope(logits, labels, weight, objective, u), left, right
        )
    if u is None:
        u = golden_section(whole, left, right, 1e-8)
    return math.exp(u), whole(u)


def ends_at(temperature, objective):
    """The end of the range that a search stopped at, or `None`."""
    low, high = RANGES[objective.of_confidence]
    # Refined grids go a cell beyond.
    if temperature <= low * (1 + 1e-9):
        return low
    return high if temperature >= high * (1 - 1e-9) else None


def golden_section(function, left, right, tolerance):
    """The minimiser of a function with one valley in an interval."""
    ratio = (math.sqrt(5) - 1) / 2
    c, d = right - ratio * (right - left), left + ratio * (right - left)
    at_c, at_d = function(c), function(d)
    while right - left > tolerance:
        if at_c < at_d:
            right, d, at_d = d, c, at_c
            c = right - ratio * (right - left)
            at_c = function(c)
        else:
            left, c, at_c = c, d, at_d
            d = left + ratio * (right - left)
            at_d = function(d)
    return (left + right) / 2


def zero(function, left, right, tolerance=1e-9):
    """Where a function turns from negative to positive, by `regula falsi`.

    The Illinois rule halves the value of an end that stays, which makes the
    false position converge faster than linearly. `None` without a change of
    sign.
    """
    at_left, at_right = function(left), function(right)
    if not at_left < 0 < at_right:
        return None
    side = 0
    for _ in range(60):
        middle = (left * at_right - right * at_left) / (at_right - at_left)
        value = function(middle)
        if abs(value) < 1e-15:
            return middle
        if value < 0:
            step, left, at_left = middle - left, middle, value
            at_right = at_right / 2 if side < 0 else at_right
            side = -1
        else:
            step, right, at_right = right - middle, middle, value
            at_left = at_left / 2 if side > 0 else at_left
            side = 1
        if step < tolerance:
            return middle
    return middle


def _refined_grid(function):
    (low, high), cells = np.log(RANGES[True]), 64
    best = (math.inf, 0.0)
    for _ in range(4):
        nodes = np.linspace(low, high, cells + 1)
        values = np.array([function(u) for u in nodes])
        # Among equals the one nearest to 1, which changes the model least.
        ties = np.flatnonzero(values == values.min())
        found = ties[np.abs(nodes[ties]).argmin()]
        if values[found] < best[0]:
            best = (values[found], nodes[found])
        step = (high - low) / cells
        low, high = best[1] - step, best[1] + step
    return math.exp(best[1]), float(best[0])


def _along_temperature(logits, labels, weight, objective):
    """The objective as a function of `log T`."""
    if not objective.of_confidence:
        return lambda u: _value(logits, labels, weight, objective, u)
    d = logits - logits.max(axis=1, keepdims=True)
    correct = (logits.argmax(axis=1) == labels).astype(float)
    rows = max(1, BLOCK // logits.shape[1])
    parts = [d[i : i + rows] for i in range(0, len(d), rows)]

    def value(u):
        beta = d.dtype.type(math.exp(-u))

        def confidence(part):
            e = np.multiply(part, beta)
            return 1 / np.exp(e, out=e).sum(axis=1, dtype="float64")

        found = np.concatenate(list(threads().map(confidence, parts)))
        return objective.of(found, correct, weight)

    return value


def _value(logits, labels, weight, objective, u):
    beta = logits.dtype.type(math.exp(-u))
    if not objective.per_sample or objective.name == "loss":
        return objective.value(logits * beta, labels, weight)
    count = len(labels)
    weight = np.ones(count) if weight is None else weight
    rows = max(1, BLOCK // logits.shape[1])

    def part(start):
        block = slice(start, start + rows)
        losses = objective.losses(logits[block] * beta, labels[block])
        return weight[block] @ losses

    total = sum(threads().map(part, range(0, count, rows)))
    return float(total / weight.sum())


def _slope(logits, labels, weight, objective, u):
    """The derivative of the objective in `log T`."""
    scores = logits * logits.dtype.type(math.exp(-u))
    _, gradient = objective.value_and_gradient(scores, labels, weight)
    return -float(
        np.einsum("ij,ij->i", gradient, scores, dtype="float64").sum()
    )
