"""Errors without fixed bins: sweep, KS, smooth; streamed from fixed cells."""

import keras
import numpy as np
from keras import ops

from keras_calib.metrics import _histogram as histogram
from keras_calib.metrics._base import CalibrationMetric
from keras_calib.metrics._binned import BinnedMetric
from keras_calib.metrics._expected_calibration_error import without
from keras_calib.ops.binning import bin_sums


@keras.saving.register_keras_serializable(package="keras_calib")
class KSCalibrationError(BinnedMetric):
    """Kolmogorov-Smirnov calibration error, streaming.

    `max_t |1/n sum_(c_i <= t) (c_i - a_i)|`: the largest distance between the
    cumulative sums of confidence and of correctness. It needs no bins.

    The maximum is taken at the ends of 1964 fixed cells, so that the value is
    too small by at most `max_cell n_cell / n`, and on real networks by less
    than 1e-4. A cell that holds one distinct value adds no error. The exact
    value comes from `calibration_errors` and `CalibrationMonitor`.

    Args:
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.

    Raises:
        ValueError: for bad input.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.KSCalibrationError()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.4

    Reference:
        Gupta et al., "Calibration of Neural Networks using Splines", ICLR
        2021, section 3.1.
    """

    def __init__(
        self,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name="ks_calibration_error",
        dtype=None,
    ):
        super().__init__(
            1,
            "mass",
            from_logits=from_logits,
            axis=axis,
            ignore_class=ignore_class,
            name=name,
            dtype=dtype,
        )

    def result(self):
        weight, residual = ops.unstack(self.sums("sums"))
        largest = ops.max(ops.abs(ops.cumsum(residual)))
        return ops.divide_no_nan(largest, ops.sum(weight))

    def get_config(self):
        return without(without(super().get_config(), "num_bins"), "binning")


@keras.saving.register_keras_serializable(package="keras_calib")
class SweepCalibrationError(BinnedMetric):
    """Monotonic-sweep calibration error (ECE_sweep), streaming.

    ECE over as many bins of equal mass as keep the accuracy from falling from
    one bin to the next: bins are added one by one until it does.

    Read from 1964 fixed cells, whose confidences are tied: the value is the
    exact one of the data with the confidences of a cell kept together. One
    that stops at the same number of bins differs from it as in
    `ExpectedCalibrationError`; no bound holds for the number itself. The exact
    value comes from `calibration_errors` and `CalibrationMonitor`.

    Args:
        norm: 1 or 2.
        max_bins: int, where the sweep stops at the latest.
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.

    Raises:
        ValueError: if an argument is out of its range, or for bad input.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.SweepCalibrationError(norm=1)
        >>> metric.update_state([0, 0], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.15

    Reference:
        Roelofs et al., "Mitigating Bias in Calibration Error Estimation",
        AISTATS 2022, algorithm 1.
    """

    arithmetic = False

    def __init__(
        self,
        norm=2,
        max_bins=64,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name="sweep_calibration_error",
        dtype=None,
    ):
        super().__init__(
            max_bins,
            "mass",
            norm,
            norms=(1, 2),
            columns=3,
            from_logits=from_logits,
            axis=axis,
            ignore_class=ignore_class,
            name=name,
            dtype=dtype,
        )
        self.max_bins = max_bins
        self.add_sums("squares", ())

    def per_event(self, confidence, correct, weight):
        self.add_to("squares", ops.sum(weight**2))
        residual = weight * (confidence - correct)
        return [weight, residual, weight * correct]

    def _sweep(self):
        """Error at each number of bins, and the first to be rejected."""
        sums = self.sums("sums")
        most = self.max_bins
        number, place = np.meshgrid(
            np.arange(1, most + 1), np.arange(most + 1), indexing="ij"
        )
        share = np.minimum(place / number, 1.0)
        upper = histogram.cells_below(sums[0], share.reshape(-1))
        # Bounds above the last bin are all the end: empty bins.
        upper = ops.where(share.reshape(-1) >= 1, sums.shape[1], upper)
        upper = ops.where(share.reshape(-1) <= 0, 0, upper)
        running = ops.pad(ops.cumsum(sums, axis=1), [[0, 0], [1, 0]])
        running = ops.reshape(
            ops.take(running, upper, axis=1), (3, *share.shape)
        )
        weight, residual, hits = ops.unstack(
            running[:, :, 1:] - running[:, :, :-1]
        )
        used = weight > 0
        accuracy = ops.where(used, ops.divide_no_nan(hits, weight), 0.0)
        total = ops.sum(sums[0])
        squares = self.sums("squares")
        # Sums of counts are exact, those of weights are rounded.
        rounded = ops.abs(squares - total) > 1e-6 * total
        rounding = 1e-6 * ops.divide_no_nan(total, weight)
        rounding = ops.where(rounded, rounding, 0.0)
        falls = accuracy < _highest_before(accuracy) - rounding
        falls = ops.logical_and(falls, used)
        size = ops.abs(residual)
        if self.norm == 2:
            size = ops.divide_no_nan(size**2, weight)
        error = ops.divide_no_nan(
            ops.sum(size, axis=1), ops.sum(weight, axis=1)
        )
        # At most one bin less than there are samples, however weighted.
        samples = ops.divide_no_nan(total**2, squares)
        many = np.arange(1, most + 1).astype("float32")
        many = ops.convert_to_tensor(many) > samples - 0.5
        many = ops.logical_and(many, ops.arange(most) > 0)
        rejected = ops.logical_or(ops.any(falls, axis=1), many)
        rejected = ops.cast(rejected, "int32")
        return error if self.norm == 1 else ops.sqrt(error), rejected

    def used_bins(self):
        """How many bins the sweep stopped at, int32."""
        _, rejected = self._sweep()
        return ops.sum(ops.cast(ops.cumsum(rejected) == 0, "int32"))

    def result(self):
        error, rejected = self._sweep()
        kept = ops.cast(ops.cumsum(rejected) == 0, "int32")
        return ops.take(error, ops.sum(kept) - 1)

    def get_config(self):
        config = without(without(super().get_config(), "num_bins"), "binning")
        return {**config, "max_bins": self.max_bins}


def _highest_before(values):
    """Largest of the values to the left on the last axis; 0 for the first."""
    width = values.shape[-1]
    values = ops.pad(values, [[0, 0], [1, 0]])[:, :width]
    step = 1
    while step < width:
        shifted = ops.pad(values, [[0, 0], [step, 0]])[:, :width]
        values = ops.maximum(values, shifted)
        step *= 2
    return values


@keras.saving.register_keras_serializable(package="keras_calib")
class SmoothCalibrationError(CalibrationMetric):
    """Smooth calibration error (smECE), streaming.

    `int |1/n sum_i (c_i - a_i) K_s(t, c_i)| dt` with a Gaussian kernel of
    standard deviation `s`, reflected at 0 and 1; `s` is the one at which the
    error equals `s`, which needs no choice.

    Each residual is split between the two nearest of 4097 fixed nodes, `h`
    apart, which keeps its mean: at bandwidth `s` the value differs from the
    exact one by at most `0.121 (h / s)^2 mean |c - a|`, 7e-5 at `s = 0.01`; in
    practice by a hundredth of that. Bandwidths below `2 h` are not resolved.
    The exact value comes from `calibration_errors` and `CalibrationMonitor`.

    Args:
        bandwidth: float, a fixed `s`; `None` for the fixed point.
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.

    Raises:
        ValueError: if an argument is out of its range, or for bad input.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.SmoothCalibrationError()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.35

    Reference:
        Blasiok and Nakkiran, "Smooth ECE: Principled Reliability Diagrams via
        Kernel Smoothing", ICLR 2024, sections 3 and 4.
    """

    CELLS = 4096

    def __init__(
        self,
        bandwidth=None,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name="smooth_calibration_error",
        dtype=None,
    ):
        super().__init__(
            from_logits=from_logits,
            axis=axis,
            ignore_class=ignore_class,
            name=name,
            dtype=dtype,
        )
        if bandwidth is not None and not 0 < bandwidth <= 1:
            raise ValueError(
                "`bandwidth` is a distance between confidences, in (0, 1]. "
                f"Received: bandwidth={bandwidth}."
            )
        self.bandwidth = bandwidth
        self.add_sums("nodes", (self.CELLS + 1,))
        self.add_sums("weight", ())

    def update_state(self, y_true, y_pred, sample_weight=None):
        confidence, correct, weight = self.events(y_true, y_pred, sample_weight)
        residual = weight * (confidence - correct)
        place = ops.clip(confidence, 0.0, 1.0) * self.CELLS
        # NaN has no cell; its residual is NaN in any.
        lower = ops.where(place >= 0, ops.floor(place), 0.0)
        lower = ops.minimum(lower, self.CELLS - 1)
        index = ops.cast(lower, "int32")
        above = residual * (place - lower)
        nodes = bin_sums(
            ops.concatenate([residual - above, above])[None],
            ops.concatenate([index, index + 1]),
            self.CELLS + 1,
        )
        self.add_to("nodes", nodes[0])
        self.add_to("weight", ops.sum(weight))

    def result(self):
        nodes = ops.divide_no_nan(self.sums("nodes"), self.sums("weight"))
        error = _smoothed(nodes)
        if self.bandwidth is not None:
            return error(self.bandwidth)
        low = ops.maximum(ops.abs(ops.sum(nodes)), 2.0 / self.CELLS)
        return _fixed_point(error, low)

    def get_config(self):
        return {**super().get_config(), "bandwidth": self.bandwidth}


def _smoothed(nodes):
    """The smooth error of residual mass on nodes, a function of bandwidth."""
    cells = nodes.shape[0] - 1
    # Reflection at 0 and 1 is an even function of period 2, in which an inner
    # node occurs twice and an end node once: its mass is doubled.
    ends = np.ones(cells + 1, "float32")
    ends[[0, -1]] = 2.0
    nodes = nodes * ops.convert_to_tensor(ends)
    wave = ops.concatenate([nodes, ops.flip(nodes[1:-1])])
    spectrum, imaginary = ops.rfft(wave)
    frequency = np.pi * np.arange(cells + 1, dtype="float32")
    frequency = ops.convert_to_tensor(frequency)
    # The trapezoid rule over the nodes.
    trapezoid = np.ones(cells + 1, "float32")
    trapezoid[[0, -1]] = 0.5
    trapezoid = ops.convert_to_tensor(trapezoid)

    def error(bandwidth):
        damped = spectrum * ops.exp(-0.5 * (frequency * bandwidth) ** 2)
        density = ops.irfft((damped, ops.zeros_like(imaginary)))
        return ops.sum(ops.abs(density[: cells + 1]) * trapezoid)

    return error


def _fixed_point(error, low, steps=10):
    """`s = error(s)` of a falling function; `error(low)` if that is below.

    False position (Illinois) for `log error(s) - log s` in `log s`, which is
    nearly straight: a sum of kernels falls like a power of its bandwidth.
    """

    def excess(place):
        return ops.log(ops.maximum(error(ops.exp(place)), 1e-12)) - place

    first, start = error(low), low
    low, high = ops.log(low), ops.log(ops.maximum(first, low))
    above, below = excess(low), excess(high)
    up = None
    for step in range(steps):
        share = ops.divide_no_nan(above, above - below)
        middle = low + (high - low) * (0.5 if step % 4 == 3 else share)
        value, last = excess(middle), up
        up = value > 0
        if last is not None:
            # An end that stays twice is given half its weight.
            again = ops.equal(up, last)
            below = ops.where(ops.logical_and(again, up), below / 2, below)
            again = ops.logical_and(again, ops.logical_not(up))
            above = ops.where(again, above / 2, above)
        low, above = ops.where(up, middle, low), ops.where(up, value, above)
        high, below = ops.where(up, high, middle), ops.where(up, below, value)
    share = ops.divide_no_nan(above, above - below)
    found = ops.exp(low + (high - low) * share)
    return ops.where(first <= start, first, found)
