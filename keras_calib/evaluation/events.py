"""Confidences in ascending order: one sort, from which every error is read.

Any rule that bins by confidence cuts the sorted samples into runs, and a sum
over a run is the difference of two running sums. A second axis of weights or
of labels, one row per replicate, goes through the same formulas.
"""

import dataclasses
import functools

import numpy as np

from keras_calib.ops.binning import interior_edges


def running(values):
    """`0, v_1, v_1 + v_2, ...` along the last axis, float64."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


def between(sums, cuts):
    """Sums of the runs between neighbouring cuts."""
    if cuts.ndim == 1 or sums.ndim == 1:
        return np.diff(sums[..., cuts], axis=-1)
    return np.diff(np.take_along_axis(sums, cuts, axis=-1), axis=-1)


@dataclasses.dataclass(frozen=True)
class Bins:
    """Sums per bin, each of shape `(..., num_bins)`, made when asked for.

    Attributes:
        events: `Events`.
        cuts: positions between the bins, from 0 to `n`.
    """

    events: "Events"
    cuts: np.ndarray

    @functools.cached_property
    def weight(self):
        """`n_m`, the sum of weights."""
        if self.events.weight is None:
            return np.diff(self.cuts)
        return between(self.events.weights_below, self.cuts)

    @functools.cached_property
    def residual(self):
        """`sum w (confidence - correct)`."""
        return between(self.events.residuals_below, self.cuts)

    @functools.cached_property
    def hits(self):
        """`sum w correct`."""
        return between(self.events.hits_below, self.cuts)

    @functools.cached_property
    def square(self):
        """`sum w^2`, to tell how many samples a weight stands for."""
        return between(self.events.squares_below, self.cuts)

    @property
    def total(self):
        return self.weight.sum(axis=-1)

    @property
    def accuracy(self):
        return divide(self.hits, self.weight)

    @property
    def gap(self):
        """Mean confidence minus accuracy."""
        return divide(self.residual, self.weight)

    @property
    def confidence(self):
        return self.gap + self.accuracy


def divide(a, b):
    """`a / b`, and 0 where `b` is 0."""
    a, b = np.broadcast_arrays(a, b)
    return np.divide(a, b, out=np.zeros(a.shape), where=b != 0)


@dataclasses.dataclass(frozen=True)
class Events:
    """Confidences and whether they came true, sorted by confidence.

    Attributes:
        confidence: ascending, in the dtype it came in, `(n,)`.
        correct: 0 or 1, `(n,)`, or `(replicates, n)`.
        weight: `None` for ones, or `(n,)`, or `(replicates, n)`.
        square: sums of squared weights; `None` for `weight`, which is right
            where weights count repetitions.
    """

    confidence: np.ndarray
    correct: np.ndarray
    weight: np.ndarray | None = None
    square: np.ndarray | None = None

    def __len__(self):
        return len(self.confidence)

    @functools.cached_property
    def values(self):
        """The confidences as float64."""
        return self.confidence.astype("float64")

    @functools.cached_property
    def residuals(self):
        return np.subtract(self.confidence, self.correct, dtype="float64")

    def weigh(self, values):
        return values if self.weight is None else values * self.weight

    @functools.cached_property
    def weights_below(self):
        """Weight of the first `i` samples, `(..., n + 1)`."""
        if self.weight is None:
            return np.arange(len(self) + 1)
        return running(self.weight)

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
        if self.weight is None:
            return np.int64(len(self))
        return self.weights_below[..., -1]

    def bins(self, cuts):
        """Sums per bin, from positions between the bins; see `width_cuts`."""
        return Bins(self, cuts)

    def from_position(self, start):
        """The events from a position on, as events of their own."""
        if start == 0:
            return self
        weight, square = (
            values if values is None else values[..., start:]
            for values in (self.weight, self.square)
        )
        return Events(
            self.confidence[start:], self.correct[..., start:], weight, square
        )

    def width_cuts(self, num_bins):
        """Positions between right-closed bins of equal width."""
        edges = interior_edges(num_bins, self.confidence.dtype.name)
        cuts = np.searchsorted(self.confidence, edges, side="right")
        return np.concatenate([[0], cuts, [len(self)]])

    def mass_cuts(self, num_bins, rule="group", ties=True):
        """Positions between bins of equal mass.

        The upper edge of bin `j` is the value of rank `ceil(j n / num_bins)`;
        equal values are never separated unless `ties=False`.

        Args:
            num_bins: int.
            rule: `"group"`, or `"split"` for the ranks of `np.array_split`,
                whose first bins take the remainder. Weights that do not count
                repetitions have no remainder, and both rules are one.
            ties: keep equal values together.

        Returns:
            Int array, `(..., num_bins + 1)`, from 0 to `n`.
        """
        share = np.arange(1, num_bins) / num_bins
        if self.weight is None:
            n, j = len(self), np.arange(1, num_bins)
            position = -(-j * n // num_bins)
            if rule == "split":
                position = j * (n // num_bins) + np.minimum(j, n % num_bins)
        else:
            total = np.asarray(self.total)[..., None]
            rank = share * total
            if rule == "split" and self.square is None:
                j = np.arange(1, num_bins)
                whole = j * (total // num_bins)
                rank = whole + np.minimum(j, total % num_bins)
            # A rank is reached although the division was rounded up.
            rank = rank - 1e-9 * total
            position = np.stack(
                [
                    np.searchsorted(below, wanted)
                    for below, wanted in zip(
                        np.atleast_2d(self.weights_below),
                        np.atleast_2d(rank),
                        strict=True,
                    )
                ]
            ).reshape(rank.shape)
        if ties and len(self):
            upper = self.confidence[np.maximum(position - 1, 0)]
            end = np.searchsorted(self.confidence, upper, side="right")
            position = np.where(position > 0, end, 0)
        ends = np.zeros((*position.shape[:-1], 1), position.dtype)
        return np.concatenate([ends, position, ends + len(self)], axis=-1)

    @functools.cached_property
    def tie_ends(self):
        """Positions at which the confidence changes, and `n`; `(groups,)`."""
        if not len(self):
            return np.zeros(0, int)
        changes = np.flatnonzero(self.confidence[1:] != self.confidence[:-1])
        return np.append(changes + 1, len(self))


def sort_events(confidence, correct, weight=None):
    """Sort samples by confidence.

    A non-negative float orders like its bits taken as an integer, and its sign
    bit is free to carry `correct`: sorting such keys moves no other array, and
    is several times faster than sorting positions.

    Args:
        confidence: in `[0, 1]`, float32 or float64, `(n,)`.
        correct: 0 or 1, `(n,)`.
        weight: `None`, or sample weights, `(n,)`.

    Returns:
        `Events`.
    """
    confidence = np.asarray(confidence)
    if weight is not None:
        order = np.argsort(confidence, kind="stable")
        weight = np.asarray(weight, "float64")[order]
        return Events(
            confidence[order],
            np.asarray(correct, "float64")[order],
            weight,
            weight**2,
        )
    bits = {"float32": "uint32", "float64": "uint64"}[confidence.dtype.name]
    # Adding 0 makes a negative zero positive.
    keys = (confidence + confidence.dtype.type(0)).view(bits)
    keys = (keys << 1) | np.asarray(correct).astype(bits)
    keys.sort()
    return Events(
        (keys >> 1).view(confidence.dtype), (keys & 1).astype("float64")
    )
