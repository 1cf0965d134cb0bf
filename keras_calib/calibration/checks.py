"""What `kc.calibrate` refuses, and what it warns of."""

import warnings

import numpy as np

from keras_calib.calibration.auto import is_affine
from keras_calib.calibration.auto import samples_needed
from keras_calib.calibration.methods import as_map
from keras_calib.keras_private import called_symbolically
from keras_calib.keras_private import flatten_layers
from keras_calib.layers.base import CalibrationLayer


def check_model(model):
    """Refuse a model whose inputs are not what its graph takes."""
    if getattr(model, "preprocessor", None) is not None:
        raise ValueError(
            "The model preprocesses its inputs in `predict`, and a calibrated "
            "model would not. Map the data through `model.preprocessor`, set "
            "`model.preprocessor = None`, and calibrate then. Received: "
            f"preprocessor={model.preprocessor}."
        )


def check_method(method, objective, fuse):
    """Refuse a name, an objective or a map that cannot work."""
    if method == "auto":
        if objective != "nll":
            raise ValueError(
                '`method="auto"` chooses by cross-validated NLL. Received: '
                f"objective={objective!r}. Name a method for another objective."
            )
        return
    if fuse and not is_affine(as_map(method)):
        raise ValueError(
            "`fuse=True` puts a map into the weights of the last layer, and "
            f"this map is not affine. Received: method={method!r}. Leave out "
            "`fuse`."
        )


def check_name(method, network):
    """A layer of the user's keeps its name, which must be free."""
    if not isinstance(method, CalibrationLayer):
        return
    if free_name(network, method.name) != method.name:
        raise ValueError(
            "The map has the name of a layer of the model. Received: "
            f"name={method.name!r}. Give the map another `name`."
        )
    if called_symbolically(method):
        raise ValueError(
            "The map is part of another model, which a new fit would change. "
            f"Received: {method.name!r}. Pass a new layer."
        )


def free_name(network, name):
    """The name, with a number if a layer of the network has it."""
    taken = {layer.name for layer in flatten_layers(network)}
    free, i = name, 1
    while free in taken:
        free, i = f"{name}_{i}", i + 1
    return free


def refuse_the_same_data(model, fingerprint):
    """Refuse data that a map of the model was fitted to."""
    for layer in flatten_layers(model, include_self=False):
        record = getattr(layer, "record", None)
        if isinstance(record, dict) and (
            record.get("fingerprint") == fingerprint
        ):
            raise ValueError(
                "The model has already been calibrated on these very samples. "
                "Pass the model as it was before, or other data."
            )


def warn_if_few(layer, num_samples, num_classes):
    """Warn where a map learns more than the samples can tell."""
    needed = samples_needed(layer, num_classes)
    if num_samples < needed:
        warnings.warn(
            f"{type(layer).__name__} learns {needed // 10} numbers and wants "
            f"ten samples for each: {needed}. Received: {num_samples} "
            "calibration samples. Use more, or a smaller map such as "
            '"temperature".',
            stacklevel=4,
        )


def warn_if_known(model, accuracy, num_samples):
    """Warn where a network is as good on new data as on what it has learned."""
    history = getattr(getattr(model, "history", None), "history", None) or {}
    for key in ("accuracy", "acc", "sparse_categorical_accuracy"):
        if key not in history or f"val_{key}" not in history:
            continue
        trained, held_out = history[key][-1], history[f"val_{key}"][-1]
        error = np.sqrt(held_out * (1 - held_out) / num_samples)
        middle = (trained + held_out) / 2
        if trained - held_out > 6 * error and accuracy > middle:
            warnings.warn(
                "The network seems to have been trained on the calibration "
                f"data: accuracy there is {accuracy:.3f}; it was {trained:.3f} "
                f"in training and {held_out:.3f} on validation data. A map "
                "fitted to such data makes the model overconfident.",
                stacklevel=3,
            )


def are_probabilities(scores):
    """Whether every row could be a distribution, and not one row could not."""
    if scores.min() < 0 or scores.max() > 1.001:
        return False
    if scores.shape[-1] == 1:
        return True
    return bool(np.abs(scores.sum(axis=-1) - 1).max() < 1e-2)


def check_probabilities(scores, fuse):
    """Refuse scores that no softmax or sigmoid can have given."""
    if fuse:
        raise ValueError(
            "`fuse=True` needs the logits, and the model gives probabilities "
            "without a final softmax in its graph. Leave out `fuse`."
        )
    if not are_probabilities(scores):
        sums = scores.sum(axis=-1)
        raise ValueError(
            "With `from_logits=False` the model must give probabilities. "
            f"Received: outputs from {scores.min():.6g} to {scores.max():.6g}, "
            f"rows that sum to {sums.min():.6g} up to {sums.max():.6g}. Pass "
            "`from_logits=True`, or nothing."
        )
