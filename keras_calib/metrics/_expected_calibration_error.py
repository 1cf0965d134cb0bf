"""Expected calibration error: the mean gap of confidence and accuracy."""

from typing import Any

import keras
from keras import ops

from keras_calib.metrics._binned import BinnedMetric
from keras_calib.ops.bin_errors import INFINITY


@keras.saving.register_keras_serializable(package="keras_calib")
class ExpectedCalibrationError(BinnedMetric):
    """Expected calibration error (ECE) of the predicted class, streaming.

    `(sum_m n_m / n |confidence_m - accuracy_m|^p)^(1/p)` over bins of
    confidence. Bins are right-closed; 0 is in the first, 1 in the last. The
    value does not depend on how the data is cut into batches.

    With `binning="mass"` the bins hold equal numbers of samples. Their edges
    are read from a histogram of 1964 fixed cells, so that the state stays
    small; with norm 1 the value differs from the exact one by at most
    `2 (num_bins - 1) max_cell n_cell / n`, and with norm 2 its square by at
    most `4 (num_bins - 1) max_cell n_cell / n`; on real networks by less than
    1e-3. A cell that holds one distinct value adds no error. The exact value
    comes from `calibration_errors` and `CalibrationMonitor`.

    Predictions of shape `(..., 1)` are read as one sigmoid unit.

    Args:
        num_bins: int, how many bins.
        binning: `"width"` (equal width) or `"mass"` (equal mass, also called
            adaptive ECE).
        norm: the power `p`: 1 (ECE), 2 (RMS calibration error) or
            `float("inf")` (maximum calibration error).
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of its range; where the values can be
            seen, if predictions are no probabilities although
            `from_logits=False`, or labels are out of range. In compiled code
            the result is NaN instead.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.ExpectedCalibrationError()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.45

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        eq. 3 and 5. Norm 2 and equal mass: Kumar et al., "Verified
        Uncertainty Calibration", NeurIPS 2019, Definition 2.1.
    """

    settings = ("num_bins", "binning", "norm")

    def __init__(
        self,
        *,
        num_bins: int = 15,
        binning: str = "width",
        norm: float = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_bins=num_bins, binning=binning, norm=norm, **kwargs
        )


@keras.saving.register_keras_serializable(package="keras_calib")
class MaximumCalibrationError(BinnedMetric):
    """Maximum calibration error (MCE): the largest gap of any bin.

    `max_m |confidence_m - accuracy_m|` over bins that hold a sample. A bin
    with few samples decides as much as any other: compare values only between
    sets of equal size.

    Args:
        num_bins: int, how many bins.
        binning: `"width"`, or `"mass"` with edges from a histogram of 1964
            cells.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of its range, or for bad input.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.MaximumCalibrationError()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.8

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        eq. 5.
    """

    settings = ("num_bins", "binning")

    def __init__(
        self, *, num_bins: int = 15, binning: str = "width", **kwargs: Any
    ) -> None:
        super().__init__(
            num_bins=num_bins, binning=binning, norm=INFINITY, **kwargs
        )


@keras.saving.register_keras_serializable(package="keras_calib")
class AdaptiveCalibrationError(BinnedMetric):
    """Adaptive calibration error (AECE): ECE over bins of equal mass.

    `ExpectedCalibrationError(binning="mass")`, with the same bound: edges come
    from a histogram of 1964 fixed cells; with norm 1 the value differs from
    the exact one by at most `2 (num_bins - 1) max_cell n_cell / n`, with norm
    2 its square by at most twice that. The exact value comes from
    `calibration_errors` and `CalibrationMonitor`.

    Equal confidences stay in one bin, so that the order of the data does not
    matter.

    Args:
        num_bins: int, how many bins.
        norm: 1 or 2.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of its range, or for bad input.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.AdaptiveCalibrationError(num_bins=2)
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.45

    Reference:
        Nguyen and O'Connor, "Posterior calibration and exploratory analysis
        for natural language processing models", EMNLP 2015, section 4.
    """

    settings = ("num_bins", "norm")
    norms = (1, 2)

    def __init__(
        self, *, num_bins: int = 15, norm: float = 1, **kwargs: Any
    ) -> None:
        super().__init__(num_bins=num_bins, binning="mass", norm=norm, **kwargs)


@keras.saving.register_keras_serializable(package="keras_calib")
class BinaryCalibrationError(ExpectedCalibrationError):
    """Calibration error of the positive class of a binary classifier.

    The confidence is `p(y = 1)` on all of [0, 1], not that of the predicted
    class: what scikit-learn's `calibration_curve` and the binary errors of
    torchmetrics and netcal look at. Streamed as in `ExpectedCalibrationError`.

    Args:
        num_bins: int, how many bins.
        binning: `"width"`, or `"mass"` with edges from a histogram of 1964
            cells; bounds as in `ExpectedCalibrationError`.
        norm: 1, 2 or `float("inf")`.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of its range, or for bad input;
            predictions must be `(..., 1)` or `(..., 2)`.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.BinaryCalibrationError()
        >>> metric.update_state([1, 0], [[0.9], [0.4]])
        >>> round(float(metric.result()), 3)
        0.25

    Reference:
        Nguyen and O'Connor, EMNLP 2015, section 3.
    """

    numpy_events = False

    def events(self, y_true, y_pred, sample_weight=None):
        rows = self.rows(y_true, y_pred, sample_weight)
        if rows.num_classes != 2:
            raise ValueError(
                "A binary classifier gives one sigmoid unit or two classes. "
                f"Received: predictions with {rows.num_classes} classes. Use "
                "`ClasswiseCalibrationError`."
            )
        confidence = ops.where(
            rows.faulty, float("nan"), rows.probabilities[:, 1]
        )
        correct = ops.cast(ops.equal(rows.labels, 1), confidence.dtype)
        return confidence, correct, rows.weights
