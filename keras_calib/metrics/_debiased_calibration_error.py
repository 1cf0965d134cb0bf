"""Debiased calibration error: without the noise of few samples."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.metrics import _histogram as histogram
from keras_calib.metrics._binned import BinnedMetric
from keras_calib.ops.bin_errors import Bins
from keras_calib.ops.bin_errors import debiased_power

# Weights that sum to at most `LARGE` are multiplied by `MAGNIFIED` before they
# are squared, others by `REDUCED`: squares of 1e-27 and 1e30 are neither 0 nor
# infinite.
LARGE, MAGNIFIED, REDUCED = 2.0**20, 2.0**30, 2.0**-48


@keras.saving.register_keras_serializable(package="keras_calib")
class DebiasedCalibrationError(BinnedMetric):
    """Debiased calibration error, streaming.

        norm 2: sqrt(max(0, D)), where
                D = sum_m n_m / n [(C_m - A_m)^2 - A_m (1 - A_m) / (n_m - 1)]
        norm 1: 2 ECE - E[ECE] with accuracies from N(A_m, A_m (1 - A_m) / n_m)

    The binned error of a calibrated model is above 0, because the accuracy of
    a bin is noisy. With norm 2, a bin of one sample adds 0, because nothing
    tells its noise; `signed()` returns `D`, which can be averaged over runs.
    With norm 1 the expectation has a closed form, and the value may be
    negative.

    With weights, a bin represents `n_m = (sum w)^2 / sum w^2` samples.

    With `binning="width"` the value is exact. With `"mass"`, as published, the
    edges are edges of 1964 fixed cells. With `d = max_cell n_cell / n`, `D`
    differs from the exact value by at most
    `4 (num_bins - 1) (d + num_bins / n) + num_bins / (2 n)`, and the value with
    norm 1 by at most
    `2 (num_bins - 1) (d + num_bins / n) + 0.4 sqrt(num_bins / n)`.
    `calibration_errors` and `CalibrationMonitor` compute the exact value.

    Args:
        num_bins: int, number of bins.
        binning: `"mass"` or `"width"`.
        norm: 2 or 1.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of range or the input is invalid.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.DebiasedCalibrationError(binning="width")
        >>> metric.update_state([0, 0, 1], [[0.9, 0.1]] * 3)
        >>> round(float(metric.signed()), 4)  # (0.9 - 2/3)^2 - 2/9 / 2
        -0.0567
        >>> float(metric.result())
        0.0

    Reference:
        Kumar et al., "Verified Uncertainty Calibration", NeurIPS 2019,
        Section 4. Norm 1: its Section 4 without the sampling.
    """

    settings = ("num_bins", "binning", "norm")
    norms = (1, 2)
    # The squares of the weights twice, see `per_event`.
    num_columns = 5

    def __init__(
        self,
        *,
        num_bins: int = 15,
        binning: str = "mass",
        norm: float = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_bins=num_bins, binning=binning, norm=norm, **kwargs
        )

    def per_event(
        self, confidence: Tensor, correct: Tensor, weights: Tensor
    ) -> list[Tensor]:
        # Squares of small and of large weights leave the range of float32, so
        # they are summed on two scales. Powers of two round nothing off.
        xp = np if isinstance(weights, np.ndarray) else ops
        return [
            weights,
            weights * (confidence - correct),
            weights * correct,
            (xp.minimum(weights, LARGE) * MAGNIFIED) ** 2,
            (weights * REDUCED) ** 2,
        ]

    def bins(self, sums: Tensor | None = None) -> Bins:
        sums = self.sums("sums") if sums is None else sums
        small = ops.sum(sums[0]) <= LARGE
        squares = ops.where(small, sums[3:4], sums[4:5])
        sums = ops.concatenate([sums[:3], squares])
        if self.binning == "mass":
            sums = histogram.merge_cells(sums, self.num_bins)
        weight, residual, hits, squares = ops.unstack(sums)
        # A constant factor changes nothing if all sums have it.
        one = ops.ones_like(squares)
        factor = ops.where(small, MAGNIFIED * one, REDUCED * one)
        return Bins(weight * factor, residual * factor, hits * factor, squares)

    def signed(self) -> Tensor:
        """The estimate before a square root: it may be negative."""
        return debiased_power(self.bins(), self.norm)

    def result(self) -> Tensor:
        if self.norm == 1:
            return self.signed()
        return ops.sqrt(ops.maximum(self.signed(), 0.0))
