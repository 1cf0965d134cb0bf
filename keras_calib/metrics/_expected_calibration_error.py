"""Expected calibration error: the mean gap of confidence and accuracy."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs.rows import Rows
from keras_calib.metrics._binned import BinnedMetric
from keras_calib.ops.bin_errors import INFINITY
from keras_calib.ops.bin_errors import calibration_error


@keras.saving.register_keras_serializable(package="keras_calib")
class ExpectedCalibrationError(BinnedMetric):
    """Expected calibration error (ECE) of the predicted class, streaming.

        (sum_m n_m / n |confidence_m - accuracy_m|^p)^(1/p)

    The sum is over bins of confidence. Bins are right-closed; 0 is in the
    first bin and 1 in the last. The value does not depend on how the data is
    split into batches.

    With `binning="mass"` the bins contain equal numbers of samples. Their edges
    are edges of 1964 fixed cells, so the state is small. With norm 1 the value
    differs from the exact one by at most
    `2 (num_bins - 1) max_cell n_cell / n`, with norm 2 its square by at most
    `4 (num_bins - 1) max_cell n_cell / n`; on real networks by less than 1e-3.
    Cells with one distinct value cause no error. `calibration_errors` and
    `CalibrationMonitor` compute the exact value.

    A calibrated model has an ECE above 0, too, because the accuracies of bins
    are noisy: its noise floor, `calibration_errors(..., floor=True)`.

    Predictions of shape `(..., 1)` are those of one sigmoid unit.

    Args:
        num_bins: int, number of bins.
        binning: `"width"` (equal width) or `"mass"` (equal mass, also called
            adaptive ECE).
        norm: the power `p`: 1 (ECE), 2 (RMS calibration error) or
            `float("inf")` (maximum calibration error).
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of range, or the labels are, or if
            `from_logits=False` and the predictions are not probabilities. In
            compiled code, where values are unknown, the result is NaN instead.

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

    settings: tuple[str, ...] = ("num_bins", "binning", "norm")

    def result(self) -> Tensor:
        return calibration_error(self.bins(), self.norm)


@keras.saving.register_keras_serializable(package="keras_calib")
class MaximumCalibrationError(ExpectedCalibrationError):
    """Maximum calibration error (MCE): the largest gap of a bin, streaming.

        max_m |confidence_m - accuracy_m|

    The maximum is over bins that contain a sample. It can be that of a bin
    with few samples, so compare values only between data sets of equal size.

    Args:
        num_bins: int, number of bins.
        binning: `"width"` or `"mass"`; see `ExpectedCalibrationError`.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of range or the input is invalid.

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
class AdaptiveCalibrationError(ExpectedCalibrationError):
    """Adaptive calibration error (AECE): ECE over bins of equal mass.

    The same as `ExpectedCalibrationError(binning="mass")`, with the same bound
    of the difference from the exact value.

    Equal confidences are in the same bin, so the order of the data does not
    matter.

    Args:
        num_bins: int, number of bins.
        norm: 1 or 2.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of range or the input is invalid.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.AdaptiveCalibrationError(num_bins=2)
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.45

    Reference:
        Nguyen and O'Connor, "Posterior calibration and exploratory analysis
        for natural language processing models", EMNLP 2015, Section 4.
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

    The confidence is `p(y = 1)`, in [0, 1], instead of the probability of the
    predicted class, as in `calibration_curve` of scikit-learn and in the binary
    errors of torchmetrics and netcal. See `ExpectedCalibrationError` for the
    formula and the bounds.

    Args:
        num_bins: int, number of bins.
        binning: `"width"` or `"mass"`; see `ExpectedCalibrationError`.
        norm: 1, 2 or `float("inf")`.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of range or the input is invalid; the
            shape of the predictions must be `(..., 1)` or `(..., 2)`.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.BinaryCalibrationError()
        >>> metric.update_state([1, 0], [[0.9], [0.4]])
        >>> round(float(metric.result()), 3)
        0.25

    Reference:
        Nguyen and O'Connor, EMNLP 2015, Section 3.
    """

    numpy_events = False

    def events(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        if rows.num_classes != 2:
            raise ValueError(
                "A binary classifier has one sigmoid unit or two classes. "
                f"Received: predictions with {rows.num_classes} classes. Use "
                "`ClasswiseCalibrationError`."
            )
        confidence = ops.where(
            rows.faulty, float("nan"), rows.probabilities[:, 1]
        )
        correct = ops.cast(ops.equal(rows.labels, 1), confidence.dtype)
        return confidence, correct, rows.weights
