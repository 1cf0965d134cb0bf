"""Bootstrap of many samples, by cells of neighboring confidences.

For errors of the predicted class of rows without weights: samples are replaced
by `CELLS` cells of equal numbers. A replicate draws how often each cell occurs,
`Poisson(n_j)`, and how many of its samples are right, `Binomial`: the same as
drawing samples, up to the width of a cell and the total, which varies by
`1 / sqrt(n)`.
"""

import numpy as np

from keras_calib.evaluation.calibrated_draws import CellDraws
from keras_calib.evaluation.events import Events
from keras_calib.evaluation.named_errors import TOP_LABEL


class CellResamples(CellDraws):
    """Replicates as if samples were drawn with replacement."""

    def replicate(self, events, order, k, rng, size):
        shape = size, len(events.weights)
        number = rng.poisson(events.weights, shape)
        rate = np.clip(events.correct, 0.0, 1.0)
        hits = rng.binomial(number, rate)
        accuracy = hits / np.maximum(number, 1)
        return Events(events.confidence, accuracy, number.astype("float64"))


def intervals_by_cells(data, names, bins, num_resamples, seed=0):
    """Basic bootstrap intervals (95 %) of errors of the predicted class.

    The percentiles of the replicates are reflected about the error of the
    cells, because resampling adds the bias of binned errors once more.

    Args:
        data: `Predictions` without weights.
        names: keys of `TOP_LABEL`.
        bins: pair of `num_bins` and `threshold`.
        num_resamples: int.
        seed: int.

    Returns:
        dict from name to `(low, high)`, as distances from the estimate.
    """
    names = [name for name in names if name in TOP_LABEL]
    draws = CellResamples(data, num_resamples, seed, 1, 0)
    found = draws.statistics(names, *bins)
    ends = {}
    for name in names:
        own, drawn = found[name][0], found[name][1:]
        low, high = np.quantile(drawn, [0.025, 0.975])
        ends[name] = own - high, own - low
    return ends
