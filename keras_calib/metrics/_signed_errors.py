"""Which way confidence errs: too high, too low, and by how much on average."""

import keras
from keras import ops

from keras_calib.metrics._binned import BinnedMetric
from keras_calib.metrics._expected_calibration_error import without


class _OneSided(BinnedMetric):
    """The part of ECE in which the gap has one sign."""

    sign = 1

    def __init__(self, num_bins, confidence_weighted, **kwargs):
        super().__init__(num_bins, "width", columns=3, **kwargs)
        self.confidence_weighted = confidence_weighted

    def per_event(self, confidence, correct, weight):
        residual = weight * (confidence - correct)
        return [weight, residual, weight * correct]

    def result(self):
        weight, residual, hits = self.bins()
        part = ops.maximum(self.sign * residual, 0.0)
        if self.confidence_weighted:
            part = part * ops.divide_no_nan(hits + residual, weight)
        return ops.divide_no_nan(ops.sum(part), ops.sum(weight))

    def get_config(self):
        return {
            **without(super().get_config(), "binning"),
            "confidence_weighted": self.confidence_weighted,
        }


@keras.saving.register_keras_serializable(package="keras_calib")
class OverconfidenceError(_OneSided):
    """The part of ECE where confidence is above accuracy, streaming, exact.

    `sum_m n_m / n max(0, confidence_m - accuracy_m)` over bins of equal width.
    It and `UnderconfidenceError` add up to `ExpectedCalibrationError`.

    Args:
        num_bins: int, how many bins.
        confidence_weighted: multiply each gap by the bin's confidence: the
            overconfidence error (OE) of Thulasidasan et al.
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.

    Raises:
        ValueError: if an argument is out of its range, or for bad input.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.OverconfidenceError()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.4

    Reference:
        Thulasidasan et al., "On Mixup Training", NeurIPS 2019, section 3.1.
    """

    def __init__(
        self,
        num_bins=15,
        confidence_weighted=False,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name="overconfidence_error",
        dtype=None,
    ):
        super().__init__(
            num_bins,
            confidence_weighted,
            from_logits=from_logits,
            axis=axis,
            ignore_class=ignore_class,
            name=name,
            dtype=dtype,
        )


@keras.saving.register_keras_serializable(package="keras_calib")
class UnderconfidenceError(_OneSided):
    """The part of ECE where confidence is below accuracy, streaming, exact.

    `sum_m n_m / n max(0, accuracy_m - confidence_m)` over bins of equal width;
    see `OverconfidenceError`.

    Args:
        num_bins: int, how many bins.
        confidence_weighted: multiply each gap by the bin's confidence.
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.

    Raises:
        ValueError: if an argument is out of its range, or for bad input.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.UnderconfidenceError()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.05

    Reference:
        The mirror of Thulasidasan et al., NeurIPS 2019, section 3.1.
    """

    sign = -1

    def __init__(
        self,
        num_bins=15,
        confidence_weighted=False,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name="underconfidence_error",
        dtype=None,
    ):
        super().__init__(
            num_bins,
            confidence_weighted,
            from_logits=from_logits,
            axis=axis,
            ignore_class=ignore_class,
            name=name,
            dtype=dtype,
        )
