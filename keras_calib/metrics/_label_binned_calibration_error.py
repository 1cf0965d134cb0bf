"""Label-binned error: each confidence against the accuracy of its bin."""

import keras
import numpy as np
from keras import ops

from keras_calib.metrics import _histogram as histogram
from keras_calib.metrics._binned import BinnedMetric
from keras_calib.metrics._binned import centres
from keras_calib.ops.binning import bin_index
from keras_calib.ops.binning import bin_sums
from keras_calib.ops.binning import cell_index


@keras.saving.register_keras_serializable(package="keras_calib")
class LabelBinnedCalibrationError(BinnedMetric):
    """Label-binned calibration error (ECE_lb), streaming.

    `(1/n sum_i |accuracy_bin(i) - confidence_i|^p)^(1/p)`: labels are averaged
    over a bin, confidences are not. Never below ECE of the same bins, and not
    0 for a calibrated model whose bins are wide.

    With norm 2 and bins of equal width the value is exact. Otherwise it is
    read from a histogram of about 1978 fixed cells: with norm 1 and equal
    width it is too small by at most `sum_m w_m n_m / n`, over the one cell of
    each bin, `w_m` wide, that holds the bin's accuracy; that is below 1/1024.
    With equal mass, shifted edges add to that what they add to
    `AdaptiveCalibrationError`. The exact value comes from
    `calibration_errors` and `CalibrationMonitor`.

    Args:
        num_bins: int, how many bins.
        binning: `"width"` or `"mass"`.
        norm: the power `p`, 1 or 2.
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.

    Raises:
        ValueError: if an argument is out of its range, or for bad input.

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

    arithmetic = False

    def __init__(
        self,
        num_bins=15,
        binning="width",
        norm=2,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name="label_binned_calibration_error",
        dtype=None,
    ):
        super().__init__(
            num_bins,
            binning,
            norm,
            norms=(1, 2),
            columns=4,
            from_logits=from_logits,
            axis=axis,
            ignore_class=ignore_class,
            name=name,
            dtype=dtype,
        )

    @property
    def _extra_edges(self):
        """Cells must not cross the edges of the bins that they make up."""
        return self.num_bins if self.binning == "width" else None

    @property
    def _bins_are_cells(self):
        return self.binning == "width" and self.norm == 2

    @property
    def num_cells(self):
        if self._bins_are_cells:
            return self.num_bins
        return histogram.num_cells(num_bins=self._extra_edges)

    def _centres(self):
        if self._bins_are_cells:
            return centres(self.num_bins)
        return histogram.cell_centres(num_bins=self._extra_edges)

    def interval_index(self, confidence):
        if self._bins_are_cells:
            return bin_index(confidence, self.num_bins)
        edges = histogram.cell_edges(num_bins=self._extra_edges)
        return cell_index(confidence, edges)

    def per_event(self, confidence, correct, weight):
        # Distances from the middle are small, and lose no digits in a sum.
        middle = ops.convert_to_tensor(self._centres(), confidence.dtype)
        distance = confidence - ops.take(
            middle, self.interval_index(confidence)
        )
        return [
            weight,
            weight * correct,
            weight * distance,
            weight * distance**2,
        ]

    def result(self):
        weight, hits, distance, square = ops.unstack(self.sums("sums"))
        if self._bins_are_cells:
            index = np.arange(self.num_bins)
        elif self.binning == "width":
            index = bin_index(self._centres(), self.num_bins)
        else:
            index = histogram.mass_bin_of_cell(weight, self.num_bins)
        index = ops.convert_to_tensor(index, "int32")
        totals = bin_sums(ops.stack([weight, hits]), index, self.num_bins)
        accuracy = ops.take(ops.divide_no_nan(totals[1], totals[0]), index)
        gap = accuracy - ops.convert_to_tensor(self._centres(), weight.dtype)
        if self.norm == 1:
            error = ops.sum(ops.abs(weight * gap - distance))
            return ops.divide_no_nan(error, ops.sum(weight))
        terms = weight * gap**2 - 2 * gap * distance + square
        error = ops.divide_no_nan(ops.sum(terms), ops.sum(weight))
        return ops.sqrt(ops.maximum(error, 0.0))
