"""Logistic regression for Platt scaling and beta maps, to the optimum."""

import numpy as np

from keras_calib.inputs.arrays import sigmoid
from keras_calib.solvers.blocks import normalized_weights
from keras_calib.solvers.newton import dense_step
from keras_calib.solvers.newton import newton


def fit_logistic(
    features, targets, start, weights=None, lower=-np.inf, offset=0.0
):
    """Minimize the mean of `log(1 + exp(s)) - t s`.

    The log-odds are `s = features @ theta + offset`.

    Args:
        features: float64, `(n, size)`.
        targets: in `[0, 1]`, `(n,)`.
        start: `(size,)`, within the bounds, as 0 is.
        weights: `None`, or weights >= 0, `(n,)`.
        lower: lower bound of `theta`, a float or `(size,)`.
        offset: added to the log-odds, a float or `(n,)`.

    Returns:
        theta: `(size,)`.
        value: the minimum.
    """
    weights = normalized_weights(weights, len(targets))
    start = np.array(start, "float64")

    def evaluate(theta):
        s = features @ theta + offset
        value = float(weights @ (np.logaddexp(0.0, s) - targets * s))
        return value, features.T @ (weights * (sigmoid(s) - targets))

    def find_step(theta, gradient):
        q = sigmoid(features @ theta + offset)
        hessian = (features * (weights * q * (1 - q))[:, None]).T @ features
        return dense_step(theta, gradient, hessian, lower)

    # Where large features saturate every row, the Hessian vanishes: start at 0.
    start = min(start, 0.0 * start, key=lambda theta: evaluate(theta)[0])
    found = newton(
        evaluate, find_step, start, lower=lower, least_decrease=1e-15
    )
    return found.parameters, found.value


def binary_nll(log_odds, targets, weights):
    """Mean of `log(1 + exp(s)) - t s`."""
    losses = np.logaddexp(0.0, log_odds) - targets * log_odds
    return float(np.average(losses, weights=weights))


def platt_targets(labels, weights):
    """Targets that keep a margin from 0 and 1, so that an optimum exists.

    `(n1 + 1) / (n1 + 2)` for samples of class 1, `1 / (n0 + 2)` for others.

    Reference:
        Platt, "Probabilistic Outputs for Support Vector Machines", 1999,
        Section 2.2.
    """
    positive = float(weights[labels == 1].sum())
    negative = float(weights[labels == 0].sum())
    return np.where(
        labels == 1, (positive + 1) / (positive + 2), 1 / (negative + 2)
    )
