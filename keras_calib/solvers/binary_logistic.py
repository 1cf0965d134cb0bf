"""Logistic regression with two or three features, to the optimum."""

import numpy as np

from keras_calib.inputs.arrays import sigmoid


def fit_logistic(features, targets, start, weight=None, fixed=()):
    """Minimise the mean of `log(1 + exp(s)) - t s`, `s = features @ theta`.

    Newton with halved steps; where features are collinear, the smallest step.

    Args:
        features: float64, `(n, size)`.
        targets: in `[0, 1]`, `(n,)`.
        start: `(size,)`.
        weight: `None`, or weights >= 0, `(n,)`.
        fixed: indices of `theta` that stay at their start.

    Returns:
        theta: `(size,)`.
        value: the minimum.
    """
    share = np.ones(len(targets)) if weight is None else np.array(weight)
    share = share / share.sum()
    free = [i for i in range(len(start)) if i not in fixed]

    def value(theta):
        s = features @ theta
        return float(share @ (np.logaddexp(0.0, s) - targets * s))

    # Where large features make every row certain, there is no curvature to
    # follow: then from nothing.
    flat = np.array(start, "float64")
    flat[free] = 0.0
    theta = min(np.array(start, "float64"), flat, key=value)
    best = value(theta)
    for _ in range(100):
        q = sigmoid(features @ theta)
        x = features[:, free]
        gradient = x.T @ (share * (q - targets))
        if np.abs(gradient).max() < 1e-14:
            break
        hessian = (x * (share * q * (1 - q))[:, None]).T @ x
        # In units of each feature's own curvature.
        unit = np.sqrt(np.maximum(np.diag(hessian), 1e-300))
        hessian = hessian / unit / unit[:, None]
        step = np.zeros_like(theta)
        step[free] = (
            np.linalg.lstsq(hessian, gradient / unit, rcond=1e-12)[0] / unit
        )
        length = 1.0
        while value(theta - length * step) > best and length > 1e-9:
            length /= 2
        new = value(theta - length * step)
        if new > best:
            break
        theta = theta - length * step
        if best - new < 1e-16:
            break
        best = new
    return theta, min(best, value(theta))


def platt_targets(labels, weight=None):
    """Targets that keep a margin from 0 and 1, so that an optimum exists.

    Reference:
        Platt, "Probabilistic Outputs for Support Vector Machines", 1999,
        Section 2.2.
    """
    weight = np.ones(len(labels)) if weight is None else weight
    positive = float(weight[labels == 1].sum())
    negative = float(weight[labels == 0].sum())
    high = (positive + 1) / (positive + 2)
    low = 1 / (negative + 2)
    return np.where(labels == 1, high, low)
