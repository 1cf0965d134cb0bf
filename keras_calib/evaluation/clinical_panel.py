"""`clinical_panel`: what medicine reports about the risk of an event."""

import math
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib._warning import warn
from keras_calib.evaluation.calibration_index import SMOOTHERS
from keras_calib.evaluation.calibration_index import calibration_index
from keras_calib.evaluation.decisions import net_benefit
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.logistic_recalibration import logistic_recalibration
from keras_calib.evaluation.logistic_recalibration import two_sided
from keras_calib.evaluation.named_errors import INDICES
from keras_calib.evaluation.named_errors import RECALIBRATION
from keras_calib.inputs.arguments import are_numbers
from keras_calib.inputs.arguments import is_integer
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_fraction
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.label_rules import refuse_no_rows
from keras_calib.inputs.label_rules import refuse_soft_labels
from keras_calib.inputs.predictions import Predictions
from keras_calib.inputs.predictions import read_predictions

# Probabilities of 0 and 1 have no log-odds.
CLIP = 1e-12
# A logit beyond it is that of a class that is ruled out.
RULED_OUT = 1e29


def clinical_panel(
    labels: ArrayLike,
    probabilities: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    positive_class: int = 1,
    thresholds: Sequence[float] = (0.25, 0.5, 0.75),
    smoother: str = "loess",
    from_logits: bool = False,
    axis: int = -1,
    ignore_class: int | None = None,
    num_draws: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Calibration of the probability of one event, as medicine reports it.

    The event is that the label is `positive_class`; with more than two classes
    it is one class against the rest. `p` is its probability, `z` the log-odds,
    `y` is 1 where it happened.

        joint fit     logit P(y = 1) = b0 + b1 z
        offset fit    logit P(y = 1) = a0 + z
        in the large  mean y - mean p
        Spiegelhalter z = sum w (y - p)(1 - 2p)
                          / sqrt(sum w^2 (1 - 2p)^2 p (1 - p))
        ICI           mean |f(p) - p|, f a smooth curve of y by p
        net benefit   TP/n - FP/n t/(1 - t), treated if p >= t

    The fits clip `p` to [1e-12, 1 - 1e-12]. Log-odds from logits keep more
    digits than those of saturated probabilities. Rows are taken for
    independent: for several rows of a patient, or the pixels of an image,
    standard errors and p-values are too small.

    Args:
        labels: class ids, `(...)`, or one-hot rows, `(..., num_classes)`.
        probabilities: `(..., num_classes)`; `(..., 1)` or `(n,)` for one
            sigmoid unit. NumPy arrays or tensors.
        sample_weight: `None`, or weights that broadcast from the left. They are
            brought to a sum of the number of rows. Unequal ones increase the
            standard errors; they are not taken for repetitions of rows.
        positive_class: int, the class that is the event.
        thresholds: of the net benefit, each in (0, 1).
        smoother: `"loess"`, of degree 2 with a span of .75; or `"isotonic"`,
            which has no width to choose and a higher noise floor.
        from_logits: whether `probabilities` are logits.
        axis: the class axis.
        ignore_class: rows with this label are ignored.
        num_draws: int, sets of labels drawn for the noise floor of the ICI; 0
            for none.
        seed: int; the same seed draws the same labels.

    Returns:
        dict: `num_rows`; `event_rate` and `mean_probability`, the means of `y`
        and `p`; `num_clipped`, how many `p` the fits clip.
        `calibration_slope` is b1 (1 is ideal; below, risks are too extreme),
        `joint_intercept` b0 and `calibration_intercept` a0 (0 is ideal): two
        different intercepts, both under the first name in other packages. Each
        has its standard error, `<name>_se`; `slope_p` is the two-sided p-value
        of a slope of 1. `likelihood_ratio` tests slope and intercept together
        against (1, 0), `slope_likelihood_ratio` the slope alone, each with
        `_p`; unequal weights make both smaller. `calibration_in_the_large`, and
        `observed_expected_ratio`, mean y / mean p.
        `integrated_calibration_index` (ICI), the mean, `e50`, the median,
        `e90`, the .9 quantile, and `emax`, the maximum, of `|f(p) - p|`;
        `integrated_calibration_index_floor` is the mean of the ICI of a
        calibrated model with the same `p`, and 95 % of it lies between
        `integrated_calibration_index_floor_low` and `_floor_high`.
        `spiegelhalter_z`, above 0 if the Brier score is worse than `p`
        promises, and `spiegelhalter_p`, two-sided. `net_benefit` and
        `net_benefit_of_all` (of treating everybody; nobody has 0) are dicts
        from threshold to value.

        A number that does not exist is NaN, and a warning says why: slope and
        intercepts if the event always or never happened; the slope if all `p`
        are equal, or a threshold separates events from the rest.

    Raises:
        ValueError: if the input is invalid, or if no row counts.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> p = np.repeat([0.2, 0.8], [4, 6])
        >>> y = np.array([1, 0, 0, 0, 1, 1, 1, 1, 0, 0])
        >>> found = kc.metrics.clinical_panel(y, p)
        >>> round(found["calibration_slope"], 4)
        0.6462
        >>> round(found["observed_expected_ratio"], 4)
        0.8929
        >>> round(found["net_benefit"][0.5], 4)
        0.2

    Reference:
        Cox, "Two further applications of a model for binary regression",
        Biometrika, 1958; Spiegelhalter, "Probabilistic prediction in patient
        management and clinical trials", Statistics in Medicine, 1986; Van
        Calster et al., "A calibration hierarchy for risk models", Journal of
        Clinical Epidemiology, 2016; Austin and Steyerberg, "The Integrated
        Calibration Index (ICI) and related metrics", Statistics in Medicine,
        2019; Vickers and Elkin, "Decision curve analysis", Medical Decision
        Making, 2006.
    """
    check_thresholds(thresholds)
    require_one_of(tuple(SMOOTHERS), smoother=smoother)
    require_integer(0, num_draws=num_draws)
    data = read_predictions(
        labels, probabilities, sample_weight, from_logits, axis, ignore_class
    )
    _check_data(data, positive_class)
    found, reasons = panel_of_predictions(
        data,
        positive_class,
        thresholds=thresholds,
        smoother=smoother,
        num_draws=num_draws,
        seed=seed,
    )
    for reason in reasons:
        warn(f"`clinical_panel`: {reason}.")
    return found


def panel_of_predictions(
    data: Predictions,
    positive_class: int = 1,
    *,
    thresholds: Sequence[float] = (0.25, 0.5, 0.75),
    smoother: str = "loess",
    num_draws: int = 1000,
    seed: int = 0,
    names: Collection[str] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """The panel of `Predictions` with rows, and why some of it is NaN.

    With `names`, the fits and the curve of none of them are left out, and the
    net benefit, which is none of them.
    """
    y = (data.labels == positive_class).astype("float64")
    given = data.by_class[positive_class]
    p = given.astype("float64")
    log_odds, num_clipped = _log_odds(data, positive_class, p)
    rate, expected = (np.average(v, weights=data.weights) for v in (y, p))
    reasons = []

    def wanted(group):
        return names is None or not set(group).isdisjoint(names)

    if not expected > 0:
        reasons.append("all probabilities are 0, so that O/E is undefined")
    found = {
        "num_rows": len(y),
        "event_rate": float(rate),
        "mean_probability": float(expected),
        "num_clipped": num_clipped,
        "calibration_in_the_large": float(rate - expected),
        "observed_expected_ratio": (
            float(rate / expected) if expected > 0 else math.nan
        ),
    }
    if wanted(RECALIBRATION):
        fits, why = logistic_recalibration(log_odds, y, data.weights)
        found |= fits
        reasons += why
    z, why = _spiegelhalter(p, y, data.weights)
    found |= {"spiegelhalter_z": z, "spiegelhalter_p": two_sided(z)}
    reasons += why
    events = sort_events(given, y, data.weights)
    if wanted(INDICES):
        index = calibration_index(
            events, smoother=smoother, num_draws=num_draws, seed=seed
        )
        if len(y) == 1:
            index = dict.fromkeys(index, math.nan)
            reasons.append("one row has no curve, so that there is no ICI")
        found |= index
    if names is None:
        found |= _net_benefits(events, thresholds)
    return found, reasons


def refuse_soft_outcomes(data: Predictions) -> None:
    """Raise `ValueError` unless each label is of one class."""
    refuse_soft_labels(
        data, "An event happened or not: labels must be of one class."
    )


def check_thresholds(thresholds: Sequence[float]) -> None:
    """Raise `ValueError` unless they are probabilities, not 0 or 1."""
    require(
        are_numbers(thresholds),
        "`thresholds` must be a list of probabilities.",
        thresholds=thresholds,
    )
    for threshold in thresholds:
        require_fraction(thresholds=threshold)


def _check_data(data, positive_class):
    require(
        is_integer(positive_class)
        and positive_class in range(data.num_classes),
        f"`positive_class` must be one of the {data.num_classes} classes.",
        positive_class=positive_class,
    )
    refuse_soft_outcomes(data)
    refuse_no_rows(data)


def _log_odds(data, k, p):
    """Log-odds of class `k`, and how many of them were clipped."""
    most = math.log1p(-CLIP) - math.log(CLIP)
    if data.logits is None:
        low, high = p < CLIP, p > 1 - CLIP
        inside = np.where(low | high, 0.5, p)
        z = np.log(inside) - np.log1p(-inside) + most * (high * 1.0 - low)
        return z, int(low.sum() + high.sum())
    logits = data.logits.astype("float64")
    others = np.delete(logits, k, axis=1)
    top = others.max(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rest = np.log(np.exp(others - top[:, None]).sum(axis=1)) + top
        # A class that is ruled out has a logit of minus infinity.
        rest = np.where(top > -RULED_OUT, rest, -np.inf)
        z = logits[:, k] - rest
    wrong = np.abs(z) > RULED_OUT
    return np.where(wrong, np.sign(z) * most, z), int(wrong.sum())


def _spiegelhalter(p, y, weights):
    """Spiegelhalter's z, and in words why it is NaN."""
    weights = np.ones(len(p)) if weights is None else weights
    if len(p) == 1:
        return math.nan, ["one row has no variance, so that there is no z"]
    away = weights * (1 - 2 * p)
    variance = float((away**2 * p * (1 - p)).sum())
    if variance > 0:
        return float((away * (y - p)).sum()) / math.sqrt(variance), []
    return math.nan, [
        "all probabilities are 0, 0.5 or 1, so that Spiegelhalter's z is "
        "undefined"
    ]


def _net_benefits(events, thresholds):
    model, everybody = net_benefit(events, np.asarray(thresholds, "float64"))
    return {
        name: dict(zip(map(float, thresholds), values.tolist(), strict=True))
        for name, values in (
            ("net_benefit", model),
            ("net_benefit_of_all", everybody),
        )
    }
