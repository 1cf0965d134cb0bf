"""Debiased calibration error: without what few samples add by chance."""

import math

import keras
from keras import ops

from keras_calib.metrics._binned import BinnedMetric


@keras.saving.register_keras_serializable(package="keras_calib")
class DebiasedCalibrationError(BinnedMetric):
    """Debiased calibration error, streaming.

    A binned error is above 0 for a calibrated model, because the accuracy of
    a bin is noisy. With norm 2 the noise is subtracted, bin by bin:
    `D = sum_m n_m / n [(C_m - A_m)^2 - A_m (1 - A_m) / (n_m - 1)]` over bins of
    at least two samples; the value is `sqrt(max(0, D))`, and `signed()` gives
    `D`, which can be averaged over runs. With norm 1 the value is
    `2 ECE - E[ECE]` with accuracies redrawn from normal distributions, in
    closed form; it may be negative.

    With weights, a bin stands for `(sum w)^2 / sum w^2` samples.

    With `binning="width"` the value is exact. With `"mass"`, as published,
    edges are read from a histogram of 1964 fixed cells. With
    `d = max_cell n_cell / n`, `D` differs from the exact value by at most
    `4 (num_bins - 1) (d + num_bins / n) + num_bins / (2 n)`, and the value with
    norm 1 by at most
    `2 (num_bins - 1) (d + num_bins / n) + 0.4 sqrt(num_bins / n)`. The exact
    value comes from `calibration_errors` and `CalibrationMonitor`.

    Args:
        num_bins: int, how many bins.
        binning: `"mass"` or `"width"`.
        norm: 2 or 1.
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.

    Raises:
        ValueError: if an argument is out of its range, or for bad input.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.DebiasedCalibrationError(binning="width")
        >>> metric.update_state([0, 0, 1], [[0.9, 0.1]] * 3)
        >>> round(float(metric.signed()), 4)  # (0.9 - 2/3)^2 - 2/9 / 2
        -0.0567
        >>> float(metric.result())
        0.0

    Reference:
        Kumar et al., "Verified Uncertainty Calibration", NeurIPS 2019,
        section 4. Norm 1: its section 4 without the sampling.
    """

    def __init__(
        self,
        num_bins=15,
        binning="mass",
        norm=2,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name="debiased_calibration_error",
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

    def per_event(self, confidence, correct, weight):
        residual = weight * (confidence - correct)
        return [weight, residual, weight * correct, weight**2]

    def signed(self):
        """The estimate before a square root: it may be negative."""
        weight, residual, hits, squares = self.bins()
        samples = ops.divide_no_nan(weight**2, squares)
        accuracy = ops.divide_no_nan(hits, weight)
        gap = ops.divide_no_nan(residual, weight)
        variance = ops.maximum(accuracy * (1 - accuracy), 0.0)
        if self.norm == 2:
            used = samples > 1.99
            noise = variance / ops.where(used, samples - 1, 1.0)
            # Not a plain 0: a NaN must come through.
            terms = ops.where(used, gap**2 - noise, 0.0 * gap)
        else:
            deviation = ops.sqrt(ops.divide_no_nan(variance, samples))
            t = ops.divide_no_nan(gap, deviation)
            density = ops.exp(-0.5 * t**2) / math.sqrt(2 * math.pi)
            folded = 2 * deviation * density + gap * ops.erf(t / math.sqrt(2))
            folded = ops.where(deviation > 0, folded, ops.abs(gap))
            terms = 2 * ops.abs(gap) - folded
        return ops.divide_no_nan(ops.sum(weight * terms), ops.sum(weight))

    def result(self):
        if self.norm == 1:
            return self.signed()
        return ops.sqrt(ops.maximum(self.signed(), 0.0))
