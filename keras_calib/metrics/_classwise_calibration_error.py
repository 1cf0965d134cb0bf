"""Classwise calibration error: the probability of each class by itself."""

from typing import Any

import keras
from keras import ops

from keras_calib.inputs.arguments import require_fraction
from keras_calib.inputs.rows import Rows
from keras_calib.metrics._per_class import PerClassMetric


@keras.saving.register_keras_serializable(package="keras_calib")
class ClasswiseCalibrationError(PerClassMetric):
    """Mean over the classes of the calibration error of each class, streaming.

        norm 1:      mean_k CE_k
        norm 2:      sqrt(mean_k CE_k^2)
        norm `inf`:  max_k CE_k

    `CE_k` is the error of the events "the label is `k`" with confidence `p_k`;
    see `ExpectedCalibrationError`. A class without labels is included.

    - Equal width, norm 1: classwise ECE or static calibration error (SCE).
    - Equal mass, norm 2: marginal calibration error.
    - Equal mass, norm 1: adaptive calibration error (ACE) of Nixon et al.
    - The same with `threshold=0.01`: their TACE. Only probabilities above the
      threshold are used, and `n` is their number in each class.

    With equal width the value is exact. With equal mass it is computed from 501
    fixed cells per class, and the bound of `ExpectedCalibrationError` holds for
    each class. The state has `4 num_classes` floats per bin or cell.
    `calibration_errors` computes the exact value.

    Args:
        num_bins: int, number of bins.
        binning: `"width"` or `"mass"`.
        norm: 1, 2 or `float("inf")`.
        threshold: float, probabilities up to this value are ignored; with 0
            all are used.
        num_classes: int; defaults to that of the first batch.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of range or the input is invalid.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.ClasswiseCalibrationError()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.45

    Reference:
        Kull et al., "Beyond temperature scaling", NeurIPS 2019, Section 2;
        Nixon et al., "Measuring Calibration in Deep Learning", 2019, sections
        3 and 4; Kumar et al., NeurIPS 2019, Definition 2.2.
    """

    settings = ("num_bins", "binning", "norm", "threshold", "num_classes")

    def __init__(
        self,
        *,
        num_bins: int = 15,
        binning: str = "width",
        norm: float = 1,
        threshold: float = 0.0,
        num_classes: int | None = None,
        **kwargs: Any,
    ) -> None:
        require_fraction(zero=True, threshold=threshold)
        super().__init__(
            num_bins=num_bins,
            binning=binning,
            norm=norm,
            num_classes=num_classes,
            **kwargs,
        )
        self.threshold = threshold

    def update_rows(self, rows: Rows) -> None:
        self.create_for(rows.num_classes)
        p = rows.probabilities
        weights = ops.broadcast_to(rows.weights[:, None], ops.shape(p))
        if self.threshold:
            weights = weights * ops.cast(p > self.threshold, p.dtype)
        p = ops.where(rows.faulty[:, None], float("nan"), p)
        self.count(p, rows.one_hot, weights)
