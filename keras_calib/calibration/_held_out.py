"""Losses of a map on folds of the calibration data that it was not fitted to.

Rows of a group (the pixels of an image, the visits of a patient) are in one
fold, and count as one in a standard error: they are alike.
"""

import dataclasses
import time
import warnings

import numpy as np

from keras_calib.inputs.arguments import generator
from keras_calib.inputs.arrays import at_least_two
from keras_calib.inputs.arrays import log_softmax
from keras_calib.inputs.arrays import log_softmax_of_labels
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._formula import FormulaCalibration
from keras_calib.layers._formula import tempered_log_q
from keras_calib.layers._objectives import NegativeLogLikelihoodObjective
from keras_calib.layers._tempered import TemperedCalibration
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.folds import random_folds
from keras_calib.solvers.folds import unit_of_rows
from keras_calib.solvers.temperature import fit_temperature


def folds(rows, num_folds, seed=0):
    """Number of the fold of each row, at random.

    Args:
        rows: `CalibrationRows`.
        num_folds: int.
        seed: int.

    Returns:
        int, `(n,)`; or `None` if there are fewer groups than folds.
    """
    unit = groups_from_zero(rows)
    if unit.max() + 1 < num_folds:
        return None
    return random_folds(unit, num_folds, seed)


def held_out_losses(
    layer,
    rows,
    fold,
    *,
    most_steps=None,
    class_loss_scaling=None,
    deadline=np.inf,
):
    """`-log q_y` of each row, by copies of a map fitted to the other folds.

    Args:
        layer: `CalibrationLayer`, which stays as it is.
        rows: `CalibrationRows`.
        fold: from `folds`.
        most_steps: `None`, or Newton steps after which the fit of an affine map
            to a fold is stopped.
        class_loss_scaling: as for `adapt`.
        deadline: `time.perf_counter()` after which no other fold begins.

    Returns:
        float64, `(n,)`, in nats.

    Raises:
        ValueError: if the map cannot be fitted to some of the folds.
        TimeoutError: if the deadline is over.
    """
    losses = np.empty(len(rows.labels))
    formula = has_formula(layer)
    for number in range(fold.max() + 1):
        if time.perf_counter() > deadline:
            raise TimeoutError
        inside = rows.part(np.flatnonzero(fold != number))
        outside = np.flatnonzero(fold == number)
        # One does for all folds where it stays as it is.
        if number == 0 or not formula:
            twin = type(layer).from_config(layer.get_config())
            twin._rounds = False  # nobody reads its record
            if most_steps is not None:
                twin.most_steps = most_steps
        with warnings.catch_warnings():
            # Warnings about one fold do not concern the user.
            warnings.simplefilter("ignore")
            if formula:
                log_q = twin._log_q_without(
                    inside, rows, outside, class_loss_scaling
                )
            else:
                adapt(twin, inside, class_loss_scaling=class_loss_scaling)
                log_q = twin.log_q_of_labels(rows.logits, rows.labels, outside)
        losses[outside] = -log_q
    return losses


def held_out_tempered(rows, fold, start, layer=None):
    """`held_out_losses` of temperature scaling, in few passes.

    Args:
        rows: `CalibrationRows`.
        fold: from `folds`.
        start: the temperature of all rows, from which each fit starts.
        layer: `None`, or a map, which stays as it is.

    Returns:
        plain: of temperature scaling.
        rich: of the map, fitted by likelihood from the same temperatures;
            `None` if its fit does not start from temperature scaling.
    """
    rows = dataclasses.replace(rows, logits=at_least_two(rows.logits))
    objective = NegativeLogLikelihoodObjective()
    plain, rich = np.empty((2, len(rows.labels)))
    if not starts_tempered(layer):
        layer = rich = None
    for number in range(fold.max() + 1):
        part = rows.part(fold != number)
        data = part.logits, part.labels, part.full_weights
        found = fit_temperature(*data, start=start, before=False)
        outside = np.flatnonzero(fold == number)
        rest = rows.logits, rows.labels, outside
        plain[outside] = -tempered_log_q(*rest, found.temperature)
        if layer is not None:
            tempered = found.temperature, dataclasses.asdict(found)
            with warnings.catch_warnings():
                # Warnings about one fold do not concern the user.
                warnings.simplefilter("ignore")
                weights, _ = layer._solve(*data, objective, tempered)
            rich[outside] = -layer._log_q_with(weights, *rest)
    return plain, rich


def has_formula(layer):
    """Whether a map can be fitted and applied without its variables."""
    # A user's subclass may compute otherwise.
    return isinstance(layer, FormulaCalibration) and _is_ours(layer)


def _is_ours(layer):
    return type(layer).__module__.startswith("keras_calib.")


def starts_tempered(layer):
    """Whether a map is fitted after temperature scaling of the same rows."""
    if not isinstance(layer, TemperedCalibration) or layer.has_folds:
        return False
    return _is_ours(layer)


def adapt(layer, rows, *, objective="nll", class_loss_scaling=None):
    """Fit a layer to rows, also one whose `adapt` is the user's."""
    options = dict(objective=objective, class_loss_scaling=class_loss_scaling)
    if type(layer).adapt is CalibrationLayer.adapt:
        layer.adapt_to_rows(rows, **options)
    else:
        layer.adapt(rows.logits, rows.labels, rows.weights, **options)


def losses_of_folds(layer, rows):
    """Held-out losses that a map's own fit computed.

    Args:
        layer: a map fitted to `rows`.
        rows: `CalibrationRows`.

    Returns:
        Losses of the map and of temperature scaling, `(n,)`; or `None` if the
        map learns from no folds.
    """
    found = getattr(layer, "folds", None)
    if found is None:
        return None
    return -found.mixed(rows.full_weights, layer.caution), -found.plain


def losses_of_model(rows):
    """`-log p_y` of each row without a map, `(n,)`."""
    losses = np.empty(len(rows.labels))
    for part in row_blocks(*rows.logits.shape):
        z = at_least_two(rows.logits[part])
        losses[part] = -log_softmax_of_labels(z, rows.labels[part])
    return losses


def quiet_fit(layer, rows, options):
    """Fit a layer to rows; returns the warnings, for who uses it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        adapt(layer, rows, class_loss_scaling=options.class_loss_scaling)
    return caught


def losses_and_probabilities(logits, labels):
    """`-log p_y` of each row, in nats, and `p`; one column is a sigmoid."""
    log_p = log_softmax(at_least_two(logits))
    return -log_p[np.arange(len(log_p)), labels], np.exp(log_p)


def standard_error(difference, rows):
    """Of a mean over rows, where groups are drawn as a whole.

        sqrt(sum_g (sum_{n in g} w_n (d_n - mean d))^2),    sum_n w_n = 1

    Args:
        difference: `(n,)`.
        rows: `CalibrationRows`, for weights and groups.

    Returns:
        float.
    """
    weights = rows.full_weights
    weights = weights / weights.sum()
    deviation = weights * (difference - weights @ difference)
    sums = np.bincount(groups_from_zero(rows), deviation)
    return float(np.sqrt(sums @ sums))


def groups_from_zero(rows):
    """The group of each row, from 0 on; without groups the row itself."""
    return unit_of_rows(rows.group, len(rows.labels))


def subsample(rows, largest, seed=0):
    """At most `largest` rows, at random.

    A few rows of each group say more than all rows of a few groups.
    """
    if len(rows.labels) <= largest:
        return rows
    rng = generator(seed)
    keep = rng.choice(len(rows.labels), largest, replace=False)
    keep.sort()  # a memory map is read from front to back
    return rows.part(keep)
