"""Labels drawn from the predictions, as those of a calibrated model are."""

import numpy as np

from keras_calib.evaluation.events import Events
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.named_errors import confidence_and_correct
from keras_calib.evaluation.replicates import Replicates

CELLS = 4096


class CalibratedDraws(Replicates):
    """Labels are drawn from the predicted probabilities."""

    # The class whose ends are known; before the first one none is.
    _class = -1
    _low = _high = 0.0

    def replicate(self, events, order, k, rng, size):
        # An event is true if a uniform number is in an interval whose length
        # is the confidence.
        low, high = (
            np.broadcast_to(v, order.shape)[order] for v in self.ends(k)
        )
        uniform = rng.random((size, len(order)))[:, order]
        drawn = ((uniform >= low) & (uniform < high)).astype("float64")
        return Events(events.confidence, drawn, events.weights, events.square)

    def ends(self, k):
        """Both ends of the intervals of class `k`, which tile [0, 1]."""
        if k is None:
            return 0.0, self.data.top_label[0]
        # Classes come in their order; all ends at once would be a large table.
        if k != self._class:
            follows = k == self._class + 1
            low = self._high if follows else self._sum_below(k)
            last = k + 1 == self.data.num_classes
            p = self.data.by_class[k]
            high = 1.0 if last else np.add(low, p, dtype="float64")
            self._class, self._low, self._high = k, low, high
        return self._low, self._high

    def _sum_below(self, k):
        return np.sum(self.data.by_class[:k], axis=0, dtype="float64")


def cells_of(confidence):
    """Where cells of about equal numbers begin, and how many they have.

    Equal confidences are never separated, so there may be fewer cells: parts of
    two such values would have a confidence of their own. Only a cell of rare
    values spans several.

    Args:
        confidence: sorted, `(n,)`.
    """
    cuts = np.linspace(0, len(confidence), CELLS + 1).astype(int)[1:-1]
    last = confidence[np.maximum(cuts - 1, 0)]
    cuts = np.searchsorted(confidence, last, side="right")
    cuts = np.unique([0, *cuts, len(confidence)])
    return cuts[:-1], np.diff(cuts).astype("float64")


def within_cells(mean, confidence, start, number):
    """Means of cells without rounding, which may be another bin's."""
    end = start + number.astype(int) - 1
    return np.clip(mean, confidence[start], confidence[end])


class CellDraws(CalibratedDraws):
    """Labels are drawn in cells of neighboring confidences.

    Only for errors of the predicted class, without weights.
    """

    @property
    def rows(self):
        return CELLS

    def _of_events(self, function, k):
        confidence, correct = confidence_and_correct(self.data, k)
        events = sort_events(confidence, correct)
        start, number = cells_of(events.confidence64)
        mean = np.add.reduceat(events.confidence64, start) / number
        mean = within_cells(mean, events.confidence64, start, number)
        # Weights count repetitions: `square` is left out.
        hits = np.add.reduceat(events.correct, start)
        cells = Events(mean, hits / number, number)
        return self._values(function, cells, None, k)

    def replicate(self, events, order, k, rng, size):
        number = events.weights.astype(int)
        chance = np.clip(events.confidence, 0.0, 1.0)
        hits = rng.binomial(number, chance, (size, len(number)))
        return Events(events.confidence, hits / number, events.weights)
