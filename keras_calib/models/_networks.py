"""What several networks and their loss must agree on."""

import keras
from keras import ops

from keras_calib.inputs import rules
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.tensors import at_least_float32
from keras_calib.inputs.tensors import quarter_steps
from keras_calib.keras_graph.endings import check_one_output
from keras_calib.keras_graph.endings import final_activation
from keras_calib.keras_graph.endings import has_outputs
from keras_calib.keras_graph.endings import output_kind
from keras_calib.keras_graph.preprocessors import refuse_preprocessor
from keras_calib.keras_private import carried_logits


def check_networks(networks, multi_label=False, from_logits=None):
    """Check that networks fit together, and find out what they return.

    Args:
        networks: dict of name (for messages) to `keras.Model`.
        multi_label: whether each unit is a separate label with a sigmoid.
        from_logits: what the user says that they return, or `None`.

    Returns:
        dict of name to what its outputs are: `"logits"`, `"softmax"`,
        `"sigmoid"`, `"probabilities"` of one or the other kind, or `None`
        where the network does not show it.

    Raises:
        ValueError: for anything but a network with one output; if two networks
            share trainable weights, differ in the number of classes, or one
            returns logits and another probabilities; for several sigmoid units
            without `multi_label`, and for a softmax over one unit; for a flag
            that is neither true nor false.
    """
    require_flags(multi_label=multi_label)
    require_flags(none=True, from_logits=from_logits)
    for name, network in networks.items():
        _check_one_output(name, network)
    check_distinct(networks)
    shapes = {
        name: network.outputs[0].shape
        for name, network in networks.items()
        if has_outputs(network)
    }
    check_class_counts(shapes)
    kinds = {name: _kind(network) for name, network in networks.items()}
    for name, kind in kinds.items():
        _check_kind(name, kind, shapes.get(name), multi_label)
    given = {name: kind for name, kind in kinds.items() if kind is not None}
    if len({kind == "logits" for kind in given.values()}) > 1:
        raise ValueError(
            "All networks must give the same: logits, or probabilities. "
            f"Received: {_listed(given)}. Take the last activation off, or "
            "give each network one."
        )
    return kinds


def _kind(network):
    activation = final_activation(network)
    if activation in ("softmax", "sigmoid"):
        return activation
    return output_kind(network)


def gives_logits(kinds):
    """Whether networks return logits; `None` if no graph shows it."""
    known = [kind == "logits" for kind in kinds.values() if kind is not None]
    return known[0] if known else None


def ask_from_logits(kinds, from_logits):
    """Whether networks return logits: as passed in, or as all graphs show."""
    if from_logits is not None:
        return check_told(kinds, from_logits)
    unknown = [name for name, kind in kinds.items() if kind is None]
    if unknown:
        raise ValueError(
            "The end of a network does not show whether it gives logits or "
            "probabilities: it is subclassed, or its last layer is not a "
            f"known one. Received: {', '.join(unknown)}. Pass `from_logits=`."
        )
    return gives_logits(kinds)


def check_told(kinds, from_logits):
    """`from_logits` as a bool; raise `ValueError` if a graph contradicts it."""
    known = gives_logits(kinds)
    if known is not None and known != bool(from_logits):
        given = {name: kind for name, kind in kinds.items() if kind is not None}
        raise ValueError(
            "`from_logits` must say what the networks give. Received: "
            f"from_logits={from_logits}, and as outputs {_listed(given)}. "
            "Leave it out."
        )
    return bool(from_logits)


def check_class_counts(shapes, axis=-1):
    """Raise `ValueError` if outputs differ in rank or number of classes."""
    found = {name: (len(shape), shape[axis]) for name, shape in shapes.items()}
    if len(set(found.values())) > 1:
        shapes = {name: tuple(shape) for name, shape in shapes.items()}
        raise ValueError(
            "All networks must give scores of the same classes. Received: "
            f"outputs of shape {_listed(shapes)}."
        )


def check_distinct(networks):
    """Raise `ValueError` if networks share trainable weights.

    Layers without trainable weights may be shared, such as preprocessing,
    augmentation or a frozen base.
    """
    owner = {}
    for name, network in networks.items():
        for part in [network, *network.trainable_variables]:
            if id(part) in owner:
                what = "are the same network"
                if part is not network:
                    what = f"share the weight {part.path!r}"
                raise ValueError(
                    "The networks must not share trainable weights. "
                    f"Received: {owner[id(part)]} and {name} {what}. Build "
                    "each with trainable layers of its own."
                )
            owner[id(part)] = name


def _check_one_output(name, network):
    if not isinstance(network, keras.Model):
        raise ValueError(
            "Networks are `keras.Model` objects. "
            f"Received: {name} is of type {type(network).__name__}."
        )
    refuse_preprocessor(network, name)
    if has_outputs(network):
        check_one_output(network, name, called=True)


def _check_kind(name, kind, shape, multi_label):
    units = None if shape is None else shape[-1]
    if kind == "sigmoid" and units != 1 and not multi_label:
        raise ValueError(
            "Several sigmoid units are not a distribution over classes, but a "
            f"label each. Received: {name} with outputs of shape "
            f"{tuple(shape)}. Give it a softmax, or, for the average of "
            "networks, pass `multi_label=True`."
        )
    if kind == "softmax" and multi_label:
        raise ValueError(
            "With `multi_label=True` each unit is a label of its own, with a "
            f"sigmoid. Received: {name}, which ends in a softmax. Leave out "
            "`multi_label`."
        )
    if kind == "softmax" and units == 1:
        raise ValueError(
            "A softmax over one unit is always 1. Received: "
            f"{name} with outputs of shape {tuple(shape)}. Give the unit a "
            "sigmoid, or the softmax two units."
        )


def _listed(found):
    return ", ".join(f"{name} {value}" for name, value in found.items())


def log_probabilities(scores, from_logits, axis=-1):
    """Log of class probabilities in float32, at least two classes.

    Args:
        scores: outputs of a network with classes on `axis`; one class is one
            sigmoid unit.
        from_logits: whether these are logits. If not, the logits that Keras
            keeps on a softmax output are used, or else `log(scores)`.
        axis: the class axis of `scores`.

    Returns:
        Tensor of shape `(..., max(2, num_classes))`.
    """
    steps = quarter_steps(scores)
    scores, from_logits = _exact(scores, from_logits)
    if axis not in (-1, len(scores.shape) - 1):
        scores = ops.moveaxis(scores, axis, -1)
    if scores.shape[-1] == 1:
        return ops.stack(
            _log_yes_and_no(scores[..., 0], from_logits, steps)[::-1], axis=-1
        )
    if not from_logits:
        scores = ops.log(ops.maximum(scores, steps[0]))
    return ops.log_softmax(scores, axis=-1)


def log_yes_and_no(scores, from_logits):
    """`log p` and `log (1 - p)` of sigmoid units, in float32."""
    steps = quarter_steps(scores)
    return _log_yes_and_no(*_exact(scores, from_logits), steps)


def _log_yes_and_no(scores, from_logits, steps):
    if from_logits:
        # `log_sigmoid` loses digits in ONNX files from PyTorch.
        return -ops.softplus(-scores), -ops.softplus(scores)
    return (
        ops.log(ops.maximum(scores, steps[0])),
        ops.log(ops.maximum(1.0 - scores, steps[1])),
    )


def _exact(scores, from_logits):
    """Scores in float32, or the logits that Keras keeps with them."""
    carried = carried_logits(scores)
    if carried is not None:
        if from_logits:
            rules.raise_for_probabilities("the output of a softmax or sigmoid")
        scores, from_logits = carried, True
    return at_least_float32(scores), from_logits


def symbolic(shape, dtype):
    """Symbolic inputs, because `build` of a subclassed model may do nothing."""
    if isinstance(shape, dict):
        return {key: symbolic(part, dtype) for key, part in shape.items()}
    if isinstance(shape, list | tuple) and any(
        isinstance(part, list | tuple | dict) for part in shape
    ):
        return [symbolic(part, dtype) for part in shape]
    return keras.KerasTensor(shape, dtype=dtype)


def outputs_and_losses(network, x):
    """Outputs of a network in training, and its penalties.

    On JAX, Keras computes a step without side effects, and drops what layers
    add by `add_loss` unless a scope collects it.
    """
    if keras.backend.backend() != "jax":
        return network(x, training=True), network.losses
    before = [(variable, variable.value) for variable in network.variables]
    with keras.StatelessScope(before, collect_losses=True) as scope:
        output = network(x, training=True)
        losses = network.losses
    for variable, value in before:
        after = scope.get_current_value(variable)
        if after is not value:
            variable.assign(after)
    return output, losses


def named(values):
    """One value per network, the primary first, by name for messages."""
    names = ["the primary", *(f"auxiliary {i}" for i in range(len(values)))]
    return dict(zip(names, values, strict=False))


def check_units(loss, units):
    """Raise `ValueError` for several units with a loss of sigmoid units."""
    binary = keras.losses.BinaryCrossentropy
    binary = (binary, keras.losses.BinaryFocalCrossentropy)
    if isinstance(loss, binary) and units > 1:
        raise ValueError(
            "Networks that learn together give a distribution over "
            f"classes. Received: {units} outputs with "
            f"{type(loss).__name__}, a label each. Use a softmax and "
            "a categorical loss, or one sigmoid unit."
        )
