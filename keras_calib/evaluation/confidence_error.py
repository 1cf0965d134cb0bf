"""Calibration error of confidences, from whole arrays, in float64."""

import numpy as np

from keras_calib.ops.bin_errors import Bins
from keras_calib.ops.bin_errors import calibration_error
from keras_calib.ops.binning import bin_index


def expected_calibration_error(
    confidence: np.ndarray,
    correct: np.ndarray,
    num_bins: int = 15,
    *,
    norm: float = 1,
    weights: np.ndarray | None = None,
) -> float:
    """Calibration error of confidences over bins of equal width.

    Args:
        confidence: in `[0, 1]`, shape `(n,)`.
        correct: 0 or 1, shape `(n,)`.
        num_bins: int.
        norm: 1, 2 or `inf`.
        weights: `None`, or sample weights, shape `(n,)`.

    Returns:
        float in `[0, 1]`; 0.0 without samples.

    Example:
        >>> import numpy as np
        >>> confidence = np.array([0.32, 0.38, 0.82, 0.88])
        >>> correct = np.array([1.0, 0.0, 0.0, 0.0])
        >>> error = expected_calibration_error(confidence, correct, num_bins=10)
        >>> round(error, 6)
        0.5
    """
    confidence = np.asarray(confidence)
    index = bin_index(confidence, num_bins)
    residual = np.subtract(confidence, correct, dtype="float64")
    if weights is not None:
        residual = residual * weights
    sums = (np.bincount(index, each, num_bins) for each in (weights, residual))
    weight, residual = sums
    return float(calibration_error(Bins(weight, residual, xp=np), norm))
