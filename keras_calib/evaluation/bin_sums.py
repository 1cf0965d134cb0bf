"""Calibration errors from whole arrays: NumPy, float64, no approximation.

The streaming metrics are compared with these, and what is computed once per
epoch or per report comes from here.
"""

import numpy as np

from keras_calib.evaluation.rules import equal_mass_index
from keras_calib.ops.binning import bin_index


def top_label(labels, probabilities):
    """Confidence and correctness of each prediction, as float64.

    Args:
        labels: class ids, shape `(n,)`.
        probabilities: shape `(n, num_classes)`.

    Returns:
        confidence: in the dtype of `probabilities`, because a value at the
            edge of a bin must stay there, `(n,)`.
        correct: 1.0 where the first largest probability is the label's.
    """
    predicted = probabilities.argmax(axis=-1)
    confidence = probabilities[np.arange(len(predicted)), predicted]
    return confidence, (predicted == labels).astype("float64")


def expected_calibration_error(
    confidence, correct, num_bins=15, binning="width", norm=1, weight=None
):
    """Calibration error of confidences, exact for every binning and norm.

    Args:
        confidence: in `[0, 1]`, shape `(n,)`.
        correct: 0 or 1, shape `(n,)`.
        num_bins: int.
        binning: `"width"` or `"mass"`.
        norm: 1, 2 or `inf`.
        weight: `None`, or sample weights, shape `(n,)`.

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
    if len(confidence) == 0:
        return 0.0
    if binning == "width":
        index = bin_index(np.asarray(confidence), num_bins)
    else:
        index = equal_mass_index(np.asarray(confidence), num_bins, weight)
    count, residual = residual_sums(
        confidence, correct, index, num_bins, weight
    )
    return error_from_sums(count, residual, norm)


def residual_sums(confidence, correct, index, num_bins, weight=None):
    """Weight and `sum (confidence - correct)` of each bin, float64."""
    residual = np.asarray(confidence, "float64") - correct
    if weight is not None:
        residual = residual * weight
    return (
        np.bincount(index, weights=weight, minlength=num_bins).astype(float),
        np.bincount(index, weights=residual, minlength=num_bins),
    )


def error_from_sums(count, residual, norm):
    """`(sum_m n_m / n |C_m - A_m|^p)^(1/p)`; 0.0 where nothing was counted."""
    used = count > 0
    if not used.any():
        return 0.0
    count, size = count[used], np.abs(residual[used])
    if norm == 1:
        return float(size.sum() / count.sum())
    gap = size / count
    if norm == float("inf"):
        return float(gap.max())
    return float(np.sqrt((size * gap).sum() / count.sum()))


def negative_log_likelihood(labels, log_probabilities, weight=None):
    """Mean `-log p_y`, in nats."""
    chosen = log_probabilities[np.arange(len(labels)), labels]
    return float(-np.average(chosen.astype("float64"), weights=weight))
