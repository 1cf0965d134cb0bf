"""The weight of a map that is mixed with temperature scaling, from folds.

    q = (1 - c) q_temperature + c q_map

In probabilities, the loss of the mixture is at most `-log(1 - c)` above that
of temperature scaling, whatever the map does. The weight `c` is a posterior
mean: half of the prior is on `c = 0`, half is Beta(1, caution). The likelihood
is that of labels that the map was not fitted to.
"""

import numpy as np

from keras_calib.solvers.folds import random_folds
from keras_calib.solvers.folds import unit_of_rows

NUM_FOLDS = 5
# Prior probability of temperature scaling, c = 0.
PLAIN = 0.5
# The interval of c is cut into as many cells.
CELLS = 50
# Of a log-likelihood ratio; more would be infinite as a ratio.
LARGEST_RATIO = 700.0


EDGES = np.linspace(0.0, 1.0, CELLS + 1)
CENTERS = (EDGES[1:] + EDGES[:-1]) / 2


def ratio_by_fold(plain, rich, weights, fold):
    """Log-likelihood of mixtures, minus that of temperature scaling.

        sum_n w_n log(1 - c + c exp(rich_n - plain_n)),    n in the fold

    Args:
        plain: log-probabilities of the labels by temperature scaling, `(n,)`.
        rich: the same by the map.
        weights: `(n,)`, with the number of samples as their sum.
        fold: int, `(n,)`.

    Returns:
        float64, `(number of folds, CELLS)`, for `c` in the center of each cell.
    """
    ratio = np.clip(rich - plain, -LARGEST_RATIO, LARGEST_RATIO)
    gain = np.expm1(ratio)
    curves = [np.bincount(fold, weights * np.log1p(c * gain)) for c in CENTERS]
    return np.stack(curves, axis=1)


def mixture_weight(curve, caution):
    """The posterior mean of the mixture weight `c`.

    Args:
        curve: log-likelihood in each cell of `c`, `(CELLS,)`: the sum of
            `ratio_by_fold` over folds.
        caution: float >= 1, the second parameter of the prior Beta(1, .).

    Returns:
        float in `[0, 1]`.
    """
    prior = -np.diff((1 - EDGES) ** caution) * (1 - PLAIN)
    posterior = np.append(np.log(PLAIN), np.log(prior) + curve)
    posterior = np.exp(posterior - posterior.max())
    return float(posterior[1:] @ CENTERS / posterior.sum())


def log_mixture(plain, rich, c):
    """`log((1 - c) exp(plain) + c exp(rich))`."""
    if not c:
        return plain
    return np.logaddexp(plain + np.log1p(-c), rich + np.log(c))


def fold_of_rows(logits, weights, group=None):
    """The fold of each row, at random, with the same result in every call.

    Classes are not spread evenly: labels that are held out would then tell how
    frequent their classes are in the rest, and a map that learns frequencies
    would look better than it is.

    The weights of soft labels sum to less than the number of rows. Neighbors
    with the same logits are then one sample, and in one fold.

    Args:
        logits: `(n, num_classes)`.
        weights: `(n,)`, with the number of samples as their sum.
        group: `None`, or the group of each row, int, `(n,)`. A group is in one
            fold.

    Returns:
        fold: int, `(n,)`, below `NUM_FOLDS`; there are fewer where there are
            fewer groups.
        sample: int, `(n,)`, the sample of each row.
    """
    sample = np.arange(len(weights))
    if weights.sum() < len(weights) - 0.5:
        first = np.append(True, (logits[1:] != logits[:-1]).any(axis=1))
        sample = np.cumsum(first) - 1
    unit = sample if group is None else unit_of_rows(group, len(group))
    return random_folds(unit, NUM_FOLDS), sample
