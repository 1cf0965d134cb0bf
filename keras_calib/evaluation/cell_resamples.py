"""Bootstrap of many samples, by cells of neighboring confidences.

For errors of the predicted class of rows without weights: samples are replaced
by `CELLS` cells of about equal numbers, which separate no equal confidences. A
replicate draws how often each cell occurs, `Poisson(n_j)`, and how many of its
samples are right, `Binomial`: the same as drawing samples, up to the width of a
cell and the total, which varies by `1 / sqrt(n)`.

Rows that depend on each other are drawn as whole units. A unit is then a row of
sums, one for each cell that it has rows in.
"""

import numpy as np

from keras_calib.evaluation.calibrated_draws import CELLS
from keras_calib.evaluation.calibrated_draws import CellDraws
from keras_calib.evaluation.calibrated_draws import cells_of
from keras_calib.evaluation.calibrated_draws import within_cells
from keras_calib.evaluation.events import Events
from keras_calib.evaluation.interval_ends import PERCENTILE
from keras_calib.evaluation.interval_ends import interval_ends
from keras_calib.evaluation.named_errors import confidence_and_correct
from keras_calib.evaluation.replicates import Resamples
from keras_calib.ops.bin_errors import divide


class CellResamples(CellDraws):
    """Replicates as if samples were drawn with replacement."""

    def replicate(self, events, order, k, rng, size):
        shape = size, len(events.weights)
        number = rng.poisson(events.weights, shape)
        rate = np.clip(events.correct, 0.0, 1.0)
        hits = rng.binomial(number, rate)
        number = number.astype("float64")
        return Events(events.confidence, divide(hits, number), number)


class UnitCellResamples(Resamples):
    """Whole units are drawn with replacement, their rows summed by cells."""

    @property
    def rows(self):
        return max(CELLS, self.data.units)

    def _of_events(self, function, k):
        confidence, correct = confidence_and_correct(self.data, k)
        weights, order = self.data.weights, np.argsort(confidence)
        ordered = np.asarray(confidence, "float64")[order]
        start, number = cells_of(ordered)
        self._cells = len(start)
        cell = np.empty(len(order), int)
        cell[order] = np.repeat(np.arange(self._cells), number.astype(int))
        own = np.ones(len(order)) if weights is None else weights
        rows = [own, own * correct] + ([] if weights is None else [own**2])
        # Most units have rows in few cells.
        place = self.data.unit.astype("int64") * self._cells + cell
        place, part = np.unique(place, return_inverse=True)
        self._parts = [np.bincount(part, row) for row in rows]
        self._unit, self._cell = divmod(place, self._cells)
        sums = [np.bincount(cell, row, self._cells) for row in rows]
        mean = divide(np.bincount(cell, own * confidence), sums[0])
        mean = within_cells(mean, ordered, start, number)
        return self._values(function, self._events(mean, *sums), None, k)

    def replicate(self, events, order, k, rng, size):
        counts = self.unit_counts(rng, size)
        sums = np.empty((len(self._parts), size, self._cells))
        for i, count in enumerate(counts):
            count = count[self._unit]
            for j, part in enumerate(self._parts):
                sums[j, i] = np.bincount(self._cell, count * part, self._cells)
        return self._events(events.confidence, *sums)

    def _events(self, confidence, weight, hits, square=None):
        return Events(confidence, divide(hits, weight), weight, square)


def intervals_by_cells(data, names, bins, num_resamples, seed=0):
    """Bootstrap intervals (95 %) of means and errors of the predicted class.

    Args:
        data: `Predictions`, without weights if rows are independent.
        names: keys of `TOP_LABEL`, and of `MEANS` if rows are dependent.
        bins: pair of `num_bins` and `threshold`.
        num_resamples: int.
        seed: int.

    Returns:
        dict from name to the distances of both ends from the estimate, see
        `interval_ends`.
    """
    kind = CellResamples if data.unit is None else UnitCellResamples
    draws = kind(data, num_resamples, seed, 1, 0, scales=True)
    found = draws.statistics(names, *bins)
    ends = {}
    for name in names:
        own = float(found[name].flat[0])
        basic = name not in PERCENTILE
        low, high = interval_ends(name, found[name], 0.95, basic=basic)
        ends[name] = low - own, high - own
    return ends
