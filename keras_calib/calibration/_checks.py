"""What `kc.calibrate` refuses, and what it warns of."""

import warnings

import keras
import numpy as np

from keras_calib.calibration._auto import is_affine
from keras_calib.calibration._auto import samples_needed
from keras_calib.calibration._methods import as_map
from keras_calib.inputs import rules
from keras_calib.keras_graph.heads import check_one_output
from keras_calib.keras_graph.heads import find_head
from keras_calib.keras_graph.heads import free_name
from keras_calib.keras_graph.heads import has_graph
from keras_calib.keras_graph.heads import output_kind
from keras_calib.keras_graph.heads import refuse_several_sigmoids
from keras_calib.keras_private import called_symbolically
from keras_calib.keras_private import flatten_layers
from keras_calib.layers._base import CalibrationLayer

LOG_OF_PROBABILITIES = "log of probabilities"


def check_model(model):
    """Refuse what is no model, or whose inputs are not what its graph takes."""
    if not isinstance(model, keras.Model):
        remedy = "Pass a `keras.Model` that gives class scores."
        if isinstance(model, keras.layers.Layer):
            remedy = "Put it into a model: `keras.Sequential([layer])`."
        raise ValueError(
            "`model` must be a Keras model. Received: model of type "
            f"{type(model).__name__}. {remedy}"
        )
    if getattr(model, "preprocessor", None) is not None:
        raise ValueError(
            "The model preprocesses its inputs in `predict`, and a calibrated "
            "model would not. Map the data through `model.preprocessor`, set "
            "`model.preprocessor = None`, and calibrate then. Received: "
            f"preprocessor={model.preprocessor}."
        )


def check_ending(model, from_logits):
    """Refuse a graph that cannot be read, or that contradicts the caller."""
    if not has_graph(model):
        return
    check_one_output(model)
    shape = tuple(model.outputs[0].shape)
    if len(shape) < 2:
        raise ValueError(one_number(shape))
    refuse_several_sigmoids(model)
    if output_kind(model) != "probabilities":
        return
    if shape[-1] == 1 and find_head(model).activation == "softmax":
        raise ValueError(
            "A softmax over a single unit gives 1 for every input. Received: "
            f"model {model.name!r} with an output of shape {shape}. Use a "
            "sigmoid, or two units."
        )
    if from_logits:
        raise ValueError(
            "`from_logits=True` says that the model gives logits, and its "
            "graph ends in a softmax or sigmoid. Received: model "
            f"{model.name!r}. Leave out `from_logits`."
        )


def one_number(shape):
    """The message for outputs without a class axis."""
    return (
        "The model must give class scores, `(..., num_classes)`, or `(..., 1)` "
        f"for one sigmoid unit. Received: outputs of shape {tuple(shape)}, one "
        "number per sample. Take off what removes the last axis (`Flatten`, "
        "`Reshape`, `squeeze`), or add `keras.layers.Reshape((1,))`."
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
    layer = as_map(method)
    if fuse and not is_affine(layer):
        given = f"method={method!r}"
        normalize_logits = getattr(layer, "normalize_logits", None)
        if normalize_logits is not None:
            given += f" with normalize_logits={normalize_logits!r}"
        raise ValueError(
            "`fuse=True` puts a map into the weights of the last layer, and "
            f"this map is not affine. Received: {given}. Leave out `fuse`."
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


def refuse_the_same_data(model, fingerprint):
    """Refuse data that a map of the model was fitted to.

    A map's layer has the fingerprint in its record. A fused model has it in
    its record, and in its name, which a plain Keras file carries.
    """
    for layer in flatten_layers(model):
        record = getattr(layer, "record", None)
        if not isinstance(record, dict):
            record = getattr(layer, "_calibration_record", None)
        known = isinstance(record, dict) and (
            record.get("fingerprint") == fingerprint
        )
        if known or fingerprint in layer.name:
            raise ValueError(
                "The model has already been calibrated on these very samples. "
                f"Received: model {model.name!r}. Pass the model as it was "
                "before, or other data."
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


def are_probabilities(scores, tolerance=1e-2):
    """Whether every row could be a distribution, and not one row could not."""
    if scores.min() < 0 or scores.max() > 1.001:
        return False
    if scores.shape[-1] == 1:
        return True
    return bool(np.abs(scores.sum(axis=-1) - 1).max() < tolerance)


def refuse_probabilities(scores, from_logits):
    """Refuse rows that are said to be logits and can be none."""
    try:
        rules.check_logits(scores)
    except ValueError as error:
        said = "its graph ends without a softmax"
        if from_logits:
            said = "`from_logits=True` says that it gives logits"
        raise ValueError(f"{error} Here {said}.") from None


def check_probabilities(scores, fuse):
    """Refuse scores that no softmax or sigmoid can have given."""
    if fuse:
        raise ValueError(
            "`fuse=True` needs the logits, and the model gives probabilities "
            "without a final softmax in its graph. Leave out `fuse`."
        )
    try:
        rules.check_probabilities(scores)
    except ValueError as error:
        if not (scores.min() >= 0 and scores.max() <= 1.001):
            raise
        raise ValueError(
            f"{error} Several sigmoid units are multi-label, and no softmax: "
            "calibrate one label at a time."
        ) from None


def source_of(scores):
    """Whether scores are logits or probabilities, where no graph tells.

    Raises:
        ValueError: where the values do not tell, either.
    """
    if not are_probabilities(scores):
        if scores.min() < 0:
            return "logits"
        sums = scores.sum(axis=-1)
        raise ValueError(
            "It is not known what the model gives: its graph does not show it, "
            "and no value is negative, but the rows do not sum to 1. Received: "
            f"rows that sum to {sums.min():.6g} up to {sums.max():.6g}. Pass "
            "`from_logits=True` if these are logits. Several sigmoid units are "
            "multi-label: calibrate one label at a time."
        )
    if scores.shape[-1] == 1:
        raise ValueError(
            "It is not known whether the model gives logits or probabilities: "
            "its graph does not show it, and all values of its one unit are "
            f"between 0 and 1. Received: values from {scores.min():.6g} to "
            f"{scores.max():.6g}. Pass `from_logits=`."
        )
    return LOG_OF_PROBABILITIES
