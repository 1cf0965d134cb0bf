"""Samples sorted by confidence, from which every error is computed.

A bin of confidences is a run of sorted samples, and the sum over a run is the
difference of two running sums. Weights or labels may have a second axis, with
one row for each replicate of the sample.
"""

import dataclasses
import functools

import numpy as np

from keras_calib.ops.bin_errors import Bins
from keras_calib.ops.binning import interior_edges


def running(values):
    """`0, v_1, v_1 + v_2, ...` along the last axis, float64."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


def at(sums, cuts):
    """Running sums at positions, the same for all rows or one set per row."""
    if cuts.ndim == 1 or sums.ndim == 1:
        return sums[..., cuts]
    return np.take_along_axis(sums, cuts, axis=-1)


def between(sums, cuts):
    """Sums of the runs between neighboring cuts."""
    return np.diff(at(sums, cuts), axis=-1)


class SortedBins(Bins):
    """`Bins` of sorted samples, each sum computed when it is asked for.

    Args:
        events: `Events`.
        cuts: positions between the bins, from 0 to `n`; one row of them, or
            one for each replicate.
    """

    xp = np

    def __init__(self, events, cuts):
        self.events = events
        self.cuts = cuts

    @functools.cached_property
    def weight(self):
        if self.events.weights is None:
            return np.diff(self.cuts)
        return between(self.events.weights_below, self.cuts)

    @functools.cached_property
    def residual(self):
        return between(self.events.residuals_below, self.cuts)

    @functools.cached_property
    def hits(self):
        return between(self.events.hits_below, self.cuts)

    @functools.cached_property
    def square(self):
        return between(self.events.squares_below, self.cuts)

    @property
    def exact_confidence(self):
        """Mean confidence of bins that hold samples, one set for all rows.

        A difference of running sums is rounded, and bins of nearly the same
        confidence could change places. That of ties is theirs to the last bit.
        """
        confidence = self.events.confidence64
        first, last = self.cuts[:-1], self.cuts[1:] - 1
        return np.clip(self.confidence, confidence[first], confidence[last])

    @property
    def total(self):
        return self.events.total

    @property
    def residual_up_to(self):
        return at(self.events.residuals_below, self.cuts[..., 1:])


@dataclasses.dataclass(frozen=True)
class Events:
    """Confidences and correctness, sorted by confidence.

    Attributes:
        confidence: ascending, in the dtype of the predictions, `(n,)`.
        correct: 0 or 1, `(n,)`, or `(replicates, n)`.
        weights: `None` for ones, or `(n,)`, or `(replicates, n)`.
        square: squared weights of the samples. `None` if weights count how
            often a sample is repeated: then the sum of squares is the sum of
            `weights`.
    """

    confidence: np.ndarray
    correct: np.ndarray
    weights: np.ndarray | None = None
    square: np.ndarray | None = None

    def __len__(self):
        return len(self.confidence)

    @functools.cached_property
    def confidence64(self):
        """The confidences as float64."""
        return self.confidence.astype("float64")

    @functools.cached_property
    def residuals(self):
        return np.subtract(self.confidence, self.correct, dtype="float64")

    def weigh(self, values):
        """Values of the samples, `(..., n)`, times their weights."""
        return values if self.weights is None else values * self.weights

    @functools.cached_property
    def weights_below(self):
        """Weight of the first `i` samples, `(..., n + 1)`."""
        if self.weights is None:
            return np.arange(len(self) + 1)
        return running(self.weights)

    @functools.cached_property
    def residuals_below(self):
        return running(self.weigh(self.residuals))

    @functools.cached_property
    def hits_below(self):
        return running(self.weigh(self.correct))

    @functools.cached_property
    def squares_below(self):
        if self.square is None:
            return self.weights_below
        return running(self.square)

    @property
    def total(self):
        """Sum of all weights."""
        if self.weights is None:
            return np.int64(len(self))
        return self.weights_below[..., -1]

    def bins(self, cuts):
        """Sums per bin, from positions between the bins; see `width_cuts`."""
        return SortedBins(self, cuts)

    def from_position(self, start):
        """`Events` of the samples from a position on."""
        if start == 0:
            return self
        weights, square = (
            values if values is None else values[..., start:]
            for values in (self.weights, self.square)
        )
        return Events(
            self.confidence[start:], self.correct[..., start:], weights, square
        )

    def parts(self, size):
        """`Events` of `size` replicates each, the last one of fewer."""
        tables = self.correct, self.weights, self.square
        number = max(len(t) for t in tables if t is not None and t.ndim == 2)
        for start in range(0, number, size):
            part = slice(start, start + size)
            yield Events(
                self.confidence,
                *(t if t is None or t.ndim == 1 else t[part] for t in tables),
            )

    def width_cuts(self, num_bins):
        """Positions between right-closed bins of equal width."""
        edges = interior_edges(num_bins).astype(self.confidence.dtype)
        cuts = np.searchsorted(self.confidence, edges, side="right")
        return np.concatenate([[0], cuts, [len(self)]])

    def mass_cuts(self, num_bins, rule="group"):
        """Positions between bins of equal mass.

        The upper edge of bin `j` is the value of rank `ceil(j n / num_bins)`;
        equal values are never separated, so that the order of the samples does
        not matter. With weights, ranks are sums of weight.

        Args:
            num_bins: int.
            rule: `"group"`, or `"split"` for the ranks of `np.array_split`,
                whose first bins take the remainder. For weights that are not
                counts of repetitions both rules are the same.

        Returns:
            Int array, `(..., num_bins + 1)`, from 0 to `n`.
        """
        j = np.arange(1, num_bins)
        total = np.asarray(self.total)[..., None]
        rank = j * total / num_bins
        if rule == "split" and self.square is None:
            rank = j * (total // num_bins) + np.minimum(j, total % num_bins)
        position = self._first_of_weight(rank, total)
        if len(self):  # behind the last sample that is equal
            upper = self.confidence[np.maximum(position - 1, 0)]
            end = np.searchsorted(self.confidence, upper, side="right")
            position = np.where(position > 0, end, 0)
        ends = np.zeros((*position.shape[:-1], 1), position.dtype)
        return np.concatenate([ends, position, ends + len(self)], axis=-1)

    def _first_of_weight(self, rank, total):
        """How many samples it takes to have the weight of each rank."""
        if self.weights is None:
            return np.ceil(rank).astype(int)
        # The rank may have been rounded up to just above the sum.
        rank = rank - 1e-9 * total
        pairs = np.atleast_2d(self.weights_below), np.atleast_2d(rank)
        found = [np.searchsorted(*pair) for pair in zip(*pairs, strict=True)]
        return np.reshape(found, rank.shape)

    @property
    def tie_bins(self):
        """A bin for each distinct confidence."""
        # Not cached: bins and samples that know each other are freed late.
        return self.bins(self._tie_cuts)

    @functools.cached_property
    def _tie_cuts(self):
        changes = np.flatnonzero(self.confidence[1:] != self.confidence[:-1])
        return np.concatenate([[0], changes + 1, [len(self)]])


def sort_events(
    confidence: np.ndarray,
    correct: np.ndarray,
    weights: np.ndarray | None = None,
) -> Events:
    """Sort samples by confidence.

    Non-negative floats sort like the integers with the same bits. The sign bit
    is not needed, so a key holds the confidence and `correct`. Sorting these
    keys is several times faster than sorting positions.

    Args:
        confidence: in `[0, 1]`, float32 or float64, `(n,)`.
        correct: 0 or 1, `(n,)`.
        weights: `None`, or sample weights, `(n,)`.

    Returns:
        `Events`.
    """
    confidence = np.asarray(confidence)
    if weights is not None:
        order = np.argsort(confidence, kind="stable")
        weights = np.asarray(weights, "float64")[order]
        return Events(
            confidence[order],
            np.asarray(correct, "float64")[order],
            weights,
            weights**2,
        )
    bits = {"float32": "uint32", "float64": "uint64"}[confidence.dtype.name]
    # Adding 0 turns -0.0 into 0.0.
    keys = (confidence + confidence.dtype.type(0)).view(bits)
    keys = (keys << 1) | np.asarray(correct).astype(bits)
    keys.sort()
    return Events(
        (keys >> 1).view(confidence.dtype), (keys & 1).astype("float64")
    )
