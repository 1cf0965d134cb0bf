"""The class frequencies that a calibrated model assumes, for label shift."""

import numpy as np

from keras_calib.calibration._held_out import groups_from_zero
from keras_calib.calibration._held_out import losses_and_probabilities
from keras_calib.inputs.arrays import as_array
from keras_calib.solvers.blocks import TENSOR_BLOCK
from keras_calib.solvers.blocks import normalized_weights
from keras_calib.solvers.blocks import row_blocks


def source_prior(layer, rows):
    """The mean prediction on the calibration data, and how far it is off.

        s_k = mean_i p_ik
        bias = max_k |mean_i (p_ik - [y_i = k])| / e_k
        e_k  = sqrt(sum_i w_i^2 p_ik (1 - p_ik))

    The second is in standard errors; `w_i` are the weights of the mean.

    Args:
        layer: the fitted map.
        rows: `CalibrationRows`.

    Returns:
        dict with the keys `source_prior`, `source_num_samples` and `class_bias`
        of the record.
    """
    num_classes = max(2, rows.logits.shape[-1])
    weights = normalized_weights(rows.weights, len(rows.labels))
    mean, variance = np.zeros((2, num_classes))
    # Rows of a soft label are one sample: its weight is that of all of them.
    squares = np.zeros(len(rows.labels))
    squares[rows.first_rows] = (
        normalized_weights(rows.sample_weights, rows.num_samples) ** 2
    )
    for part in row_blocks(*rows.logits.shape, TENSOR_BLOCK):
        logits = as_array(layer(rows.logits[part])).astype("float64")
        _, p = losses_and_probabilities(logits, rows.labels[part])
        mean += weights[part] @ p
        variance += squares[part] @ (p * (1 - p))
    frequency = np.bincount(rows.labels, weights, num_classes)
    independent = 1 / squares.sum()
    if rows.group is not None:
        independent = (
            1 / (np.bincount(groups_from_zero(rows), weights) ** 2).sum()
        )
    found = prior_and_bias(mean, variance, frequency, rows.num_samples)
    # Without weights it is a whole number, but for rounding.
    return {**found, "source_num_samples": round(float(independent), 6)}


def prior_and_bias(mean, variance, frequency, num_rows):
    """Prior and bias of known sums.

    Args:
        mean: mean prediction of each class, `(num_classes,)`.
        variance: `sum_i w_i^2 p_ik (1 - p_ik)`, `(num_classes,)`.
        frequency: weighted frequency of each class, `(num_classes,)`.
        num_rows: number of rows.
    """
    away = np.abs(mean - frequency)
    error = np.sqrt(np.maximum(variance, 1 / num_rows**2))
    return {
        "source_prior": (mean / mean.sum()).tolist(),
        "class_bias": float((away / error).max()),
    }
