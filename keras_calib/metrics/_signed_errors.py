"""Overconfidence and underconfidence: the two parts of ECE."""

from typing import Any

import keras

from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_flags
from keras_calib.metrics._binned import BinnedMetric
from keras_calib.ops.bin_errors import signed_error


class _OneSided(BinnedMetric):
    """The part of ECE in which the gap has one sign."""

    settings = ("num_bins", "confidence_weighted")
    num_columns = 3
    sign = 1

    def __init__(
        self,
        *,
        num_bins: int = 15,
        confidence_weighted: bool = False,
        **kwargs: Any,
    ) -> None:
        require_flags(confidence_weighted=confidence_weighted)
        for name in ("binning", "norm"):
            require(
                name not in kwargs,
                "The gaps have signs: their bins are of equal width, and they "
                f"are added up. Received: {name}={kwargs.get(name)!r}.",
            )
        super().__init__(num_bins=num_bins, **kwargs)
        self.confidence_weighted = confidence_weighted

    def result(self) -> Tensor:
        return signed_error(self.bins(), self.sign, self.confidence_weighted)


@keras.saving.register_keras_serializable(package="keras_calib")
class OverconfidenceError(_OneSided):
    """The part of ECE where confidence is above accuracy, streaming, exact.

        sum_m n_m / n max(0, confidence_m - accuracy_m)

    The sum is over bins of equal width. `OverconfidenceError` plus
    `UnderconfidenceError` is `ExpectedCalibrationError`.

    Args:
        num_bins: int, number of bins.
        confidence_weighted: whether to multiply each gap by `confidence_m`,
            which is the overconfidence error (OE) of Thulasidasan et al.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of range or the input is invalid.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.OverconfidenceError()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.4

    Reference:
        Thulasidasan et al., "On Mixup Training", NeurIPS 2019, Section 3.1.
    """


@keras.saving.register_keras_serializable(package="keras_calib")
class UnderconfidenceError(_OneSided):
    """The part of ECE where confidence is below accuracy, streaming, exact.

        sum_m n_m / n max(0, accuracy_m - confidence_m)

    The sum is over bins of equal width; see `OverconfidenceError`.

    Args:
        num_bins: int, number of bins.
        confidence_weighted: whether to multiply each gap by `confidence_m`.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of range or the input is invalid.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.UnderconfidenceError()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.05

    Reference:
        Compare Thulasidasan et al., NeurIPS 2019, Section 3.1.
    """

    sign = -1
