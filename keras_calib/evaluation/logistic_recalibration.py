"""Calibration slope and intercepts: logistic regression of the outcomes."""

import math

import numpy as np

from keras_calib.inputs.arrays import sigmoid
from keras_calib.solvers.label_shift import chi_square_tail
from keras_calib.solvers.logistic import binary_nll
from keras_calib.solvers.logistic import fit_logistic

# Of an information matrix beyond it, no digit of the inverse is right.
MOST_CONDITION = 1e13


def logistic_recalibration(
    log_odds: np.ndarray,
    outcome: np.ndarray,
    weights: np.ndarray | None = None,
) -> tuple[dict[str, float], list[str]]:
    """Fit the outcomes to the log-odds `z` of the predictions, two ways.

        joint:   logit P(y = 1) = b0 + b1 z     slope b1, joint intercept b0
        offset:  logit P(y = 1) = a0 + z        calibration intercept a0

    A calibrated model has b1 = 1 and b0 = a0 = 0. With the log-likelihood l,

        2 (l(b0, b1) - l(0, 1)) ~ chi2_2,  2 (l(b0, b1) - l(a0, 1)) ~ chi2_1

    Standard errors are those of the inverse information. What has no optimum
    is NaN, and not the last iterate of a fit that diverges.

    Args:
        log_odds: float64, finite, `(n,)`.
        outcome: 0 or 1, `(n,)`.
        weights: `None`, or weights with sum n, `(n,)`.

    Returns:
        found: dict of `calibration_slope`, `joint_intercept` and
            `calibration_intercept`, each with `_se`; `slope_p`, two-sided
            for a slope of 1; `likelihood_ratio` and
            `slope_likelihood_ratio`, each with `_p`.
        reasons: in words, why some are NaN.

    Example:
        >>> import numpy as np
        >>> p = np.repeat([0.2, 0.8], [4, 6])
        >>> y = np.array([1, 0, 0, 0, 1, 1, 1, 1, 0, 0])
        >>> found, _ = logistic_recalibration(np.log(p / (1 - p)), y)
        >>> round(found["calibration_slope"], 4)  # ln 6 / (4 ln 2)
        0.6462

    Reference:
        Cox, "Two further applications of a model for binary regression",
        Biometrika, 1958; Van Calster et al., "A calibration hierarchy for risk
        models", Journal of Clinical Epidemiology, 2016, Section 3.
    """
    outcome = np.asarray(outcome, "float64")
    found = dict.fromkeys(
        (
            "calibration_slope",
            "calibration_slope_se",
            "slope_p",
            "joint_intercept",
            "joint_intercept_se",
            "calibration_intercept",
            "calibration_intercept_se",
            "likelihood_ratio",
            "likelihood_ratio_p",
            "slope_likelihood_ratio",
            "slope_likelihood_ratio_p",
        ),
        math.nan,
    )
    if outcome.min() == outcome.max():
        happened = "always" if outcome[0] else "never"
        return found, [
            f"the event {happened} happened, so that slope and intercepts "
            "have no finite optimum"
        ]
    weights = np.ones(len(outcome)) if weights is None else weights
    ones = np.ones((len(outcome), 1))
    theta, error, offset_loss = _fit(ones, outcome, weights, [0.0], log_odds)
    found["calibration_intercept"] = theta[0]
    found["calibration_intercept_se"] = error[0]
    reason = _no_slope(log_odds, outcome)
    if reason:
        return found, [reason]
    features = np.column_stack([ones, log_odds])
    theta, error, loss = _fit(features, outcome, weights, [theta[0], 1.0])
    if np.isnan(error).any():
        return found, [
            "the log-odds hardly differ, or nearly separate events from "
            "non-events, so that the slope cannot be computed"
        ]
    found["joint_intercept"], found["calibration_slope"] = theta
    found["joint_intercept_se"], found["calibration_slope_se"] = error
    found["slope_p"] = two_sided((theta[1] - 1) / error[1])
    null = binary_nll(log_odds, outcome, weights)
    n = len(outcome)
    # Rounding must not make them negative.
    ratio = max(2 * n * (null - loss), 0.0)
    slope_ratio = max(2 * n * (offset_loss - loss), 0.0)
    found["likelihood_ratio"] = ratio
    found["likelihood_ratio_p"] = chi_square_tail(ratio, 2)
    found["slope_likelihood_ratio"] = slope_ratio
    found["slope_likelihood_ratio_p"] = chi_square_tail(slope_ratio, 1)
    return {name: float(value) for name, value in found.items()}, []


def two_sided(z: float) -> float:
    """`P(|Z| >= |z|)` of a standard normal Z."""
    return math.erfc(abs(z) / math.sqrt(2))


def _fit(features, outcome, weights, start, offset=0.0):
    """Coefficients, their standard errors (NaN if singular), mean loss."""
    theta, loss = fit_logistic(features, outcome, start, weights, offset=offset)
    q = sigmoid(features @ theta + offset)
    information = (features * (weights * q * (1 - q))[:, None]).T @ features
    # Entries may differ by orders of magnitude: scale each to 1.
    unit = np.sqrt(np.diag(information))
    error = np.full(len(theta), math.nan)
    if unit.min() > 0:
        scaled = information / unit / unit[:, None]
        if np.linalg.cond(scaled) < MOST_CONDITION:
            error = np.sqrt(np.diag(np.linalg.inv(scaled))) / unit
    return theta, error, loss


def _no_slope(log_odds, outcome):
    """Why the slope has no optimum, or `None`."""
    if log_odds.min() == log_odds.max():
        return "all probabilities are equal, so that there is no slope"
    events, others = log_odds[outcome == 1], log_odds[outcome == 0]
    if events.min() >= others.max() or events.max() <= others.min():
        return (
            "a threshold separates events from non-events, so that the slope "
            "is infinite"
        )
    return None
