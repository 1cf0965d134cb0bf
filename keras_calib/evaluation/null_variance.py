"""Variances of losses that the predictions themselves promise.

Where errors are rare, a sample may hold none of them, and its own variance is
far too small. The predictions say how often errors come, and so how much the
losses of samples differ. See `unseen_variance` of `mean_interval`.
"""

import math

import numpy as np

from keras_calib.inputs.arrays import TINY
from keras_calib.inputs.large import by_rows


def loss_variance(data):
    """Variance of the NLL of each row if its label is drawn from `p`.

        sum_k p_k (log p_k + H)^2,    H = -sum_k p_k log p_k

    Args:
        data: `Predictions`.

    Returns:
        float64, `(n,)`; `None` for soft labels, which are not drawn.
    """
    if data.targets is not None:
        return None
    return by_rows(_loss_variance, data.probabilities, data.log_probabilities)


def difference_variance(one, other):
    """Variance of the difference of two losses if both models are as good.

    The difference of the NLL of a label is `d(y) = log p(y) - log p'(y)`. Its
    mean is at least 0 if labels are drawn from `p`, and at most 0 if they are
    drawn from `p'`. Between the two are labels of which both models have the
    same expected NLL,

        y ~ q = (1 - l) p + l p',    sum_i w_i E_q d_i(y) = 0

    Args:
        one: `Predictions` of the model with the probabilities `p`.
        other: of the model with `p'`, of the same rows.

    Returns:
        float64, `Var_q d(y)` of each row, `(n,)`; `None` for soft labels, which
        are not drawn.
    """
    if one.targets is not None:
        return None
    moments = by_rows(
        _moments,
        one.probabilities,
        one.log_probabilities,
        other.probabilities,
        other.log_probabilities,
    )
    mean, square, other_mean, other_square = moments.T
    weights = np.ones(len(mean)) if one.weights is None else one.weights
    # Rounding must not change a sign.
    gain = max(float(weights @ mean), 0.0)
    loss = max(float(-weights @ other_mean), 0.0)
    share = gain / (gain + loss) if gain + loss > 0 else 0.5
    mean = (1 - share) * mean + share * other_mean
    square = (1 - share) * square + share * other_square
    return np.maximum(square - mean**2, 0.0)


def _loss_variance(probabilities, log_probabilities):
    p = probabilities.astype("float64")
    log_p = _finite(log_probabilities)
    log_p -= np.einsum("nk,nk->n", p, log_p)[:, None]
    return np.einsum("nk,nk,nk->n", p, log_p, log_p)


def _moments(p, log_p, other_p, other_log_p):
    """Columns: mean and mean square of `d(y)` under `p`, and under `p'`."""
    difference = _finite(log_p) - _finite(other_log_p)
    square = difference**2
    return np.stack(
        [
            np.einsum("nk,nk->n", q.astype("float64"), values)
            for q in (p, other_p)
            for values in (difference, square)
        ],
        axis=1,
    )


def _finite(log_probabilities):
    """Probabilities of 0 are taken for the smallest ones, as elsewhere."""
    return np.maximum(log_probabilities.astype("float64"), math.log(TINY))
