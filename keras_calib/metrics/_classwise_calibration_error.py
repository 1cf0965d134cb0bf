"""Classwise calibration error: the probability of each class by itself."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib.metrics._per_class import PerClassMetric


@keras.saving.register_keras_serializable(package="keras_calib")
class ClasswiseCalibrationError(PerClassMetric):
    """Mean over the classes of the error of each class's probability.

    For class `k` the confidence is `p_k`, and it is right where the label is
    `k`. With equal width and norm 1 this is classwise ECE, also called static
    calibration error (SCE); with equal mass and norm 2 the marginal
    calibration error `sqrt(mean_k CE_k^2)`; with equal mass and norm 1 the
    adaptive error of Nixon et al. (ACE), and with `threshold=0.01` their TACE:
    only probabilities above the threshold count, and each class is divided by
    how many of its own did. A class without labels counts like any other.

    Equal width is exact. Equal mass is read from 501 fixed cells a class; the
    error of a class then differs from the exact one as in
    `ExpectedCalibrationError`. The state holds `4 num_classes` floats per bin,
    or cell. The exact value comes from `calibration_errors`.

    Args:
        num_bins: int, how many bins.
        binning: `"width"` or `"mass"`.
        norm: 1, 2 or `float("inf")` (the worst bin of the worst class).
        threshold: probabilities up to this do not count; 0 counts all.
        num_classes: int; by default that of the first batch.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of its range, or for bad input.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.ClasswiseCalibrationError()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.45

    Reference:
        Kull et al., "Beyond temperature scaling", NeurIPS 2019, section 2;
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
        if not 0 <= threshold < 1:
            raise ValueError(
                "`threshold` is a probability, in [0, 1). "
                f"Received: threshold={threshold}."
            )
        super().__init__(
            num_bins=num_bins,
            binning=binning,
            norm=norm,
            num_classes=num_classes,
            **kwargs,
        )
        self.threshold = threshold

    def update_state(
        self,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        rows = self.rows(y_true, y_pred, sample_weight)
        self.create_for(rows.num_classes)
        p = rows.probabilities
        weight = ops.broadcast_to(rows.weights[:, None], ops.shape(p))
        if self.threshold:
            weight = weight * ops.cast(p > self.threshold, p.dtype)
        p = ops.where(rows.faulty[:, None], float("nan"), p)
        self.count(p, rows.one_hot, weight)
