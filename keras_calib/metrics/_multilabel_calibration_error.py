"""Calibration error of labels that do not exclude each other."""

import keras
from keras import ops

from keras_calib.inputs.rows import as_rows
from keras_calib.inputs.rows import mask_of
from keras_calib.metrics._per_class import PerClassMetric
from keras_calib.metrics._per_class import per_class_error


@keras.saving.register_keras_serializable(package="keras_calib")
class MultilabelCalibrationError(PerClassMetric):
    """Calibration error of independent sigmoid units, streaming.

    Each unit is a binary classifier, and its confidence the probability of
    its own label, as in `BinaryCalibrationError`. Equal width is exact, equal
    mass is read from 501 fixed cells a label, as in
    `ClasswiseCalibrationError`.

    Args:
        num_bins: int, how many bins.
        binning: `"width"` or `"mass"`.
        norm: 1, 2 or `float("inf")`.
        average: `"macro"`, the mean over the labels (with norm 2 the root of
            the mean square, with infinity the largest), or `"micro"`, all
            labels in one set of bins.
        num_classes: int, how many labels; by default that of the first batch.
        from_logits: whether predictions are logits.
        axis: the axis of the labels.
        ignore_class: entries with this value do not count: -1 for labels that
            are not known.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.

    Raises:
        ValueError: if an argument is out of its range, or for bad input:
            labels and predictions must have one shape.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.MultilabelCalibrationError()
        >>> metric.update_state([[1, 0], [1, 1]], [[0.9, 0.3], [0.7, 0.7]])
        >>> round(float(metric.result()), 3)
        0.25

    Reference:
        Nixon et al., "Measuring Calibration in Deep Learning", 2019,
        section 3, of each label.
    """

    def __init__(
        self,
        num_bins=15,
        binning="width",
        norm=1,
        average="macro",
        num_classes=None,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name="multilabel_calibration_error",
        dtype=None,
    ):
        if average not in ("macro", "micro"):
            raise ValueError(
                '`average` must be "macro" (mean over the labels) or "micro" '
                f"(all labels together). Received: average={average!r}."
            )
        super().__init__(
            num_classes,
            num_bins,
            binning,
            norm,
            from_logits=from_logits,
            axis=axis,
            ignore_class=ignore_class,
            name=name,
            dtype=dtype,
        )
        self.average = average

    def update_state(self, y_true, y_pred, sample_weight=None):
        # A tensor of a new shape does not carry the mask on.
        mask = mask_of(y_true, y_pred)
        y_true = ops.convert_to_tensor(y_true)
        y_pred = ops.convert_to_tensor(y_pred)
        if len(y_pred.shape) < 2 or y_true.shape[1:] != y_pred.shape[1:]:
            raise ValueError(
                "Labels and predictions must have the same shape, `(..., "
                f"num_labels)`. Received: {tuple(y_true.shape)} and "
                f"{tuple(y_pred.shape)}."
            )
        if self.axis not in (-1, len(y_pred.shape) - 1):
            y_true = ops.moveaxis(y_true, self.axis, -1)
            y_pred = ops.moveaxis(y_pred, self.axis, -1)
        self.create_for(y_pred.shape[-1])
        y_pred = ops.expand_dims(y_pred, axis=-1)
        rows = as_rows(
            y_true,
            y_pred,
            sample_weight,
            from_logits=self.from_logits,
            ignore_class=self.ignore_class,
            check=not self._checked,
            mask=mask,
            use_carried=False,
        )
        self._checked = self._checked or rows.checked
        p = ops.where(rows.faulty, float("nan"), rows.probabilities[:, 1])
        shape = (-1, self.num_classes)
        self.count(
            ops.reshape(p, shape),
            ops.reshape(ops.cast(rows.labels, p.dtype), shape),
            ops.reshape(rows.weights, shape),
        )

    def result(self):
        if self.average == "macro" or self.num_classes is None:
            return super().result()
        weight, residual = (
            ops.reshape(column, (self.num_classes, self.num_cells))
            for column in ops.unstack(self.sums("sums"))
        )
        weight = ops.sum(weight, axis=0, keepdims=True)
        residual = ops.sum(residual, axis=0, keepdims=True)
        return per_class_error(*self.merge(weight, residual), self.norm)[0]

    def get_config(self):
        return {**super().get_config(), "average": self.average}
