"""The temperature with the smallest value of any objective.

Calibration errors and training losses are not convex in the temperature, and
a hard-binned error is a step function. A grid therefore finds the lowest
valley first, and a local search refines the minimum inside it.
"""

import math

import numpy as np

from keras_calib.inputs.arrays import by_class
from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import normalized_weights
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.blocks import sum_blocks
from keras_calib.solvers.blocks import threads
from keras_calib.solvers.root import false_position
from keras_calib.solvers.root import golden_section

# Elements of the logits above which the first grid uses a subsample.
WHOLE_UP_TO = 1 << 22
# Where the minimum is searched, by whether the objective is of confidence.
CONFIDENCE_RANGE, FULL_RANGE = (0.1, 10.0), (0.01, 100.0)
RANGES = {True: CONFIDENCE_RANGE, False: FULL_RANGE}


def search_temperature(logits, labels, weights, objective):
    """Minimize an objective of `logits / T` over `T`.

    Hard bins: a grid of 65 nodes in `log T` over [0.1, 10], refined three
    times to one cell on either side. All other objectives: 129 nodes, then in
    the best cell the zero of the slope where the objective has one, or a
    golden section. For large logits the 129 nodes use every k-th sample.

    Args:
        logits: `(n, num_classes)`.
        labels: int class ids, `(n,)`.
        weights: sample weights, `(n,)`.
        objective: `Objective`.

    Returns:
        temperature, value: floats.

    Reference:
        Karandikar et al., "Soft Calibration Objectives for Neural Networks",
        NeurIPS 2021, Section 4.3 and Appendix C.
    """
    data = logits, labels, weights
    whole = _along_temperature(*data, objective)
    if objective.name == "ece":
        return _refined_grid(whole)
    coarse = whole
    step = logits.size // WHOLE_UP_TO + 1
    if step > 1 and (objective.per_sample or objective.of_confidence):
        part = (values[::step] for values in data)
        coarse = _along_temperature(*part, objective)
    low, high = RANGES[objective.of_confidence]
    nodes = np.linspace(math.log(low), math.log(high), 129)
    values = np.array([coarse(u) for u in nodes])
    values[~np.isfinite(values)] = np.inf
    best = int(np.argmin(values))
    if not np.isfinite(values[best]):
        raise ValueError(
            "The objective must be a finite number at some temperature. "
            f"Received: objective={objective.title!r}, whose values on the "
            "calibration data are not."
        )
    if best in (0, 128):
        return math.exp(nodes[best]), whole(nodes[best])
    cell, u = (nodes[best - 1], nodes[best + 1]), None
    if not objective.of_confidence:
        u = false_position(lambda u: _slope(*data, objective, u), *cell)
    if u is None:
        u = golden_section(whole, *cell)
    return math.exp(u), whole(u)


def ends_at(temperature, objective):
    """The end of the range at which a search stopped, or `None`."""
    low, high = RANGES[objective.of_confidence]
    # Refined grids go a cell beyond.
    if temperature <= low * (1 + 1e-9):
        return low
    return high if temperature >= high * (1 - 1e-9) else None


def _refined_grid(function):
    (low, high), cells = np.log(CONFIDENCE_RANGE), 64
    best = (math.inf, 0.0)
    for _ in range(4):
        nodes = np.linspace(low, high, cells + 1)
        values = np.array([function(u) for u in nodes])
        # Of equal values, the one nearest to T = 1 changes the model least.
        ties = np.flatnonzero(values == values.min())
        found = ties[np.abs(nodes[ties]).argmin()]
        if values[found] < best[0]:
            best = (values[found], nodes[found])
        step = (high - low) / cells
        low, high = best[1] - step, best[1] + step
    return math.exp(best[1]), float(best[0])


def _along_temperature(logits, labels, weights, objective):
    """The objective as a function of `log T`."""
    blocks = row_blocks(*logits.shape, IN_CACHE)
    logits = by_class(logits)
    if objective.of_confidence:
        below = logits - logits.max(axis=1, keepdims=True)
        correct = (logits.argmax(axis=1) == labels).astype(float)

        def error(u):
            beta = below.dtype.type(math.exp(-u))

            def confidence(rows):
                e = np.multiply(below[rows], beta)
                return 1 / np.exp(e, out=e).sum(axis=1, dtype="float64")

            found = np.concatenate(list(threads().map(confidence, blocks)))
            return objective.of(found, correct, weights)

        return error

    relative = normalized_weights(weights, len(labels))

    def value(u):
        beta = logits.dtype.type(math.exp(-u))
        if not objective.per_sample or objective.name == "loss":
            return objective.value(logits * beta, labels, weights)
        return float(
            sum_blocks(
                lambda rows: (
                    relative[rows]
                    @ objective.losses(logits[rows] * beta, labels[rows])
                ),
                blocks,
            )
        )

    return value


def _slope(logits, labels, weights, objective, u):
    """The derivative of the objective in `log T`."""
    scores = logits * logits.dtype.type(math.exp(-u))
    _, gradient = objective.value_and_gradient(scores, labels, weights)
    return -float(
        np.einsum("ij,ij->i", gradient, scores, dtype="float64").sum()
    )
