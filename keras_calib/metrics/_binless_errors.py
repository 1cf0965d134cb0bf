"""Errors without fixed bins: sweep, KS, smooth; streamed from fixed cells."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.metrics import _histogram as histogram
from keras_calib.metrics._base import CalibrationMetric
from keras_calib.metrics._binned import BinnedMetric
from keras_calib.ops.bin_errors import Bins
from keras_calib.ops.bin_errors import accuracy_falls
from keras_calib.ops.bin_errors import calibration_error
from keras_calib.ops.bin_errors import ks_error
from keras_calib.ops.binning import bin_sums
from keras_calib.ops.smooth_error import smooth_error


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
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

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

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(num_bins=1, binning="mass", **kwargs)

    def result(self) -> Tensor:
        return ks_error(Bins(*ops.unstack(self.sums("sums"))))


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
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

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

    settings = ("norm", "max_bins")
    norms = (1, 2)
    num_columns = 3

    def __init__(
        self, *, norm: float = 2, max_bins: int = 64, **kwargs: Any
    ) -> None:
        super().__init__(num_bins=max_bins, binning="mass", norm=norm, **kwargs)
        self.max_bins = max_bins
        self.add_sums("squares", ())

    def per_event(self, confidence, correct, weight):
        self.add_to("squares", ops.sum(weight**2))
        return super().per_event(confidence, correct, weight)

    def _bins_of_each_number(self):
        """`Bins` with a row for 1, 2, ... `max_bins` bins, and empty ones."""
        sums, most = self.sums("sums"), self.max_bins
        number, place = np.meshgrid(
            np.arange(1, most + 1), np.arange(most + 1), indexing="ij"
        )
        fraction = np.minimum(place / number, 1.0).reshape(-1)
        upper = histogram.cells_below(sums[0], fraction)
        upper = ops.where(fraction >= 1, sums.shape[1], upper)
        upper = ops.where(fraction <= 0, 0, upper)
        below = ops.pad(ops.cumsum(sums, axis=1), [[0, 0], [1, 0]])
        below = ops.take(below, upper, axis=1)
        below = ops.reshape(below, (3, most, most + 1))
        return Bins(*ops.unstack(below[:, :, 1:] - below[:, :, :-1]))

    def _sweep(self):
        """Error of each number of bins, and how many numbers are accepted."""
        bins = self._bins_of_each_number()
        total, squares = ops.sum(self.sums("sums")[0]), self.sums("squares")
        # Sums of counts are exact, those of weights are rounded.
        rounded = ops.abs(squares - total) > 1e-6 * total
        rounding = 1e-6 * ops.divide_no_nan(total, bins.weight)
        falls = accuracy_falls(bins, ops.where(rounded, rounding, 0.0))
        # At most one bin less than there are samples, however weighted.
        samples = ops.divide_no_nan(total**2, squares)
        number = ops.arange(1, self.max_bins + 1, dtype="float32")
        many = ops.logical_and(number > samples - 0.5, number > 1)
        rejected = ops.cast(ops.logical_or(falls, many), "int32")
        accepted = ops.cast(ops.cumsum(rejected) == 0, "int32")
        return calibration_error(bins, self.norm), ops.sum(accepted)

    def used_bins(self) -> Tensor:
        """How many bins the sweep stopped at, int32."""
        return self._sweep()[1]

    def result(self) -> Tensor:
        error, number = self._sweep()
        return ops.take(error, number - 1)


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
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

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

    settings = ("bandwidth",)
    CELLS = 4096

    def __init__(
        self, *, bandwidth: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if bandwidth is not None and not 0 < bandwidth <= 1:
            raise ValueError(
                "`bandwidth` is a distance between confidences, in (0, 1]. "
                f"Received: bandwidth={bandwidth}."
            )
        self.bandwidth = bandwidth
        self.add_sums("nodes", (self.CELLS + 1,))
        self.add_sums("weight", ())

    def update_state(
        self,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        sample_weight: ArrayLike | None = None,
    ) -> None:
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

    def result(self) -> Tensor:
        nodes = ops.divide_no_nan(self.sums("nodes"), self.sums("weight"))
        return smooth_error(nodes, self.bandwidth)
