"""Histogram binning: probabilities corrected by frequencies in bins."""

from typing import Any

import keras
import numpy as np

from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.large import by_rows
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._logit_ops import probabilities
from keras_calib.layers._logit_ops import probabilities_seen
from keras_calib.layers._objectives import Objective
from keras_calib.layers._piecewise_linear import UNUSED
from keras_calib.layers._piecewise_linear import count_below
from keras_calib.layers._piecewise_linear import table_size
from keras_calib.layers._piecewise_linear import take_rows
from keras_calib.layers._shrunk import check_shrinkage
from keras_calib.layers._temperature_scaling import solve_temperature
from keras_calib.layers._tempered import TemperedCalibration
from keras_calib.ops.binning import centers
from keras_calib.ops.binning import interior_edges
from keras_calib.solvers.dispersion import design_effect
from keras_calib.solvers.dispersion import squares_of
from keras_calib.solvers.gamma_bins import average_factors
from keras_calib.solvers.isotonic import without_certainty


@keras.saving.register_keras_serializable(package="keras_calib")
class HistogramBinning(TemperedCalibration):
    """Correct each probability by how often its class occurs in its bin.

    By default, probabilities after temperature scaling are multiplied by a
    factor of their class and bin, and rows are normalized:

        q_k ~ r_k(bin of p_k) p_k,    p = softmax(z / T)
        r = (events + s) / (expected events + s)

    averaged over the strength `s` by its evidence; few samples leave `r` near
    1 (see `solvers.gamma_bins`). Bins hold equal expected numbers of events of
    all classes.

    With `shrinkage=None`, the papers' map, frequencies replace probabilities:

        q_k = fraction of the samples of class k in the bin of p_k

    Each class has a histogram; then rows are normalized. The value of an empty
    bin is its center. A frequency of 0 or 1 is replaced by the most extreme
    value that the data support. A class that is absent from the calibration
    data keeps its probabilities.

    The output is `log q`. Bins are `(low, high]`, and 0 is in the first.
    Predicted classes can change.

    Args:
        num_bins: int, 5 by default, 15 with `shrinkage=None`.
        equal_mass: bool, whether bins have equal sums of sample weights
            rather than equal widths; with `shrinkage=None` only.
        shrinkage: `"auto"`, or `None` for the papers' map; see above.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: `(..., num_classes)`, or `(..., 1)` before one sigmoid.

    Returns:
        Calibrated logits, of the shape of `logits`.

    Raises:
        ValueError: if `num_bins` is below 1, or `equal_mass` is true with
            `shrinkage="auto"`.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> logits = np.log([[0.9, 0.1]] * 4 + [[0.4, 0.6]] * 2)
        >>> layer = kc.layers.HistogramBinning(shrinkage=None)
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
    _rounds = True
    of_classes = True
    settings = ("num_bins", "equal_mass", "shrinkage")

    def __init__(
        self,
        *,
        num_bins: int | None = None,
        equal_mass: bool = False,
        shrinkage: str | None = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_shrinkage(shrinkage)
        require_flags(equal_mass=equal_mass)
        if shrinkage is not None and equal_mass:
            raise ValueError(
                '`shrinkage="auto"` has bins with equal expected numbers of '
                "events. Received: equal_mass=True. Pass `shrinkage=None` for "
                "bins of equal mass."
            )
        if num_bins is None:
            num_bins = 15 if shrinkage is None else 5
        require_integer(1, num_bins=num_bins)
        self.num_bins = num_bins
        self.equal_mass = equal_mass
        self.shrinkage = shrinkage

    def build(self, input_shape: tuple) -> None:
        num_classes = max(2, input_shape[-1])
        size = table_size(self.num_bins)
        if self.shrinkage is not None:
            self._add("temperature", 1.0, trainable=False)
            self._add("edges", np.full((1, size), UNUSED))
            self._add("log_factors", np.zeros((num_classes, size + 1)))
            self.built = True
            return
        self._add("edges", np.full((num_classes, size), UNUSED))
        self._add("values", np.zeros((num_classes, size + 1)))
        # 1 for a class whose histogram is used; at first, none is.
        self._add("binned", np.zeros(num_classes))
        self.built = True

    def degrees_of_freedom(self, num_classes: int) -> int:
        return self.num_bins * num_classes

    def solve(
        self,
        logits: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray,
        objective: Objective,
    ) -> tuple[dict, dict]:
        data, tempered = (logits, labels, weights, objective), None
        if self.shrinkage is not None:
            tempered = solve_temperature(*data)
        return self._solve(*data, tempered)

    def _solve(self, logits, labels, weights, objective, tempered):
        if self.shrinkage is not None:
            return self._solve_factors(logits, labels, weights, tempered)
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

    def _solve_factors(self, logits, labels, weights, tempered):
        temperature, known = tempered
        # As the layer computes, in float32.
        temperature = np.float32(temperature)
        p = by_rows(
            lambda z: probabilities_seen(z.astype("float32") / temperature),
            logits,
        )
        step = max(1, p.size >> 20)
        expected = p[::step] * weights[::step, None]
        inner = equal_mass_edges(
            p[::step].reshape(-1), self.num_bins, expected.reshape(-1)
        ).astype("float32")
        size = table_size(self.num_bins)
        events, expected = np.zeros((2, p.shape[1], size + 1))
        squares = np.zeros(2)
        for k, column in enumerate(p.T):
            index = np.searchsorted(inner, column, "left")
            expected[k] = np.bincount(index, weights * column, size + 1)
            events[k] = np.bincount(index, weights * (labels == k), size + 1)
            cell = None
            if self._groups is not None:
                # In each bin, the samples of a group are added up first.
                cell = self._groups * (size + 1) + index
            squares += squares_of((labels == k) - column, weights, cell)
        dispersion = design_effect(squares)
        found = average_factors(events, expected, dispersion)
        edges = np.full((1, size), UNUSED, "float32")
        edges[0, : len(inner)] = inner
        return {
            "temperature": temperature,
            "edges": edges,
            "log_factors": np.log(found.factors),
        }, {
            "num_bins": self.num_bins,
            "temperature": float(temperature),
            "temperature_scaling_probability": found.plain,
            "dispersion": dispersion,
            "stop_reason": known["stop_reason"],
            "nll_before": known["nll_before"],
            # Of temperature scaling; `adapt` computes that of the output.
            "nll_after": known["nll_after"],
        }

    def _map(self, logits, w, xp):
        if self.shrinkage is not None:
            return self._multiply(logits, w, xp)
        return self._replace(logits, w, xp)

    def _multiply(self, logits, w, xp):
        log_p = log_softmax(logits / w.temperature, xp)
        p = probabilities(logits / w.temperature, xp)
        bin_index = count_below(w.edges, p, xp)
        return log_softmax(log_p + take_rows(w.log_factors, bin_index, xp), xp)

    def _replace(self, logits, w, xp):
        log_p = log_softmax(logits, xp)
        bin_index = count_below(w.edges, probabilities(logits, xp), xp)
        q = take_rows(w.values, bin_index, xp)
        log_q = xp.log(xp.where(q > 0, q, 1.0))
        # NaN is in no bin and stays NaN, as a class that is ruled out stays so.
        inside = xp.logical_and(log_p <= 0, log_p > LOWEST / 2)
        replaced = xp.logical_and(w.binned > 0, inside)
        return log_softmax(xp.where(replaced, log_q, log_p), xp)


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
    edges = interior_edges(num_bins)
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
    levels = interior_edges(num_bins) * (1 - 1e-9)
    low = np.searchsorted(mass, levels * mass[-1])
    # Above the last score there is nothing to separate.
    low = low[low < len(values) - 1]
    high = low + 1
    middle = (values[low] + values[high]) / 2
    # Between neighboring floats there is no middle.
    return np.unique(np.where(middle < values[high], middle, values[low]))


def frequencies(edges, counts, events):
    """Events per sample in each bin; the center of a bin without samples."""
    found = events / np.where(counts > 0, counts, 1.0)
    return np.where(counts > 0, found, centers(edges))
