"""What the errors of each class share: a histogram per class, and a mean."""

import numpy as np
from keras import ops

from keras_calib.metrics import _histogram as histogram
from keras_calib.metrics._binned import INFINITY
from keras_calib.metrics._binned import BinnedMetric
from keras_calib.ops.binning import bin_index
from keras_calib.ops.binning import bin_sums
from keras_calib.ops.binning import cell_index

# Cells of each of a class's two grids: many classes are to fit.
CELLS = 256


class PerClassMetric(BinnedMetric):
    """Base of the metrics that bin each class's probability by itself.

    Args:
        num_classes: int, or `None` to read it from the first batch.
        num_bins: int, how many bins.
        binning: `"width"` or `"mass"`.
        norm: 1, 2 or `inf`.
        **kwargs: of `CalibrationMetric`.
    """

    def __init__(self, num_classes, num_bins, binning, norm, **kwargs):
        self.num_classes = None
        super().__init__(
            num_bins, binning, norm, norms=(1, 2, INFINITY), **kwargs
        )
        self.given_classes = num_classes
        if num_classes is not None:
            self.create_for(num_classes)

    def create_sums(self):
        """Wait for the number of classes."""

    def create_for(self, num_classes):
        """Create the sums, once the number of classes is known."""
        if self.num_classes is None:
            self.num_classes = num_classes
            shape = (2, num_classes * self.num_cells)
            self.add_sums("sums", shape)
        elif num_classes != self.num_classes:
            raise ValueError(
                f"The metric counts {self.num_classes} classes. Received: "
                f"predictions with {num_classes}. Make one metric for each."
            )

    def build_like(self, other):
        if other.num_classes is not None:
            self.create_for(other.num_classes)

    @property
    def num_cells(self):
        if self.binning == "width":
            return self.num_bins
        return histogram.num_cells(CELLS)

    def interval_index(self, confidence):
        if self.binning == "width":
            return bin_index(confidence, self.num_bins)
        return cell_index(confidence, histogram.cell_edges(CELLS))

    def count(self, probabilities, present, weight):
        """Add `(n, num_classes)` probabilities, hits and weights."""
        index = self.interval_index(probabilities)
        offset = np.arange(self.num_classes) * self.num_cells
        index = index + ops.convert_to_tensor(offset, "int32")
        columns = [weight, weight * (probabilities - present)]
        columns = [ops.reshape(column, (-1,)) for column in columns]
        sums = bin_sums(
            ops.stack(columns),
            ops.reshape(index, (-1,)),
            self.num_classes * self.num_cells,
        )
        self.add_to("sums", sums)

    def class_bins(self):
        """Weight and residual of each bin, each `(num_classes, num_bins)`."""
        shape = (self.num_classes, self.num_cells)
        weight, residual = (
            ops.reshape(column, shape)
            for column in ops.unstack(self.sums("sums"))
        )
        return self.merge(weight, residual)

    def merge(self, weight, residual):
        """Cells as bins, if there are cells."""
        if self.binning == "width":
            return weight, residual
        return histogram.merge_cells(weight, residual, self.num_bins)

    def per_class(self):
        """The error of each class, `(num_classes,)`."""
        return per_class_error(*self.class_bins(), self.norm)

    def result(self):
        if self.num_classes is None:
            return ops.zeros(())
        errors = self.per_class()
        if self.norm == 1:
            return ops.mean(errors)
        if self.norm == 2:
            return ops.sqrt(ops.mean(errors**2))
        return ops.max(errors)

    def get_config(self):
        return {**super().get_config(), "num_classes": self.given_classes}


def per_class_error(weight, residual, norm):
    """`calibration_error` of each row of `(num_classes, num_bins)`."""
    size = ops.abs(residual)
    total = ops.sum(weight, axis=-1)
    if norm == 1:
        return ops.divide_no_nan(ops.sum(size, axis=-1), total)
    gap = ops.divide_no_nan(size, weight)
    if norm == INFINITY:
        return ops.max(gap, axis=-1)
    return ops.sqrt(ops.divide_no_nan(ops.sum(size * gap, axis=-1), total))
