"""Calibration error over as many bins as keep the accuracy monotone."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.tensors import running_sum
from keras_calib.metrics import _histogram as histogram
from keras_calib.metrics._binned import BinnedMetric
from keras_calib.ops.bin_errors import Bins
from keras_calib.ops.bin_errors import accuracy_falls
from keras_calib.ops.bin_errors import calibration_error


@keras.saving.register_keras_serializable(package="keras_calib")
class SweepCalibrationError(BinnedMetric):
    """Monotonic-sweep calibration error (ECE_sweep), streaming.

    Calibration error over the largest number of bins of equal mass for which
    the accuracy does not fall from one bin to the next. Bins are added one by
    one, until the accuracy falls.

    The value is computed from 1964 fixed cells, as if the confidences of a cell
    were equal. If the exact sweep stops at the same number of bins, the bound
    of `ExpectedCalibrationError` holds; there is no bound for the number of
    bins. `calibration_errors` and `CalibrationMonitor` compute the exact value.

    Args:
        norm: 1 or 2.
        max_bins: int, the largest number of bins.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of range or the input is invalid.

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
        require_integer(1, max_bins=max_bins)
        super().__init__(num_bins=max_bins, binning="mass", norm=norm, **kwargs)
        self.max_bins = max_bins
        self.add_sums("squares", ())

    def add_totals(self, weights: Tensor) -> None:
        self.add_to("squares", ops.sum(weights**2))

    def _bins_of_each_number(self):
        """`Bins`; row `b - 1` has `b` bins, followed by empty ones."""
        sums, most = self.sums("sums"), self.max_bins
        number, place = np.meshgrid(
            np.arange(1, most + 1), np.arange(most + 1), indexing="ij"
        )
        fraction = np.minimum(place / number, 1.0).reshape(-1)
        upper = histogram.cells_below(sums[0], fraction)
        end, begin = ops.full_like(upper, sums.shape[1]), ops.zeros_like(upper)
        upper = ops.where(fraction >= 1, end, upper)
        upper = ops.where(fraction <= 0, begin, upper)
        below = ops.pad(running_sum(sums), [[0, 0], [1, 0]])
        below = ops.take(below, upper, axis=1)
        below = ops.reshape(below, (3, most, most + 1))
        return Bins(*ops.unstack(below[:, :, 1:] - below[:, :, :-1]))

    def _sweep(self):
        """Error for each number of bins, and where the sweep stops."""
        bins = self._bins_of_each_number()
        total, squares = ops.sum(self.sums("sums")[0]), self.sums("squares")
        # Sums of counts are exact, but sums of weights are rounded.
        rounded = ops.abs(squares - total) > 1e-6 * total
        rounding = 1e-6 * ops.divide_no_nan(total, bins.weight)
        falls = accuracy_falls(bins, ops.where(rounded, rounding, 0.0))
        # Fewer bins than samples (of equal weight).
        samples = ops.divide_no_nan(total**2, squares)
        number = ops.arange(1, self.max_bins + 1, dtype="float32")
        many = ops.logical_and(number > samples - 0.5, number > 1)
        rejected = ops.cast(ops.logical_or(falls, many), "int32")
        accepted = ops.cast(ops.cumsum(rejected) == 0, "int32")
        return calibration_error(bins, self.norm), ops.sum(accepted)

    def used_bins(self) -> Tensor:
        """Number of bins where the sweep stops, int32."""
        return self._sweep()[1]

    def result(self) -> Tensor:
        error, number = self._sweep()
        return ops.take(error, number - 1)
