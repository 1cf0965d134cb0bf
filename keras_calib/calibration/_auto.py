"""`method="auto"`: the map with the best cross-validated likelihood.

A richer map has to earn its place: it replaces temperature scaling only where
its cross-validated NLL is lower by more than two standard errors of the
difference. (One is not enough: the best of nine maps is often the luckiest.)
"""

import warnings

import numpy as np

from keras_calib.calibration._methods import as_map
from keras_calib.inputs import arrays
from keras_calib.inputs.arrays import as_array
from keras_calib.layers._base import CalibrationLayer

NUM_FOLDS = 5
NUM_ERRORS = 2
# More calibration samples than this tell no more about which map is best.
MAX_SAMPLES = 20_000
# A fit of these takes long where there are many classes.
MAX_CLASSES = {
    "matrix": 100,
    "dirichlet": 100,
    "parameterized_temperature": 100,
}
CANDIDATES = {
    False: (
        "temperature",
        "bias_corrected_temperature",
        "ensemble_temperature",
        "parameterized_temperature",
        "class_temperature",
        "vector",
        "matrix",
        "dirichlet",
        "order_preserving",
        "spline",
        "isotonic",
    ),
    True: ("temperature", "platt", "beta"),
}


def choose(rows, class_loss_scaling=None, seed=0, affine=False):
    """Choose a map by cross-validation.

    Args:
        rows: `CalibrationRows`, each a sample.
        class_loss_scaling: see `CalibrationLayer.adapt`.
        seed: int, which samples make a fold.
        affine: try only maps that can be fused into a head.

    Returns:
        name: the method's name.
        trials: dict from name to `{"nll": ..., "standard_error": ...}`, the
            cross-validated NLL and the standard error of its difference to
            that of temperature scaling; `{"skipped": reason}` for maps that
            were not tried.

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
    scores, labels, weight = rows.logits, rows.labels, rows.weight
    num_classes = max(2, scores.shape[-1])
    fold = _folds(labels, seed)
    trials, losses = {}, {}
    if len(labels) < NUM_FOLDS:
        raise ValueError(
            f'`method="auto"` needs a sample for each of {NUM_FOLDS} folds. '
            f"Received: {len(labels)} calibration samples. Use more, or name a "
            "method."
        )
    for name in CANDIDATES[scores.shape[-1] == 1]:
        if affine and not is_affine(as_map(name)):
            continue
        reason = _reason_to_skip(name, len(labels), num_classes)
        if reason is None:
            try:
                losses[name] = _cross_validate(
                    name, rows, fold, class_loss_scaling
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
            "nll": float(np.average(losses[name], weights=weight)),
            "standard_error": _standard_error(difference, weight),
        }
    best, lead = "temperature", trials["temperature"]["nll"]
    for name, loss in losses.items():
        gain = trials["temperature"]["nll"] - trials[name]["nll"]
        earned = gain > NUM_ERRORS * trials[name]["standard_error"]
        if earned and np.isfinite(loss).all() and trials[name]["nll"] < lead:
            best, lead = name, trials[name]["nll"]
    return best, trials


def _subsample(rows, seed):
    if len(rows.labels) <= MAX_SAMPLES:
        return rows
    rng = np.random.default_rng(seed)
    keep = rng.choice(len(rows.labels), MAX_SAMPLES, replace=False)
    keep.sort()  # a memory map is read from front to back
    return rows.part(keep)


def _folds(labels, seed):
    """The fold of each sample: each class is spread evenly."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), "int32")
    fold[order] = np.arange(len(labels)) % NUM_FOLDS
    return fold


def _reason_to_skip(name, num_samples, num_classes):
    if name == "temperature":
        return None
    if num_classes > MAX_CLASSES.get(name, num_classes):
        return f"more than {MAX_CLASSES[name]} classes"
    needed = samples_needed(as_map(name), num_classes)
    training = num_samples * (NUM_FOLDS - 1) // NUM_FOLDS
    if training < needed:
        return f"{training} samples to fit, {needed} wanted"
    return None


def _cross_validate(name, rows, fold, class_loss_scaling):
    """`-log p_y` of each sample under a map that has not seen it."""
    losses = np.empty(len(rows.labels))
    for i in range(NUM_FOLDS):
        outside = fold == i
        layer = as_map(name)
        with warnings.catch_warnings():
            # What matters of a fold is how it does on the others.
            warnings.simplefilter("ignore")
            layer.adapt_to_rows(
                rows.part(~outside), class_loss_scaling=class_loss_scaling
            )
        z = as_array(layer(rows.logits[outside])).astype("float64")
        losses[outside], _ = losses_and_probabilities(z, rows.labels[outside])
    return losses


def _standard_error(difference, weight):
    """Of a weighted mean, from the scatter of what is averaged."""
    if weight is None:
        weight = np.ones(len(difference))
    share = weight / weight.sum()
    scatter = difference - share @ difference
    return float(np.sqrt((share**2) @ scatter**2))


def samples_needed(layer, num_classes):
    """Ten samples for each number that a map learns; 0 where it tells none."""
    try:
        return 10 * layer.degrees_of_freedom(num_classes)
    except NotImplementedError:
        return 0


def is_affine(layer):
    """Whether a map can be fused into a head, as its arguments are."""
    if type(layer).as_affine is CalibrationLayer.as_affine:
        return False
    try:
        fresh = type(layer).from_config(layer.get_config())
        fresh.build((None, 2))
    except (TypeError, ValueError, NotImplementedError):
        return True  # it will be asked again after the fit
    return fresh.as_affine(2) is not None


def losses_and_probabilities(logits, labels):
    """`-log p_y` of each row, in nats, and `p`; one column is a sigmoid."""
    if logits.shape[-1] == 1:
        logits = arrays.two_classes(logits)
    log_p = arrays.log_softmax(logits)
    return -log_p[np.arange(len(log_p)), labels], np.exp(log_p)
