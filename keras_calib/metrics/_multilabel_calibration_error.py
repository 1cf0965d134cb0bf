"""Calibration error of several sigmoid units (multi-label)."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs import rules
from keras_calib.inputs.arguments import is_one_of
from keras_calib.inputs.arguments import require
from keras_calib.inputs.masks import mask_of
from keras_calib.inputs.tensors import as_tensor
from keras_calib.metrics._per_class import PerClassMetric
from keras_calib.ops.bin_errors import calibration_error


@keras.saving.register_keras_serializable(package="keras_calib")
class MultilabelCalibrationError(PerClassMetric):
    """Calibration error of independent sigmoid units, streaming.

    Each unit is a binary classifier, and its confidence is the probability of
    its label, as in `BinaryCalibrationError`. With equal width the value is
    exact; with equal mass it is computed from 501 fixed cells per label, as in
    `ClasswiseCalibrationError`.

    Args:
        num_bins: int, number of bins.
        binning: `"width"` or `"mass"`.
        norm: 1, 2 or `float("inf")`.
        average: `"macro"` for the mean over the labels (the root of the mean
            square with norm 2, the maximum with `inf`), `"micro"` for one set
            of bins for all labels.
        num_classes: int, number of labels; defaults to that of the first
            batch.
        **kwargs: `from_logits`, `axis` (of the labels), `ignore_class` (entries
            with this value are ignored, e.g. -1 for unknown labels), `name`
            and `dtype`; see `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of range or the input is invalid;
            labels and predictions must have the same shape.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.MultilabelCalibrationError()
        >>> metric.update_state([[1, 0], [1, 1]], [[0.9, 0.3], [0.7, 0.7]])
        >>> round(float(metric.result()), 3)
        0.25

    Reference:
        Nixon et al., "Measuring Calibration in Deep Learning", 2019,
        Section 3, of each label.
    """

    settings = ("num_bins", "binning", "norm", "average", "num_classes")

    def __init__(
        self,
        *,
        num_bins: int = 15,
        binning: str = "width",
        norm: float = 1,
        average: str = "macro",
        num_classes: int | None = None,
        **kwargs: Any,
    ) -> None:
        require(
            is_one_of(average, ("macro", "micro")),
            '`average` must be "macro" (mean over the labels) or "micro" (all '
            "labels together).",
            average=average,
        )
        super().__init__(
            num_bins=num_bins,
            binning=binning,
            norm=norm,
            num_classes=num_classes,
            **kwargs,
        )
        self.average = average

    def update_state(
        self,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        # Keras' mask is lost when the shape of a tensor changes.
        mask = mask_of(y_true, y_pred)
        labels = as_tensor(y_true, "Labels")
        units = as_tensor(y_pred)
        rank = len(units.shape)
        fit = rank > 1 and labels.shape[1:] == units.shape[1:]
        if fit:
            rules.check_axis(self.axis, units.shape)
        if not fit or units.shape[self.axis] == 0:
            raise ValueError(
                "Labels and predictions must have the same shape, `(..., "
                "num_labels)`, of at least one label. Received: "
                f"{tuple(labels.shape)} and {tuple(units.shape)}."
            )
        if self.axis not in (-1, rank - 1):
            if sample_weight is not None:
                weights = as_tensor(sample_weight, "Sample weights")
                if len(weights.shape) == rank:
                    sample_weight = ops.moveaxis(weights, self.axis, -1)
            labels = ops.moveaxis(labels, self.axis, -1)
            units = ops.moveaxis(units, self.axis, -1)
        rows = self.rows(
            labels, units[..., None], sample_weight, axis=-1, mask=mask
        )
        self.create_for(units.shape[-1])
        p = ops.where(rows.faulty, float("nan"), rows.probabilities[:, 1])
        hits = ops.cast(rows.labels, p.dtype)
        shape = (-1, self.classes)
        self.count(
            *(ops.reshape(values, shape) for values in (p, hits, rows.weights))
        )

    def result(self) -> Tensor:
        if self.average == "macro" or self.classes is None:
            return super().result()
        sums = ops.sum(self.sums("sums"), axis=1)
        return calibration_error(self.bins(sums), self.norm)
