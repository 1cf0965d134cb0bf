"""What `kc.calibrate` refuses, and what it warns of.

All functions here raise `ValueError` or warn, and change nothing.
"""

import keras
import numpy as np

from keras_calib._warning import warn
from keras_calib.calibration._methods import as_map
from keras_calib.calibration._methods import is_affine
from keras_calib.calibration._methods import is_auto
from keras_calib.calibration._record import LOG_OF_PROBABILITIES
from keras_calib.calibration._record import has_another_fit
from keras_calib.inputs import rules
from keras_calib.inputs.arguments import is_one_of
from keras_calib.inputs.arguments import require_at_least
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_one_of
from keras_calib.keras_graph import class_axis
from keras_calib.keras_graph import endings
from keras_calib.keras_graph.applied_twice import TWICE
from keras_calib.keras_graph.applied_twice import is_applied_twice
from keras_calib.keras_graph.head import find_head
from keras_calib.keras_graph.head import free_name
from keras_calib.keras_private import called_symbolically
from keras_calib.keras_private import flatten_layers
from keras_calib.layers._base import CalibrationLayer
from keras_calib.losses._arguments import class_of
from keras_calib.losses._arguments import losses_of

REGRESSION = (
    keras.losses.Huber,
    keras.losses.LogCosh,
    keras.losses.MeanAbsoluteError,
    keras.losses.MeanAbsolutePercentageError,
    keras.losses.MeanSquaredError,
    keras.losses.MeanSquaredLogarithmicError,
)


def check_model(model):
    """Refuse anything but a model that takes inputs as they are passed in."""
    if not isinstance(model, keras.Model):
        kind = type(model)
        remedy = "Pass a `keras.Model` that gives class scores."
        if isinstance(model, np.ndarray | list | tuple):
            remedy = (
                "Scores in arrays take a layer of `kc.layers`: "
                "`TemperatureScaling().adapt(logits, labels)`, with `np.log(p)`"
                " for logits; or the command `keras-calib calibrate`."
            )
        if isinstance(model, keras.layers.Layer):
            remedy = "Put it into a model: `keras.Sequential([layer])`."
        elif any(base.__module__.startswith("torch.") for base in kind.mro()):
            remedy = (
                "On the PyTorch backend a module is a layer as "
                "`keras.layers.TorchModuleWrapper(module)`."
            )
        raise ValueError(
            "`model` must be a Keras model. Received: model of type "
            f"{kind.__name__}. {remedy}"
        )
    if getattr(model, "preprocessor", None) is not None:
        raise ValueError(
            "The model has a preprocessor, and is no Functional task of "
            "KerasHub, for which it is known how to use it. Map the "
            "data through `model.preprocessor`, and set `model.preprocessor = "
            f"None` before. Received: preprocessor={model.preprocessor}."
        )
    endings.refuse_decision(model)


def check_ending(model, from_logits, multi_label=False):
    """Refuse a graph that cannot be read, or that contradicts the caller."""
    if not endings.has_graph(model):
        return
    endings.check_one_output(model)
    shape = tuple(model.outputs[0].shape)
    if len(shape) < 2:
        raise ValueError(rules.no_class_axis(shape))
    class_axis.refuse_another_class_axis(model)
    if multi_label:
        _check_multi_label(model, shape)
    else:
        endings.refuse_several_sigmoids(model)
    if endings.output_kind(model) != "probabilities":
        if from_logits is None:
            _warn_of_regression(model)
        return
    if shape[-1] == 1 and find_head(model).activation == "softmax":
        raise ValueError(
            "A softmax over a single unit gives 1 for every input. Received: "
            f"model {model.name!r} with an output of shape {shape}. Use a "
            "sigmoid, or two units."
        )
    if is_applied_twice(model):
        raise ValueError(
            f"{TWICE} Received: model {model.name!r}. Leave one out, and "
            "train it again."
        )
    if from_logits:
        raise ValueError(
            "`from_logits=True` says that the model gives logits, and its "
            "graph ends in a softmax or sigmoid. Received: model "
            f"{model.name!r}. Leave out `from_logits`."
        )


def _warn_of_regression(model):
    """Warn of outputs that are trained towards 0 and 1, and are no logits."""
    for kind in map(class_of, losses_of(model)):
        if kind in REGRESSION:
            warn(
                "The outputs are taken for logits, and the model was trained "
                f"by a loss of regression, {kind.__name__}, towards the labels "
                "themselves. A classifier has one that is a likelihood: end "
                "the model with a sigmoid or softmax, and train it by "
                "cross-entropy; or say `from_logits=True`."
            )


def _check_multi_label(model, shape):
    """Refuse a graph that ends in anything but several sigmoids or logits."""
    softmax = endings.final_activation(model) == "softmax"
    if softmax or shape[-1] == 1:
        end = "ends in a softmax" if softmax else "has one unit"
        raise ValueError(
            "`multi_label=True` is for several sigmoid units, or their logits. "
            f"Received: model {model.name!r}, which {end}. Leave out "
            "`multi_label`."
        )


def check_arguments(model, method, objective, fuse, output):
    """Refuse arguments that cannot work, alone or together."""
    check_model(model)
    require_one_of(("probabilities", "logits"), output=output)
    if is_auto(method):
        if not is_one_of(objective, ("nll",)):
            raise ValueError(
                '`method="auto"` chooses by cross-validated NLL. Received: '
                f"objective={objective!r}. Name a method for another objective."
            )
        return
    layer = as_map(method, affine=fuse)
    if fuse and not is_affine(layer):
        given = f"method={method!r}"
        normalize_logits = getattr(layer, "normalize_logits", None)
        if normalize_logits is not None:
            given += f" with normalize_logits={normalize_logits!r}"
        raise ValueError(
            "`fuse=True` puts a calibration layer into the model's last layer, "
            f"and this one is not affine. Received: {given}. Leave out `fuse`."
        )


def check_choice(method, mixture, fuse, preserve_accuracy, max_seconds):
    """Refuse arguments that contradict what a method can do."""
    require_flags(none=True, preserve_accuracy=preserve_accuracy)
    if mixture and not is_auto(method):
        raise ValueError(
            '`mixture=True` needs `method="auto"`, which chooses what is '
            f"mixed. Received: method={method!r}."
        )
    if mixture and fuse:
        raise ValueError(
            "A mixture is not affine and cannot be fused. Received: "
            "mixture=True and fuse=True. Leave out one of them."
        )
    if max_seconds is not None:
        require_at_least(0, max_seconds=max_seconds)
    if preserve_accuracy and not is_auto(method):
        layer = as_map(method)
        if not layer.preserves_accuracy:
            raise ValueError(
                f"{type(layer).__name__} can change predicted classes, and "
                "`preserve_accuracy=True` refuses that. Received: method="
                f'{method!r}. Use "temperature", "spline" or '
                '"order_preserving" (with several labels "temperature"), or '
                "leave out `preserve_accuracy`."
            )


def refuse_other_losses(subject, options, remedy=""):
    """Refuse what a fit by likelihood alone cannot minimize.

    Args:
        subject: what minimizes the NLL, for the message.
        options: `Options`.
        remedy: what else the caller can do.
    """
    if options.objective != "nll" or options.class_loss_scaling is not None:
        raise ValueError(
            f"{subject} minimizes the NLL. Received: objective="
            f"{options.objective!r}, class_loss_scaling="
            f"{options.class_loss_scaling!r}. Leave them out{remedy}."
        )


def check_name(method, network):
    """Refuse a layer that is used elsewhere, or has the name of another."""
    if not isinstance(method, CalibrationLayer):
        return
    if free_name(network, method.name) != method.name:
        raise ValueError(
            "The calibration layer has the name of another layer. Received: "
            f"name={method.name!r}. Give it another `name`."
        )
    if called_symbolically(method):
        raise ValueError(
            "The calibration layer is part of another model, which a new fit "
            "would change. "
            f"Received: {method.name!r}. Pass a new layer."
        )


def refuse_groups(groups):
    """Refuse groups in a stream, of which nothing is held out."""
    if groups is not None:
        raise ValueError(
            "`stream=True` splits nothing by `groups`. Received: groups of "
            f"type {type(groups).__name__}. Leave them out."
        )


def refuse_the_same_data(model, fingerprint, settings):
    """Refuse data that the model was already calibrated on.

    A calibration layer has the fingerprint of the data in its record. A fused
    model has a mark of it in its name, which a plain Keras file keeps.
    """
    mark = settings.mark(fingerprint)
    marked = any(mark in layer.name for layer in flatten_layers(model))
    if marked or fingerprint in fingerprints_in(model):
        raise ValueError(
            "The model has already been calibrated on these very samples. "
            f"Received: model {model.name!r}. Pass the model as it was "
            "before, or other data."
        )


def fingerprints_in(model):
    """Of the data that the maps of a model were fitted to, a set.

    Maps whose weights were loaded, set or trained since know no data.
    """
    records = [
        getattr(layer, "record", None)
        for layer in flatten_layers(model)
        if not has_another_fit(layer)
    ]
    records = [each for each in records if isinstance(each, dict)]
    return {each["fingerprint"] for each in records if "fingerprint" in each}


def refuse_or_warn_of_other_outputs(model, head, fuse):
    """Refuse, or warn of, a graph whose logits do not give the outputs."""
    if fuse:
        raise ValueError(
            "`fuse=True` needs the logits, and what was found in the "
            f"graph of {model.name!r} does not compute its outputs. "
            "Received: a model whose layers change their `call`. Leave "
            "out `fuse`."
        )
    warn(
        f"What precedes the final {head.activation} in the model's "
        "graph does not compute the model's outputs: layers change "
        "their `call`, or differ from call to call."
    )


def refuse_probabilities(scores, from_logits):
    """Refuse rows that cannot be logits, although they are said to be."""
    said = "its graph ends without a softmax"
    if from_logits:
        said = "`from_logits=True` says that it gives logits"
    _check(rules.check_logits, scores, f"Here {said}.")


def check_probabilities(scores, fuse):
    """Refuse scores that no softmax or sigmoid can have returned."""
    if fuse:
        raise ValueError(
            "`fuse=True` needs the logits, and the model gives probabilities "
            "without a final softmax in its graph. Leave out `fuse`."
        )
    hint = "Several sigmoid units are multi-label: pass `multi_label=True`."
    inside = scores.min() >= 0 and scores.max() <= 1 + rules.OUTSIDE
    _check(rules.check_probabilities, scores, hint if inside else "")


def _check(rule, scores, hint):
    try:
        rule(scores)
    except ValueError as error:
        raise ValueError(f"{error} {hint}".rstrip()) from None


def warn_no_softmax(model):
    """Warn that a map is fitted to the logarithm of probabilities.

    An average of networks has no other logits, whether a class of its own says
    so or `keras.layers.Average` in the graph.
    """
    if endings.averages_probabilities(model):
        return
    warn(
        "No final softmax was found in the model's graph: calibration is "
        "fitted to the logarithm of its probabilities. For a temperature this "
        "is the same, unless probabilities are rounded to 0."
    )


def warn_of_zeros(model, probabilities, labels):
    """Warn of labels with a probability of 0, whose loss decides the fit.

    Those of an average of networks are as exact as they can be.

    Args:
        model: what gave the probabilities.
        probabilities: `(n, num_classes)`, or `(n, 1)` of one sigmoid.
        labels: class ids, `(n,)`; nothing is said of soft labels.
    """
    if labels.ndim > 1 or endings.averages_probabilities(model):
        return
    if probabilities.shape[1] == 1:
        zero = probabilities[:, 0] == 1 - labels
    else:
        zero = probabilities[np.arange(len(labels)), labels] == 0
    if zero.any():
        warn(
            f"{zero.sum()} of {len(zero)} calibration samples have a "
            "probability of 0 for their label, and so large a loss that they "
            "decide the fit. If probabilities were rounded, pass more digits, "
            "logits, or `np.maximum(p, e)` with e half of the last step."
        )


def source_by_values(scores):
    """Whether scores are logits or probabilities, if no graph shows it.

    Returns:
        A `logits_source`, see `CalibrationRecord`.

    Raises:
        ValueError: if the values do not show it, either.
    """
    if scores.min() < 0:
        return "logits"
    if rules.wrong_probabilities(scores, np).any():
        sums = scores.sum(axis=-1)
        raise ValueError(
            "It is not known what the model gives: its graph does not show it, "
            "and no value is negative, but the rows do not sum to 1. Received: "
            f"rows that sum to {sums.min():.6g} up to {sums.max():.6g}. Pass "
            "`from_logits=True` if these are logits. Several sigmoid units are "
            "multi-label: pass `multi_label=True`."
        )
    if scores.shape[-1] == 1:
        raise ValueError(
            "It is not known whether the model gives logits or probabilities: "
            "its graph does not show it, and all values of its one unit are "
            f"between 0 and 1. Received: values from {scores.min():.6g} to "
            f"{scores.max():.6g}. Pass `from_logits=`."
        )
    return LOG_OF_PROBABILITIES
