"""A trained model -> the same model up to its logits."""

import dataclasses

import keras


@dataclasses.dataclass(frozen=True)
class Head:
    """How a model ends.

    Attributes:
        inputs: the model's inputs, as nested as they are.
        tensor: the symbolic tensor of logits, or of the output where no
            final activation was found.
        activation: `"softmax"`, `"sigmoid"`, or `None` where none was found.
    """

    inputs: object
    tensor: object
    activation: str | None


def find_logits(model):
    """Find the logits of a Functional or Sequential model.

    The final softmax (or sigmoid) may be the activation of the last layer, a
    layer of its own, an operation, or any of these inside a nested model. The
    model is left untouched: where an activation sits inside a layer, a twin
    without it is made that holds the same weights.

    Args:
        model: a built Functional or Sequential model with one output.

    Returns:
        `Head`.

    Raises:
        ValueError: if the model has several outputs.
    """
    if len(model.outputs) != 1:
        raise ValueError(
            "Calibration needs a model with one output, the class scores. "
            f"Received: {len(model.outputs)} outputs. Pass "
            "`keras.Model(model.input, model.outputs[i])`."
        )
    tensor, activation = _before_activation(model.outputs[0])
    return Head(_inputs(model), tensor, activation)


def _inputs(model):
    # A Sequential has a list of one where a call wants the tensor itself.
    single = isinstance(model, keras.Sequential)
    return model.inputs[0] if single else model.input


def _producer(tensor):
    """The operation that made a symbolic tensor, and what it was given.

    Keras has no public way to walk a graph upwards: `_keras_history` and the
    nodes of an operation are what `Model` itself uses.
    """
    operation, node, _ = tensor._keras_history
    return operation, operation._inbound_nodes[node].input_tensors


def _before_activation(tensor):
    operation, arguments = _producer(tensor)
    if isinstance(operation, keras.Model) and getattr(
        operation, "outputs", None
    ):
        head = find_logits(operation)
        if head.activation is None:
            return tensor, None
        inner = keras.Model(
            head.inputs, head.tensor, name=f"{operation.name}_logits"
        )
        given = arguments[0] if len(arguments) == 1 else list(arguments)
        return inner(given), head.activation
    if _passes_through(operation):
        before, activation = _before_activation(arguments[0])
        return (before, activation) if activation else (tensor, None)
    activation = _activation(operation)
    if activation is None:
        return tensor, None
    if not isinstance(operation, keras.layers.Layer) or isinstance(
        operation, keras.layers.Softmax | keras.layers.Activation
    ):
        return arguments[0], activation
    return _without_activation(operation, arguments[0]), activation


def _passes_through(operation):
    """Layers that only rename or cast what the head computed."""
    if isinstance(operation, keras.layers.Activation):
        return operation.activation is keras.activations.linear
    return isinstance(operation, keras.layers.Identity)


def _activation(operation):
    kind = type(operation).__name__
    if kind == "Softmax" and operation.axis in (-1, None):
        return "softmax"
    if kind == "Sigmoid":
        return "sigmoid"
    function = getattr(operation, "activation", None)
    if function is keras.activations.softmax:
        return "softmax"
    if function is keras.activations.sigmoid:
        return "sigmoid"
    return None


def _without_activation(layer, tensor):
    """What a twin of `layer` without its activation makes of `tensor`."""
    config = layer.get_config()
    config["activation"] = "linear"
    config["name"] = f"{layer.name}_logits"
    twin = type(layer).from_config(config)
    logits = twin(tensor)
    twin.set_weights(layer.get_weights())
    return logits
