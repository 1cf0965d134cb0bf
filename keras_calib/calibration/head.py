"""A trained model -> the same model up to its logits, and its last layer."""

import dataclasses

import keras
import numpy as np

from keras_calib.keras_private import producer

FUSABLE = (
    keras.layers.Dense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
)


@dataclasses.dataclass(frozen=True)
class Head:
    """How a model ends.

    Attributes:
        inputs: the model's inputs, as nested as they are.
        tensor: the symbolic tensor of logits, or of the output where no
            final activation was found.
        activation: `"softmax"`, `"sigmoid"`, or `None` where none was found.
        layer: with `twin=True`, a copy of the layer that computes the logits,
            already part of the graph of `tensor`; otherwise `None`.
    """

    inputs: object
    tensor: object
    activation: str | None
    layer: keras.layers.Layer | None = None


def find_head(model, twin=False):
    """Find the logits of a Functional or Sequential model.

    The final softmax (or sigmoid) may be the activation of the last layer, a
    layer of its own, an operation, or any of these inside a nested model. The
    model is left untouched: where an activation sits inside a layer, a twin
    without it is made that holds the same weights.

    Args:
        model: a built Functional or Sequential model with one output.
        twin: make a twin of the layer that computes the logits in any case,
            one with a bias, so that its weights may be changed.

    Returns:
        `Head`.

    Raises:
        ValueError: if the model has several outputs; with `twin`, if the
            logits do not come from a dense or convolutional layer.
    """
    if len(model.outputs) != 1:
        raise ValueError(
            "Calibration needs a model with one output, the class scores. "
            f"Received: {len(model.outputs)} outputs. Pass "
            "`keras.Model(model.input, model.outputs[i])`."
        )
    tensor, activation, layer = _logits(model, model.outputs[0], twin)
    return Head(_inputs(model), tensor, activation, layer)


def fuse(layer, affine):
    """Put `logits @ matrix + bias` into the weights of a head.

    Args:
        layer: a layer of `FUSABLE` with a bias; it is changed.
        affine: `(matrix, bias)`; see `CalibrationLayer.as_affine`. For one
            sigmoid unit they speak of the two logits `(0, z)`.
    """
    kernel, bias = (np.asarray(w, "float64") for w in layer.get_weights())
    matrix, shift = (np.asarray(part, "float64") for part in affine)
    if kernel.shape[-1] == 1:
        if matrix.ndim == 1:
            matrix = np.diag(matrix)
        # (0, z) @ M + b, as the difference of the two.
        scale = matrix if matrix.ndim == 0 else matrix[1, 1] - matrix[1, 0]
        kernel, bias = kernel * scale, bias * scale + shift[1] - shift[0]
    elif matrix.ndim == 2:
        kernel, bias = kernel @ matrix, bias @ matrix + shift
    else:
        kernel, bias = kernel * matrix, bias * matrix + shift
    layer.set_weights([kernel, bias])


def _inputs(model):
    # A Sequential has a list of one where a call wants the tensor itself.
    single = isinstance(model, keras.Sequential)
    return model.inputs[0] if single else model.input


def _logits(model, tensor, twin):
    """The tensor before the final activation, the activation, the layer."""
    operation, arguments = producer(model, tensor)
    if isinstance(operation, keras.Model) and getattr(
        operation, "outputs", None
    ):
        head = find_head(operation, twin)
        if head.activation is None and not twin:
            return tensor, None, None
        inner = keras.Model(
            head.inputs, head.tensor, name=f"{operation.name}_logits"
        )
        given = arguments[0] if len(arguments) == 1 else list(arguments)
        return inner(given), head.activation, head.layer
    if _passes_through(operation):
        before, activation, layer = _logits(model, arguments[0], twin)
        found = activation or twin
        return (before, activation, layer) if found else (tensor, None, None)
    activation = _activation(operation)
    separate = not isinstance(operation, keras.layers.Layer) or isinstance(
        operation, keras.layers.Softmax | keras.layers.Activation
    )
    if activation is not None and separate:
        if twin:
            before, _, layer = _logits(model, arguments[0], twin)
            return before, activation, layer
        return arguments[0], activation, None
    if twin:
        _check_fusable(operation)
    elif activation is None:
        return tensor, None, None
    logits, layer = _twin(operation, arguments[0], with_bias=twin)
    return logits, activation, layer if twin else None


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


def _check_fusable(operation):
    if getattr(operation, "activation", None) not in (
        keras.activations.linear,
        keras.activations.softmax,
        keras.activations.sigmoid,
    ) or not isinstance(operation, FUSABLE):
        problem = f"come from {type(operation).__name__} {operation.name!r}"
    elif getattr(operation, "quantization_mode", None):
        problem = f"come from quantised weights ({operation.name!r})"
    elif getattr(operation, "lora_enabled", False):
        problem = f"come from a layer with LoRA weights ({operation.name!r})"
    elif getattr(operation, "data_format", None) == "channels_first":
        problem = "have their classes on the first axis"
    else:
        return
    raise ValueError(
        "`fuse=True` needs logits from a dense or convolutional layer, into "
        f"whose weights the map can go. Received: logits that {problem}. "
        "Leave out `fuse`."
    )


def _twin(layer, tensor, with_bias):
    """A copy of `layer` without its activation, applied to `tensor`."""
    config = layer.get_config()
    config["activation"] = "linear"
    if not with_bias:
        config["name"] = f"{layer.name}_logits"
    weights = layer.get_weights()
    if with_bias and not layer.use_bias:
        config["use_bias"] = True
        filters = weights[0].shape[-1]
        weights = [*weights, np.zeros(filters, weights[0].dtype)]
    twin = type(layer).from_config(config)
    logits = twin(tensor)
    twin.set_weights(weights)
    return logits, twin
