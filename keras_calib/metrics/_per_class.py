"""Base class of classwise ECE and its kin: an error per class, and a mean."""

from typing import Any

import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import require_integer
from keras_calib.metrics._binned import BinnedMetric
from keras_calib.ops.bin_errors import calibration_error
from keras_calib.ops.binning import bin_sums_by_class
from keras_calib.ops.binning import interval_index


class PerClassMetric(BinnedMetric):
    """Base class of the metrics that bin the probability of each class.

    Args:
        num_classes: int, or `None` for that of the first batch.
        **kwargs: see `BinnedMetric`.
    """

    # A small grid, because each class has a histogram.
    cells = 256
    numpy_events = False

    def __init__(self, *, num_classes: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes
        if num_classes is not None:
            require_integer(1, num_classes=num_classes)
            self.create_for(num_classes)

    def create_sums(self) -> None:
        if self.classes is not None:
            shape = (self.num_columns, self.classes, self.num_cells)
            self.add_sums("sums", shape)

    def count(self, probabilities, present, weights):
        """Add `(n, num_classes)` probabilities, labels (0 or 1) and weights."""
        columns = self.per_event(probabilities, present, weights)
        sums = bin_sums_by_class(
            ops.stack(columns),
            interval_index(probabilities, self.edges),
            self.num_cells,
            np.arange(self.classes),
        )
        self.add_to("sums", sums)

    def per_class(self) -> Tensor:
        """The error of each class, `(num_classes,)`."""
        return calibration_error(self.bins(), self.norm)

    def result(self) -> Tensor:
        """`mean_k E_k`, `sqrt(mean_k E_k^2)` or `max_k E_k`, by the norm.

        `E_k` bins the probability of class `k`, and is, with norm 1,
        `sum_m n_m / n |C_m - A_m|`, where `A_m` is the frequency of the class.
        """
        if self.classes is None:
            return ops.zeros(())
        errors = self.per_class()
        if self.norm == 1:
            return ops.mean(errors)
        if self.norm == 2:
            return ops.sqrt(ops.mean(errors**2))
        return ops.max(errors)
