"""`method="auto"`: choose a map by cross-validated likelihood.

A map replaces temperature scaling only if its cross-validated NLL is lower by
more than two standard errors of the difference. One is not enough, because the
best of many maps is often best by chance.
"""

import warnings

import numpy as np

from keras_calib.calibration._methods import METHODS
from keras_calib.calibration._methods import as_map
from keras_calib.inputs import arrays
from keras_calib.inputs.arrays import as_array
from keras_calib.layers._base import CalibrationLayer

NUM_FOLDS = 5
NUM_ERRORS = 2
# More calibration samples do not change which map is best.
MAX_SAMPLES = 20_000
# With more classes, a fit of these takes too long.
SLOW = ("matrix", "dirichlet", "parameterized_temperature")
MAX_CLASSES = 100
BINARY = ("temperature", "platt", "beta")
OTHERS = tuple(
    name for name in METHODS if name not in ("platt", "beta", "histogram")
)


def choose(rows, class_loss_scaling=None, *, seed=0, affine=False):
    """Choose a map by cross-validation.

    Args:
        rows: `CalibrationRows`, one row per sample.
        class_loss_scaling: see `CalibrationLayer.adapt`.
        seed: int, seed of the folds.
        affine: whether to try only maps that can be fused into a layer.

    Returns:
        name: the method's name.
        trials: dict from name to `{"nll": ..., "standard_error": ...}`, the
            cross-validated NLL and the standard error of its difference to
            that of temperature scaling; or `{"skipped": reason}`.

    Raises:
        ValueError: if there are fewer samples than folds, or temperature
            scaling cannot be fitted.
    """
    if len(rows.labels) != rows.num_samples:
        raise ValueError(
            '`method="auto"` compares maps on samples of one class each. '
            "Received: soft labels. Pass class ids, or name a method."
        )
    rows = _subsample(rows, seed)
    num_units = rows.logits.shape[-1]
    if len(rows.labels) < NUM_FOLDS:
        raise ValueError(
            f'`method="auto"` needs a sample for each of {NUM_FOLDS} folds. '
            f"Received: {len(rows.labels)} calibration samples. Use more, or "
            "name a method."
        )
    fold = _folds(rows.labels, seed)
    names = [
        name
        for name in (BINARY if num_units == 1 else OTHERS)
        if not affine or is_affine(as_map(name, affine=True))
    ]
    trials, losses = {}, {}
    for name in names:
        reason = _reason_to_skip(name, max(2, num_units))
        if reason is None:
            try:
                losses[name] = _cross_validate(
                    name, rows, fold, class_loss_scaling, affine
                )
            except ValueError as error:
                if name == "temperature":
                    raise  # all others are compared with it
                reason = str(error)
        if reason is not None:
            trials[name] = {"skipped": reason}
            continue
        difference = losses[name] - losses["temperature"]
        trials[name] = {
            "nll": float(np.average(losses[name], weights=rows.weight)),
            "standard_error": _standard_error(difference, rows.weight),
        }
    plain = trials["temperature"]["nll"]
    better = [
        name
        for name, loss in losses.items()
        if plain - trials[name]["nll"]
        > NUM_ERRORS * trials[name]["standard_error"]
        and np.isfinite(loss).all()
    ]
    best = min(
        better, key=lambda name: trials[name]["nll"], default="temperature"
    )
    return best, trials


def _subsample(rows, seed):
    if len(rows.labels) <= MAX_SAMPLES:
        return rows
    rng = np.random.default_rng(seed)
    keep = rng.choice(len(rows.labels), MAX_SAMPLES, replace=False)
    keep.sort()  # a memory map is read from front to back
    return rows.part(keep)


def _folds(labels, seed):
    """Number of the fold of each sample; classes are spread evenly."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), "int32")
    fold[order] = np.arange(len(labels)) % NUM_FOLDS
    return fold


def _reason_to_skip(name, num_classes):
    if name in SLOW and num_classes > MAX_CLASSES:
        return f"more than {MAX_CLASSES} classes"
    return None


def _cross_validate(name, rows, fold, class_loss_scaling, affine):
    """`-log p_y` of each sample, from a map fitted to the other folds."""
    losses = np.empty(len(rows.labels))
    for i in range(NUM_FOLDS):
        outside = fold == i
        layer = as_map(name, affine=affine)
        with warnings.catch_warnings():
            # Warnings about one fold do not concern the user.
            warnings.simplefilter("ignore")
            layer.adapt_to_rows(
                rows.part(~outside), class_loss_scaling=class_loss_scaling
            )
        z = as_array(layer(rows.logits[outside])).astype("float64")
        losses[outside], _ = losses_and_probabilities(z, rows.labels[outside])
    return losses


def _standard_error(difference, weight):
    """`sqrt(sum_n w_n^2 (d_n - mean d)^2)`, the weights `w_n` sum to one."""
    if weight is None:
        weight = np.ones(len(difference))
    weight = weight / weight.sum()
    deviation = difference - weight @ difference
    return float(np.sqrt((weight**2) @ deviation**2))


def samples_needed(layer, num_classes):
    """Ten samples for each parameter that a map is free to choose.

    0 for a map that few samples leave near temperature scaling, and for one
    that declares no number of parameters.
    """
    for name in ("regularization", "shrinkage"):
        if getattr(layer, name, None) == "auto":
            return 0
    try:
        return 10 * layer.degrees_of_freedom(num_classes)
    except NotImplementedError:
        return 0


def is_affine(layer):
    """Whether a map with these arguments can be fused into a layer."""
    if type(layer).as_affine is CalibrationLayer.as_affine:
        return False
    try:
        fresh = type(layer).from_config(layer.get_config())
        fresh.build((None, 2))
    except (TypeError, ValueError, NotImplementedError):
        return True  # the fit will show it
    return fresh.as_affine(2) is not None


def losses_and_probabilities(logits, labels):
    """`-log p_y` of each row, in nats, and `p`; one column is a sigmoid."""
    if logits.shape[-1] == 1:
        logits = arrays.two_classes(logits)
    log_p = arrays.log_softmax(logits)
    return -log_p[np.arange(len(log_p)), labels], np.exp(log_p)
