"""Put an affine map into the weights of a network's last layer."""

import keras
import numpy as np
from keras import layers

from keras_calib.keras_graph.endings import applies_activation_last
from keras_calib.keras_graph.endings import name_of

FUSABLE = (layers.Dense, layers.Conv1D, layers.Conv2D, layers.Conv3D)
# Arguments of these layers. The last three lines matter in training only, and
# may be objects of the user's.
ARGUMENTS = (
    "units", "filters", "kernel_size", "strides", "padding",
    "data_format", "dilation_rate",
    "kernel_initializer", "kernel_regularizer", "kernel_constraint",
    "bias_initializer", "bias_regularizer", "bias_constraint",
    "activity_regularizer",
)  # fmt: skip


def fuse(layer, affine):
    """Put `logits @ matrix + bias` into the weights of a layer.

        kernel' = kernel @ matrix,    bias' = bias_of_layer @ matrix + bias

    Args:
        layer: a layer of `FUSABLE` with a bias; it is changed.
        affine: `(matrix, bias)`; see `CalibrationLayer.as_affine`. For one
            sigmoid unit they apply to the two logits `(0, z)`.
    """
    kernel, bias = (np.asarray(w, "float64") for w in layer.get_weights())
    matrix, shift = (np.asarray(part, "float64") for part in affine)
    if kernel.shape[-1] == 1:
        if matrix.ndim == 1:
            matrix = np.diag(matrix)
        # The difference of the two columns of (0, z) @ matrix + bias.
        matrix = matrix if matrix.ndim == 0 else matrix[1, 1] - matrix[1, 0]
        shift = shift[1] - shift[0]
    times = np.matmul if matrix.ndim == 2 else np.multiply
    layer.set_weights([times(kernel, matrix), times(bias, matrix) + shift])


def copy_with_bias(layer, tensor, name, final):
    """A copy of a layer with a bias and no activation, applied to a tensor.

    Args:
        layer: a layer.
        tensor: its symbolic input.
        name: name of the copy.
        final: whether its activation may be a softmax or sigmoid.

    Returns:
        logits: the symbolic output.
        copy: the new layer, a convolution without groups.

    Raises:
        ValueError: if the layer is none of `FUSABLE`, or its weights are not
            all that determines the logits.
    """
    _check_fusable(layer, final)
    (kind,) = (kind for kind in FUSABLE if isinstance(layer, kind))
    # `get_config` would fail for a regularizer that cannot be serialized.
    arguments = {
        argument: getattr(layer, argument)
        for argument in ARGUMENTS
        if hasattr(layer, argument)
    }
    copy = kind(**arguments, name=name, dtype=layer.dtype_policy)
    weights = layer.get_weights()
    if not layer.use_bias:
        filters = weights[0].shape[-1]
        weights = [*weights, np.zeros(filters, weights[0].dtype)]
    weights[0] = _of_all_channels(weights[0], getattr(layer, "groups", 1))
    logits = copy(tensor)
    copy.set_weights(weights)
    return logits, copy


def _of_all_channels(kernel, groups):
    """The kernel of a convolution without groups that does the same.

    A map that mixes classes would mix filters of different channels.
    """
    if groups == 1:
        return kernel
    *window, channels, filters = kernel.shape
    size = filters // groups
    whole = np.zeros((*window, groups * channels, filters), kernel.dtype)
    for group in range(groups):
        of_group = slice(group * size, (group + 1) * size)
        inputs = slice(group * channels, (group + 1) * channels)
        whole[..., inputs, of_group] = kernel[..., of_group]
    return whole


def _check_fusable(layer, final):
    problem = f"come from {type(layer).__name__} {layer.name!r}"
    if applies_activation_last(layer) and isinstance(layer, FUSABLE):
        removed = final and name_of(layer.activation) in ("softmax", "sigmoid")
        if layer.activation is not keras.activations.linear and not removed:
            name = keras.activations.serialize(layer.activation)
            problem = f"{problem}, whose activation is {name!r}"
        elif getattr(layer, "quantization_mode", None):
            problem = f"come from quantized weights ({layer.name!r})"
        elif getattr(layer, "lora_enabled", False):
            problem = f"come from a layer with LoRA weights ({layer.name!r})"
        elif getattr(layer, "data_format", None) == "channels_first":
            problem = "have their classes on the first axis"
        else:
            return
    raise ValueError(
        "`fuse=True` needs logits from a dense or convolutional layer, into "
        "whose weights a calibration layer can be fused. Received: logits that "
        f"{problem}. Leave out `fuse`."
    )
