"""Means over rows: confidence, accuracy, entropy and likelihood."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import require_fraction
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import TINY
from keras_calib.inputs.rows import Rows
from keras_calib.keras_private import without_direction
from keras_calib.metrics._base import CalibrationMetric
from keras_calib.ops.confidence import top_label


class MeanOfRows(CalibrationMetric):
    """Weighted mean of one value per row; 0 without rows."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_sums("mean", (2,))

    def per_row(self, rows: Rows) -> Tensor:
        raise NotImplementedError

    def add_mean(self, rows, values):
        """Add `(n,)` values; invalid rows add NaN."""
        weight = rows.weights
        values = ops.where(rows.faulty, float("nan"), values) * weight
        self.add_to("mean", ops.stack([ops.sum(weight), ops.sum(values)]))

    def update_rows(self, rows: Rows) -> None:
        self.add_mean(rows, self.per_row(rows))

    def result(self) -> Tensor:
        weight, total = ops.unstack(self.sums("mean"))
        return ops.divide_no_nan(total, weight)


@without_direction
class NoPreferredDirection(MeanOfRows):
    """Base class of means without a preferred direction.

    `mode="auto"` of `EarlyStopping` raises for them.
    """


@keras.saving.register_keras_serializable(package="keras_calib")
class ConfidenceGap(NoPreferredDirection):
    """Mean confidence minus accuracy, signed, streaming, exact.

    If the gap is above 0, the model is overconfident. Its absolute value is a
    lower bound of the ECE with any bins, the KS error and the smooth error.

    Args:
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if the input is invalid.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.ConfidenceGap()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.35

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        Section 2.
    """

    def per_row(self, rows: Rows) -> Tensor:
        confidence, correct = top_label(rows)
        return confidence - correct


@keras.saving.register_keras_serializable(package="keras_calib")
class MeanConfidence(NoPreferredDirection):
    """Mean probability of the predicted class, streaming, exact.

    Args:
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if the input is invalid.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.MeanConfidence()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.85

    Reference:
        Guo et al., ICML 2017, Section 2.
    """

    def per_row(self, rows: Rows) -> Tensor:
        return top_label(rows)[0]


@keras.saving.register_keras_serializable(package="keras_calib")
class MeanEntropy(NoPreferredDirection):
    """Mean entropy of the predicted distributions, in nats, streaming, exact.

        -sum_k p_k log p_k

    The value is between 0 (certain) and `log num_classes` (uniform).

    Args:
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if the input is invalid.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.MeanEntropy()
        >>> metric.update_state([0], [[0.5, 0.5]])
        >>> round(float(metric.result()), 4)
        0.6931

    Reference:
        Shannon, "A Mathematical Theory of Communication", 1948, Section 6.
    """

    def per_row(self, rows: Rows) -> Tensor:
        p = rows.probabilities
        if rows.given_probabilities is None:
            log_p = rows.log_probabilities
        else:
            # 0 log 0 is 0.
            log_p = ops.log(ops.maximum(p, TINY))
        return -ops.sum(p * log_p, axis=-1)


@keras.saving.register_keras_serializable(package="keras_calib")
class NegativeLogLikelihood(MeanOfRows):
    """Mean `-log p_y`, in nats, streaming, exact.

    The value is infinite if the probability of a label is 0; `impossible()`
    returns the number of these labels. With logits this needs a logit of minus
    infinity.

    Args:
        epsilon: float, lower limit of the probability of a label. With 1e-7,
            as in the losses of Keras, the value of a row is at most 16.1.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if `epsilon` is not in [0, 1), or for bad input.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.NegativeLogLikelihood()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 4)  # -(log 0.9 + log 0.2) / 2
        0.8574

    Reference:
        Guo et al., ICML 2017, eq. 6.
    """

    settings = ("epsilon",)

    def __init__(self, *, epsilon: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require_fraction(zero=True, epsilon=epsilon)
        self.epsilon = epsilon
        self.add_sums("impossible", ())

    def update_rows(self, rows: Rows) -> None:
        log_p, zero = self._log_probabilities(rows)
        if rows.targets is None:
            values, lost = -log_p, zero
        else:
            values = -ops.sum(rows.targets * log_p, axis=-1)
            lost = ops.any(ops.logical_and(zero, rows.targets > 0), axis=-1)
        self.add_mean(rows, values)
        lost = ops.cast(lost, rows.weights.dtype)
        self.add_to("impossible", ops.sum(lost * rows.weights))

    def _log_probabilities(self, rows):
        """`log p` of the labels or of all classes, and where `p` is 0.

        Where `p` is 0, `log p` is replaced by 0.
        """
        hard = rows.targets is None
        if rows.given_probabilities is not None:
            p = rows.probability(rows.labels) if hard else rows.probabilities
            p = ops.maximum(p, self.epsilon)
            zero = p <= 0
            return ops.log(ops.where(zero, 1.0, p)), zero
        log_p = rows.log_probabilities
        if hard:
            log_p = rows.log_probability(rows.labels)
        if self.epsilon:
            log_p = ops.maximum(log_p, ops.log(self.epsilon))
        # Logits of minus infinity.
        zero = log_p < LOWEST / 2
        return ops.where(zero, 0.0, log_p), zero

    def impossible(self) -> Tensor:
        """Weight of the labels with probability 0."""
        return self.sums("impossible")

    def result(self) -> Tensor:
        # A sum and not a `where`, because NaN must stay NaN.
        weight = self.impossible()
        infinity = ops.full_like(weight, float("inf"))
        infinite = ops.where(weight > 0, infinity, ops.zeros_like(weight))
        return super().result() + infinite
