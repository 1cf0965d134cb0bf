"""Sample weights are relative: only their ratios mean something."""

import numpy as np


def relative(weight):
    """Weights brought to a sum of how many there are.

    A formula in which a number of samples enters, as in Platt's targets or in
    how far a frequency of 0 can be trusted, then sees the number of rows that
    count, whatever the weights sum to.

    Args:
        weight: `None`, or weights > 0, `(n,)`.

    Returns:
        `None`, or float64 weights, `(n,)`.
    """
    if weight is None:
        return None
    # The largest first, so that no sum overflows or vanishes.
    weight = np.asarray(weight, "float64") / np.max(weight)
    return weight * (len(weight) / weight.sum())


def number_of_samples(labels, weight):
    """How many samples the rows given to `fit` stand for."""
    return len(labels) if weight is None else float(weight.sum())
