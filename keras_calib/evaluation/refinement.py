"""Calibration and refinement: the parts of a loss, by recalibration.

For a proper loss and recalibrations `g` of the predictions `f`

    risk(f) = [risk(f) - min_g risk(g o f)] + min_g risk(g o f)
            = calibration + refinement

Here `g` divides the logits by a temperature, that of the least negative
log-likelihood. What a temperature cannot mend, e.g. a bias of a class, counts
as refinement: the value is an upper bound of the refinement, and the rest a
lower bound of the calibration part.

References:
    Berta, Holzmueller, Jordan and Bach, "Rethinking Early Stopping: Refine,
    Then Calibrate", 2025, arXiv:2501.19195; for the errors: "A Variational
    Estimator for L_p Calibration Errors", 2026, arXiv:2602.24230.
"""

import dataclasses
import math

import numpy as np

from keras_calib._progress import ProgressBar
from keras_calib.evaluation.replicates import Resamples
from keras_calib.inputs import arrays
from keras_calib.inputs.calibration_rows import read_rows
from keras_calib.inputs.large import by_rows
from keras_calib.solvers.folds import random_folds
from keras_calib.solvers.folds import unit_of_rows
from keras_calib.solvers.isotonic import isotonic_regression
from keras_calib.solvers.temperature import fit_temperature

NUM_FOLDS = 5
# Keys of `calibration_errors(refinement=True)`, and the range of each.
RANGES = {
    "refinement_loss": (0.0, math.inf),
    "calibration_loss": (-math.inf, math.inf),
    "brier_refinement_loss": (0.0, 2.0),
    "brier_calibration_loss": (-2.0, 2.0),
    "calibration_error_lower_bound": (-1.0, 1.0),
    "overconfidence_error_lower_bound": (-1.0, 1.0),
    "underconfidence_error_lower_bound": (-1.0, 1.0),
    "isotonic_calibration_error_lower_bound": (-1.0, 1.0),
    "calibration_error_l2_lower_bound": (-math.sqrt(2), math.sqrt(2)),
}


def best_temperature(data, start=None):
    """The temperature with the least negative log-likelihood of predictions.

    Probabilities below the smallest normal float32 are taken for this number.

    Args:
        data: `Predictions` with at least one row.
        start: see `fit_temperature`.

    Returns:
        `TemperatureFit`: `nll_after` is the refinement part, on the same rows.
        It is too small by about `1 / (2 n)` nats, and as much too large on
        others.

    Raises:
        ValueError: without rows, or if a label has a logit of minus infinity.
    """
    targets = data.labels if data.targets is None else data.targets
    rows = read_rows(_logits(data), targets, data.weights)
    return fit_temperature(rows.logits, rows.labels, rows.weights, start=start)


def at_temperature(data, temperature):
    """`Predictions` with logits that are divided by a temperature."""
    logits = by_rows(lambda block: block / temperature, _logits(data))
    probabilities = arrays.softmax(logits)
    return dataclasses.replace(data, logits=logits, probabilities=probabilities)


def refinement_statistics(data, num_resamples, seed, verbose):
    """The keys of `RANGES`, of the sample and of resamples of it.

    Each is a mean over rows. A resample draws rows with their recalibrated
    predictions, and does not fit the recalibrations again; but what a
    temperature takes off is that of its own temperature, by the derivatives at
    the one of the sample. All are NaN for one unit.

    Returns:
        dict of `(1 + num_resamples,)` arrays; of `TAKEN_OFF` see
        `interval_ends`.
    """
    rows = _table_out_of_fold(data, folds_of(data, seed), verbose)
    resamples = Resamples(data, num_resamples, seed, 1, verbose)
    if not num_resamples:
        found = dict(zip(RANGES, resamples.means(rows), strict=True))
    else:
        around, temperature = _around_best(data)
        means = resamples.means(np.concatenate([rows, around]))
        found = dict(zip(RANGES, means, strict=False))
        parts = _taken_off(means[len(rows) :], temperature)
        for name, part in parts.items():
            part[0, 0] = found[name][0]
            found[name] = part
    resamples.bar.finish()
    return found


def _around_best(data):
    """What the best temperature of all rows takes off each, and derivatives.

    Returns:
        rows: `(6, n)`: what is taken off the NLL, then the first and second
            derivative of the rest in the log factor of the logits; the same of
            the Brier score. Second ones leave out what has the mean 0 if the
            recalibrated predictions are right.
        temperature: float.
    """
    temperature = best_temperature(data).temperature
    after = at_temperature(data, temperature)
    labels = data.labels if data.targets is None else data.targets
    spread, slope, square = by_rows(
        _derivatives, after.probabilities, after.log_probabilities, labels
    ).T
    before = data.negative_log_likelihood(), data.brier()
    rest = after.negative_log_likelihood(), after.brier()
    found = [
        before[0] - rest[0],
        rest[0] - after.entropy(),
        spread,
        before[1] - rest[1],
        slope,
        square,
    ]
    return np.stack(found), temperature


def _derivatives(probabilities, log_probabilities, labels):
    """Columns: of the NLL the second, of the Brier score both derivatives."""
    q = probabilities.astype("float64")
    log_q = np.where(q > 0, log_probabilities, 0.0)
    mean = np.einsum("nk,nk->n", q, log_q)
    log_q -= mean[:, None]
    change = q * log_q
    spread = np.einsum("nk,nk->n", change, log_q)
    square = 2 * np.einsum("nk,nk->n", change, change)
    slope = 2 * (np.einsum("nk,nk->n", change, q) - _at(change, labels))
    return np.stack([spread, slope, square], axis=1)


def _taken_off(means, temperature):
    """`TAKEN_OFF` of `interval_ends`, by means of the rows of `_around_best`.

    With the factor `1 + d` of logits at the temperature of the sample, whose
    first derivatives `g` of the NLL have the mean 0,

        L(1) - L(1 + d) = d^2 h / 2,    d = -g / h
    """
    off, slope, spread, brier, brier_slope, brier_square = means
    slope = slope - slope[0]
    d = np.divide(-slope, spread, out=np.zeros_like(slope), where=spread > 0)
    log_factor = np.log(np.maximum(1 + d, arrays.TINY) / temperature)
    brier = brier - brier_slope * d - brier_square * d**2 / 2
    return {
        "calibration_loss": np.stack([off + spread * d**2 / 2, log_factor], 1),
        "brier_calibration_loss": np.stack([brier, log_factor], 1),
    }


def folds_of(data, seed, num_folds=NUM_FOLDS):
    """The fold of each row, int, `(n,)`; rows of one unit share a fold.

    Only rows that count enter, so those of weight 0 change nothing.
    """
    unit = unit_of_rows(data.unit, len(data.labels))
    return random_folds(unit, num_folds, seed)


def out_of_fold(data, folds, *, verbose=0):
    """What the means of `RANGES` are over: a value for each row.

    Args:
        data: `Predictions`.
        folds: int, `(n,)`. The recalibration of a row is fitted to the rows of
            other folds; without such rows all values are NaN.
        verbose: see `ProgressBar`.

    Returns:
        dict of float64 arrays, `(n,)`.
    """
    return dict(
        zip(RANGES, _table_out_of_fold(data, folds, verbose), strict=True)
    )


def _table_out_of_fold(data, folds, verbose):
    """The arrays of `out_of_fold` as one, `(number of RANGES, n)`."""
    found = np.zeros((len(RANGES), len(folds)))
    # Found once, not in every fold.
    data.top_label  # noqa: B018
    numbers = np.unique(folds)
    if len(numbers) == 1:  # nothing is left to recalibrate by
        return np.full_like(found, np.nan)
    bar = ProgressBar(len(numbers), verbose, unit_name="fold")
    for fold in numbers:
        held = folds == fold
        values = _recalibrated(data.part(held), data.part(~held))
        for row, name in zip(found, RANGES, strict=True):
            row[held] = values[name]
        bar.step()
    bar.finish()
    return found


def _recalibrated(data, others):
    """Values of the rows of `data`, recalibrated by `others`."""
    after = at_temperature(data, best_temperature(others).temperature)
    confidence, correct = data.top_label
    confidence = confidence.astype("float64")
    rows = np.arange(len(confidence)), data.probabilities.argmax(axis=1)
    scaled = after.probabilities[rows].astype("float64")
    bound = top_label_bound(confidence, scaled, correct)
    over = top_label_bound(
        confidence, overconfident_part(confidence, scaled), correct
    )
    isotonic = _isotonic(*others.top_label, others.weights, confidence)
    before = data.negative_log_likelihood(), data.brier()
    refined = after.negative_log_likelihood(), after.brier()
    return {
        "refinement_loss": refined[0],
        "calibration_loss": before[0] - refined[0],
        "brier_refinement_loss": refined[1],
        "brier_calibration_loss": before[1] - refined[1],
        "calibration_error_lower_bound": bound,
        "overconfidence_error_lower_bound": over,
        "underconfidence_error_lower_bound": bound - over,
        "isotonic_calibration_error_lower_bound": top_label_bound(
            confidence, isotonic, correct
        ),
        "calibration_error_l2_lower_bound": l2_bound(data, after.probabilities),
    }


def top_label_bound(confidence, recalibrated, correct):
    """`sign(g - f) (a - f)`; the mean is at most the L1 calibration error.

    `f` is the confidence, `g` the recalibrated one, `a` is 1 if the prediction
    is right. Equality in the mean holds for the true `g`.
    """
    return np.sign(recalibrated - confidence) * (correct - confidence)


def overconfident_part(confidence, recalibrated):
    """The recalibration where it moves a confidence towards 1/2, else none."""
    lower = np.minimum(recalibrated, confidence)
    upper = np.maximum(recalibrated, confidence)
    return np.where(confidence > 0.5, lower, upper)


def l2_bound(data, recalibrated):
    """`<v, y - f>` with `v = (g - f) / |g - f|_2`, over all classes.

    The mean over rows is at most that of the L2 distance between predictions
    and true probabilities.
    """
    labels = data.labels if data.targets is None else data.targets
    return by_rows(_l2_terms, data.probabilities, recalibrated, labels)


def _l2_terms(probabilities, recalibrated, labels):
    f = probabilities.astype("float64")
    direction = recalibrated - f
    norm = np.sqrt(np.einsum("nk,nk->n", direction, direction))
    np.divide(direction, norm[:, None], out=direction, where=norm[:, None] > 0)
    return _at(direction, labels) - np.einsum("nk,nk->n", direction, f)


def _at(values, labels):
    """The value of the label of each row, or its mean over soft labels."""
    if labels.ndim == 1:
        return values[np.arange(len(labels)), labels]
    return np.einsum("nk,nk->n", values, labels)


def _logits(data):
    if data.logits is not None:
        return data.logits
    return by_rows(
        lambda block: np.log(np.maximum(block, arrays.TINY)), data.probabilities
    )


def _isotonic(confidence, correct, weights, at):
    blocks = isotonic_regression(confidence, correct, weights)
    knots = np.stack([blocks.first, blocks.last], axis=1).ravel()
    return np.interp(at, knots, np.repeat(blocks.level, 2))
