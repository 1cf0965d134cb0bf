"""Soft bins, of which every sample is a member to a degree, and their error.

    u_ij = softmax_j(-(c_i - x_j)^2 / temperature)

for confidences `c_i` and bin centers `x_j`. With the weight `S_j`, the mean
confidence `C_j` and the accuracy `A_j` of bin `j`, the two forms of the error
are, before the root and before the division by `sum_i w_i`:

    label:  sum_i w_i sum_j u_ij |A_j - c_i|^norm
    bin:    sum_j S_j |A_j - C_j|^norm

Every function takes backend tensors (and `keras.ops`) or NumPy arrays.
"""

import numpy as np
from keras import ops

from keras_calib.ops.subgradients import absolute


def memberships(confidence, centers, temperature):
    """The memberships `u_ij`, `(n, num_bins)`."""
    scores = (confidence[:, None] - centers) ** 2 / -temperature
    if not isinstance(scores, np.ndarray):
        return ops.softmax(scores, axis=-1)
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def soft_bin_sums(members, weights, *columns):
    """Sums of the weights and of each weighted column in every bin."""
    weighted = weights[:, None] * members
    return [
        _sum(weighted, 0),
        *(_sum(weighted * column[:, None], 0) for column in columns),
    ]


def bin_mean(total, size):
    """The mean in every bin, from two sums."""
    # Avoids 0 / 0 in empty bins. Bins above this weight are unchanged.
    xp = np if isinstance(size, np.ndarray) else ops
    return total / xp.where(size > 1e-12, size, xp.full_like(size, 1e-12))


def bin_error(size, confidence, accuracy, norm):
    """SB-ECE, eq. 11: `sum_j S_j |A_j - C_j|^norm`, from sizes and means."""
    return _sum(size * _power(accuracy - confidence, norm))


def label_error(members, weights, confidence, accuracy, norm):
    """SB-ECE, eq. 12: `sum_i w_i sum_j u_ij |A_j - c_i|^norm`."""
    gap = _power(accuracy - confidence[:, None], norm)
    return _sum(weights * _sum(members * gap, -1))


def _sum(x, axis=None):
    return (np if isinstance(x, np.ndarray) else ops).sum(x, axis=axis)


def _power(x, norm):
    if norm == 2:
        return x * x
    if isinstance(x, np.ndarray):
        return np.abs(x) ** norm
    return absolute(x) if norm == 1 else ops.power(absolute(x), norm)
