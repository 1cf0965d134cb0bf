"""Label-binned error: each confidence against the accuracy of its bin."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.metrics import _histogram as histogram
from keras_calib.metrics._binned import BinnedMetric
from keras_calib.ops.binning import bin_index
from keras_calib.ops.binning import bin_sums
from keras_calib.ops.binning import centers
from keras_calib.ops.binning import interior_edges
from keras_calib.ops.binning import interval_index


@keras.saving.register_keras_serializable(package="keras_calib")
class LabelBinnedCalibrationError(BinnedMetric):
    """Label-binned calibration error (ECE_lb), streaming.

        (1/n sum_i |accuracy_bin(i) - confidence_i|^p)^(1/p)

    Labels are averaged over a bin, but confidences are not. The value is never
    below the ECE of the same bins, and above 0 for a calibrated model with
    wide bins.

    With norm 2 and bins of equal width the value is exact. Otherwise it is
    computed from fixed cells: 1964 with equal mass, 1978 with 15 bins of equal
    width. With norm 1 and equal width it is too small by at most
    `sum_m w_m n_m / n`, where `w_m` is the width and `n_m` the weight of the
    cell that contains the accuracy of bin `m`; this is below 1/1024. With equal
    mass the bound of `AdaptiveCalibrationError` is added.
    `calibration_errors` and `CalibrationMonitor` compute the exact value.

    Args:
        num_bins: int, number of bins.
        binning: `"width"` or `"mass"`.
        norm: the power `p`, 1 or 2.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of range or the input is invalid.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.LabelBinnedCalibrationError(num_bins=2, norm=1)
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.35

    Reference:
        Karandikar et al., "Soft Calibration Objectives for Neural Networks",
        NeurIPS 2021, eq. 7.
    """

    settings = ("num_bins", "binning", "norm")
    norms = (1, 2)
    num_columns = 4
    numpy_events = False

    def __init__(
        self,
        *,
        num_bins: int = 15,
        binning: str = "width",
        norm: float = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_bins=num_bins, binning=binning, norm=norm, **kwargs
        )

    @property
    def edges(self) -> np.ndarray:
        if self.binning == "mass":
            return histogram.cell_edges()
        if self.norm == 2:
            return interior_edges(self.num_bins)
        # No cell may contain an edge between bins.
        return histogram.cell_edges(num_bins=self.num_bins)

    def per_event(
        self, confidence: Tensor, correct: Tensor, weights: Tensor
    ) -> list[Tensor]:
        # Sums of distances from the middle lose fewer digits than those of
        # confidences.
        middle = ops.convert_to_tensor(centers(self.edges), confidence.dtype)
        index = interval_index(confidence, self.edges)
        distance = confidence - ops.take(middle, index)
        hits = weights * correct
        return [weights, hits, weights * distance, weights * distance**2]

    def result(self) -> Tensor:
        weight, hits, distance, square = ops.unstack(self.sums("sums"))
        middle = centers(self.edges)
        if self.binning == "width":
            index = bin_index(middle, self.num_bins)
            index = ops.convert_to_tensor(index, "int32")
        else:
            index = histogram.mass_bin_of_cell(weight, self.num_bins)
        total, right = ops.unstack(
            bin_sums(ops.stack([weight, hits]), index, self.num_bins)
        )
        accuracy = ops.take(ops.divide_no_nan(right, total), index)
        gap = accuracy - ops.convert_to_tensor(middle, weight.dtype)
        if self.norm == 1:
            error = ops.sum(ops.abs(weight * gap - distance))
            return ops.divide_no_nan(error, ops.sum(weight))
        terms = weight * gap**2 - 2 * gap * distance + square
        error = ops.divide_no_nan(ops.sum(terms), ops.sum(weight))
        return ops.sqrt(ops.maximum(error, 0.0))
