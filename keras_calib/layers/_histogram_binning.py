"""Histogram binning: probabilities replaced by frequencies in bins."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._logit_ops import on_pairs
from keras_calib.layers._logit_ops import probabilities
from keras_calib.layers._logit_ops import probabilities_seen
from keras_calib.layers._piecewise_linear import UNUSED
from keras_calib.layers._piecewise_linear import count_below
from keras_calib.layers._piecewise_linear import table_size
from keras_calib.layers._piecewise_linear import take_rows
from keras_calib.solvers.isotonic import without_certainty


@keras.saving.register_keras_serializable(package="keras_calib")
class HistogramBinning(CalibrationLayer):
    """Replace each probability by the frequency of its class in its bin.

        q_k = fraction of the samples of class k in the bin of p_k

    Each class has a histogram; then rows are normalized, and the output is
    `log q`. Bins are `(low, high]`, and 0 is in the first. The value of an
    empty bin is its center. A frequency of 0 or 1 is replaced by the most
    extreme value that the data support. A class that is absent from the
    calibration data keeps its probabilities. Predicted classes can change.

    Args:
        num_bins: int.
        equal_mass: bool, whether bins have equal sums of sample weights
            rather than equal widths.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Raises:
        ValueError: if `num_bins` is below 1.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> logits = np.log([[0.9, 0.1]] * 4 + [[0.4, 0.6]] * 2)
        >>> layer = kc.layers.HistogramBinning()
        >>> layer = layer.adapt(logits, [0, 0, 0, 1, 1, 0])
        >>> q = keras.ops.exp(layer(logits))
        >>> round(float(q[0, 0]), 4), round(float(q[4, 0]), 4)
        (0.75, 0.5)

    Reference:
        Zadrozny and Elkan, "Obtaining calibrated probability estimates from
        decision trees and naive Bayesian classifiers", ICML 2001.
    """

    shift_invariant = True
    fitted_by = "frequencies"
    settings = ("num_bins", "equal_mass")

    def __init__(
        self, *, num_bins: int = 15, equal_mass: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if num_bins < 1:
            raise ValueError(
                f"`num_bins` must be at least 1. Received: {num_bins}."
            )
        self.num_bins = num_bins
        self.equal_mass = equal_mass

    def build(self, input_shape: tuple) -> None:
        num_classes = max(2, input_shape[-1])
        size = table_size(self.num_bins)
        self._add("edges", np.full((num_classes, size), UNUSED))
        self._add("values", np.zeros((num_classes, size + 1)))
        # 1 for a class whose histogram is used; at first, none is.
        self._add("binned", np.zeros(num_classes))
        self.built = True

    def degrees_of_freedom(self, num_classes: int) -> int:
        return self.num_bins * num_classes

    def solve(
        self, logits: Tensor, labels: Tensor, weights: Tensor, objective: Any
    ) -> tuple[dict, dict]:
        p = probabilities_seen(logits)
        num_classes, size = p.shape[1], table_size(self.num_bins)
        edges = np.full((num_classes, size), UNUSED, "float32")
        values = np.zeros((num_classes, size + 1), "float32")
        binned = np.zeros(num_classes, "float32")
        for k in range(num_classes):
            of_class = labels == k
            if not of_class.any():
                continue
            inner, counts, events = histogram(
                p[:, k],
                of_class,
                weights,
                self.num_bins,
                self.equal_mass,
            )
            edges[k, : len(inner)] = inner
            values[k, : len(counts)] = without_certainty(
                frequencies(inner, counts, events), counts, centers(inner)
            )
            binned[k] = 1
        found = {"edges": edges, "values": values, "binned": binned}
        return found, {
            "num_bins": self.num_bins,
            "num_absent_classes": int(num_classes - binned.sum()),
        }

    def call(self, logits: Tensor) -> Tensor:
        return on_pairs(self._replace, logits)

    def _replace(self, logits):
        log_p = log_softmax(logits)
        bin_index = count_below(self.edges, probabilities(logits))
        q = take_rows(self.values, bin_index)
        log_q = ops.log(ops.where(q > 0, q, 1.0))
        # NaN is in no bin and stays NaN.
        replaced = ops.logical_and(self.binned > 0, log_p <= 0)
        return log_softmax(ops.where(replaced, log_q, log_p))


def histogram(scores, events, weights, num_bins, equal_mass=False):
    """Inner edges of the bins, and the weight of samples and events in each.

    Args:
        scores: in `[0, 1]`, `(n,)`.
        events: bool or 0 and 1, `(n,)`.
        weights: weights > 0, `(n,)`.
        num_bins: int.
        equal_mass: bool; edges are then midpoints between different scores,
            and bins that no edge can separate are one.

    Returns:
        edges, counts, events: at most `num_bins - 1`, `num_bins` numbers.
    """
    edges = np.arange(1, num_bins) / num_bins
    if equal_mass:
        edges = equal_mass_edges(scores, num_bins, weights)
    # Rounded as the scores are, so that a score on an edge stays there.
    edges = edges.astype(scores.dtype)
    index = np.searchsorted(edges, scores, "left")
    counts, found = (
        np.bincount(index, weights=column, minlength=len(edges) + 1)
        for column in (weights, weights * events)
    )
    return edges, counts, found


def equal_mass_edges(scores, num_bins, weights):
    """Midpoints between the scores at the quantiles, without repetitions."""
    order = np.argsort(scores)
    values, mass = scores[order], np.cumsum(weights[order])
    # Equal scores are one, with the mass of all.
    last = np.append(values[1:] > values[:-1], True)
    values, mass = values[last], mass[last]
    # Rounding can put a sum of weights just below its quantile.
    levels = np.arange(1, num_bins) / num_bins * (1 - 1e-9)
    low = np.searchsorted(mass, levels * mass[-1])
    # Above the last score there is nothing to separate.
    low = low[low < len(values) - 1]
    high = low + 1
    middle = (values[low] + values[high]) / 2
    # Between neighboring floats there is no middle.
    return np.unique(np.where(middle < values[high], middle, values[low]))


def centers(edges):
    """The middle of each bin between 0, the edges and 1."""
    bounds = np.concatenate([[0.0], edges, [1.0]])
    return (bounds[1:] + bounds[:-1]) / 2


def frequencies(edges, counts, events):
    """Events per sample in each bin; the center of a bin without samples."""
    found = events / np.where(counts > 0, counts, 1.0)
    return np.where(counts > 0, found, centers(edges))
