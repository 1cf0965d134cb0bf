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
from keras_calib.evaluation.named_errors import NO_FLOOR

# All other errors of the predicted class have an upward bias.
UNBIASED = {
    *NO_FLOOR,
    "debiased_calibration_error",
    "debiased_calibration_error_l1",
}


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
    """Bootstrap intervals (95 %) of errors of the predicted class.

    Args:
        data: `Predictions` without weights.
        names: keys of `TOP_LABEL`.
        bins: pair of `num_bins` and `threshold`.
        num_resamples: int.
        seed: int.

    Returns:
        dict from name to the distances of both ends from the estimate. Those
        of binned errors are reflected about it ("basic"), because resampling
        adds their upward bias once more.
    """
    draws = CellResamples(data, num_resamples, seed, 1, 0)
    found = draws.statistics(names, *bins)
    ends = {}
    for name in names:
        own, drawn = found[name][0], found[name][1:]
        low, high = np.quantile(drawn, [0.025, 0.975]) - own
        ends[name] = (low, high) if name in UNBIASED else (-high, -low)
    return ends
