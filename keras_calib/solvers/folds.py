"""Random folds of samples, or of groups of them."""

import numpy as np

from keras_calib.inputs import arrays
from keras_calib.inputs.arguments import generator


def unit_of_rows(group, count):
    """The group of each row, from 0 on; without groups the row itself.

    Args:
        group: `None`, or ids of groups, `(count,)`.
        count: int, the number of rows.

    Returns:
        int, `(count,)`.
    """
    if group is None:
        return np.arange(count)
    return arrays.numbered(group)[0]


def random_folds(unit, num_folds, seed=0):
    """The fold of each row: of equal numbers of units, at random.

    Args:
        unit: from `unit_of_rows`; rows of one unit share a fold.
        num_folds: int; there are fewer folds where there are fewer units.
        seed: int, with the same result in every call.

    Returns:
        int, `(n,)`, below `num_folds`.
    """
    count = int(unit.max()) + 1 if len(unit) else 0
    fold = np.arange(count) % num_folds
    return generator(seed).permutation(fold)[unit]
