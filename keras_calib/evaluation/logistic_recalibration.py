"""Calibration slope and intercepts: logistic regression of the outcomes."""

import math
from typing import NamedTuple

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

    Standard errors are those of the inverse information `H^-1`. Weights that
    are not all equal make them larger: with the fitted `q` and the rows `x` of
    the fit, their squares are the diagonal of

        H^-1 (sum_i w_i^2 v_i x_i x_i^T) H^-1

    for `v_i = q_i (1 - q_i)`, or `v_i = (y_i - q_i)^2` where that is larger.
    The first knows no weights that depend on the outcome, and the second is too
    small if few rows have most of the weight. The likelihood ratios are then
    divided by what weights increase their means by. What has no optimum is NaN,
    and not the last iterate of a fit that diverges.

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
        models", Journal of Clinical Epidemiology, 2016, Section 3. For weights:
        White, "Maximum likelihood estimation of misspecified models",
        Econometrica, 1982; Rotnitzky and Jewell, "Hypothesis testing of
        regression parameters in semiparametric generalized linear models for
        cluster correlated data", Biometrika, 1990.
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
    offset = _fit(ones, outcome, weights, [0.0], log_odds)
    found["calibration_intercept"] = offset.theta[0]
    found["calibration_intercept_se"] = offset.error[0]
    reason = _no_slope(log_odds, outcome)
    if reason:
        return found, [reason]
    features = np.column_stack([ones, log_odds])
    joint = _fit(features, outcome, weights, [offset.theta[0], 1.0])
    if np.isnan(joint.error).any():
        return found, [
            "the log-odds hardly differ, or nearly separate events from "
            "non-events, so that the slope cannot be computed"
        ]
    found["joint_intercept"], found["calibration_slope"] = joint.theta
    found["joint_intercept_se"], found["calibration_slope_se"] = joint.error
    found["slope_p"] = two_sided((joint.theta[1] - 1) / joint.error[1])
    null = binary_nll(log_odds, outcome, weights)
    # Rounding must not make them negative.
    twice = 2 * len(outcome)
    ratio = max(twice * (null - joint.loss), 0.0) / joint.growth
    slope_ratio = max(twice * (offset.loss - joint.loss), 0.0)
    slope_ratio /= joint.last_growth
    found["likelihood_ratio"] = ratio
    found["likelihood_ratio_p"] = chi_square_tail(ratio, 2)
    found["slope_likelihood_ratio"] = slope_ratio
    found["slope_likelihood_ratio_p"] = chi_square_tail(slope_ratio, 1)
    return {name: float(value) for name, value in found.items()}, []


def two_sided(z: float) -> float:
    """`P(|Z| >= |z|)` of a standard normal Z."""
    return math.erfc(abs(z) / math.sqrt(2))


class _Fit(NamedTuple):
    """A logistic fit, and what weights do to its tests.

    Attributes:
        theta: coefficients, `(size,)`.
        error: their standard errors; NaN if the information is singular.
        loss: mean loss.
        growth: by how much weights increase the mean of a likelihood ratio
            against all coefficients, and against the last one; 1 if all
            weights are equal.
    """

    theta: np.ndarray
    error: np.ndarray
    loss: float
    growth: float = 1.0
    last_growth: float = 1.0


def _fit(features, outcome, weights, start, offset=0.0):
    """The `_Fit` of outcomes to features."""
    theta, loss = fit_logistic(features, outcome, start, weights, offset=offset)
    q = sigmoid(features @ theta + offset)
    variance = q * (1 - q)
    information = (features * (weights * variance)[:, None]).T @ features
    # Entries may differ by orders of magnitude: scale each to 1.
    unit = np.sqrt(np.diag(information))
    nothing = np.full(len(theta), math.nan)
    if not unit.min() > 0:
        return _Fit(theta, nothing, loss)
    scaled = information / unit / unit[:, None]
    if not np.linalg.cond(scaled) < MOST_CONDITION:
        return _Fit(theta, nothing, loss)
    inverse = np.linalg.inv(scaled)
    square = np.diag(inverse)
    if np.ptp(weights) == 0:
        return _Fit(theta, np.sqrt(square) / unit, loss)
    found = []
    for each in (variance, (outcome - q) ** 2):
        spread = (features * (weights**2 * each)[:, None]).T @ features
        growth = inverse @ (spread / unit / unit[:, None])
        found.append([*np.diag(growth @ inverse), growth.trace() / len(theta)])
    *robust, growth = np.max(found, axis=0)
    error = np.sqrt(robust) / unit
    return _Fit(theta, error, loss, growth, robust[-1] / square[-1])


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
