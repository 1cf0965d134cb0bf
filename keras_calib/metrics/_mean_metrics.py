"""Plain means over rows: scores, confidence, entropy."""

import keras
from keras import ops

from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.tensors import pick
from keras_calib.keras_private import without_direction
from keras_calib.metrics._base import CalibrationMetric
from keras_calib.ops.confidence import top_label


class MeanOfRows(CalibrationMetric):
    """Weighted mean of one value per row; 0 without rows."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_sums("sums", (2,))

    def per_row(self, rows):
        raise NotImplementedError

    def update_state(self, y_true, y_pred, sample_weight=None):
        rows = self.rows(y_true, y_pred, sample_weight)
        values = ops.where(rows.faulty, float("nan"), self.per_row(rows))
        values = values * rows.weights
        self.add_to("sums", ops.stack([ops.sum(rows.weights), ops.sum(values)]))

    def result(self):
        weight, total = ops.unstack(self.sums("sums"))
        return ops.divide_no_nan(total, weight)


@without_direction
class Undirected(MeanOfRows):
    """A mean of which neither more nor less is better."""


@keras.saving.register_keras_serializable(package="keras_calib")
class ConfidenceGap(Undirected):
    """Mean confidence minus accuracy, signed, streaming, exact.

    Above 0 the model is overconfident. Its size is a lower bound of ECE with
    any bins, of the KS error and of the smooth error.

    Args:
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.

    Raises:
        ValueError: for bad input.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.ConfidenceGap()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.35

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        section 2.
    """

    def __init__(
        self,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name="confidence_gap",
        dtype=None,
    ):
        super().__init__(
            from_logits=from_logits,
            axis=axis,
            ignore_class=ignore_class,
            name=name,
            dtype=dtype,
        )

    def per_row(self, rows):
        confidence, correct = top_label(rows)
        return confidence - correct


@keras.saving.register_keras_serializable(package="keras_calib")
class MeanConfidence(Undirected):
    """Mean probability of the predicted class, streaming, exact.

    Args:
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.

    Raises:
        ValueError: for bad input.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.MeanConfidence()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.85

    Reference:
        Guo et al., ICML 2017, section 2.
    """

    def __init__(
        self,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name="mean_confidence",
        dtype=None,
    ):
        super().__init__(
            from_logits=from_logits,
            axis=axis,
            ignore_class=ignore_class,
            name=name,
            dtype=dtype,
        )

    def per_row(self, rows):
        return top_label(rows)[0]


@keras.saving.register_keras_serializable(package="keras_calib")
class MeanEntropy(Undirected):
    """Mean entropy of the predicted distributions, in nats, streaming, exact.

    `-sum_k p_k log p_k`, from 0 (certain) to `log num_classes` (uniform).

    Args:
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.

    Raises:
        ValueError: for bad input.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.MeanEntropy()
        >>> metric.update_state([0], [[0.5, 0.5]])
        >>> round(float(metric.result()), 4)
        0.6931

    Reference:
        Shannon, "A Mathematical Theory of Communication", 1948, section 6.
    """

    def __init__(
        self,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name="mean_entropy",
        dtype=None,
    ):
        super().__init__(
            from_logits=from_logits,
            axis=axis,
            ignore_class=ignore_class,
            name=name,
            dtype=dtype,
        )

    def per_row(self, rows):
        return -ops.sum(rows.probabilities * rows.log_probabilities, axis=-1)


@keras.saving.register_keras_serializable(package="keras_calib")
class NegativeLogLikelihood(MeanOfRows):
    """Mean `-log p_y`, in nats, streaming, exact.

    A label to which the model gave probability 0 makes the value infinite;
    `impossible()` tells how many there were. Of logits only minus infinity
    does that.

    Args:
        epsilon: float, a floor of the probability, to cap that; 0 by default.
            Keras' own losses use 1e-7, which caps a row at 16.1.
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.

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

    def __init__(
        self,
        epsilon=0.0,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name="negative_log_likelihood",
        dtype=None,
    ):
        super().__init__(
            from_logits=from_logits,
            axis=axis,
            ignore_class=ignore_class,
            name=name,
            dtype=dtype,
        )
        if not 0 <= epsilon < 1:
            raise ValueError(
                "`epsilon` is the floor of a probability, in [0, 1). "
                f"Received: epsilon={epsilon}."
            )
        self.epsilon = epsilon
        self.add_sums("impossible", ())

    def update_state(self, y_true, y_pred, sample_weight=None):
        rows = self.rows(y_true, y_pred, sample_weight)
        hard = rows.targets is None
        if rows.given is not None:
            p = pick(rows.given, rows.labels) if hard else rows.given
            p = ops.maximum(p, self.epsilon)
            zero = p <= 0
            log_p = ops.log(ops.where(zero, 1.0, p))
        else:
            log_p = (
                rows.log_probability(rows.labels)
                if hard
                else rows.log_probabilities
            )
            if self.epsilon:
                log_p = ops.maximum(log_p, ops.log(self.epsilon))
            # Logits of minus infinity.
            zero = log_p < LOWEST / 2
            log_p = ops.where(zero, 0.0, log_p)
        if hard:
            values, lost = -log_p, zero
        else:
            values = -ops.sum(rows.targets * log_p, axis=-1)
            lost = ops.any(ops.logical_and(zero, rows.targets > 0), axis=-1)
        values = ops.where(rows.faulty, float("nan"), values)
        self.add_to(
            "sums",
            ops.stack([ops.sum(rows.weights), ops.sum(values * rows.weights)]),
        )
        lost = ops.cast(lost, rows.weights.dtype)
        self.add_to("impossible", ops.sum(lost * rows.weights))

    def impossible(self):
        """Weight of the labels to which the model gave probability 0."""
        return self.sums("impossible")

    def result(self):
        # Added, not chosen: NaN stays NaN.
        endless = ops.where(self.impossible() > 0, float("inf"), 0.0)
        return super().result() + endless

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}
