"""What a model's graph ends in, its logits, and its last layer."""

import dataclasses

import keras
import numpy as np

from keras_calib.keras_graph.calibrated_model import CalibratedModel
from keras_calib.keras_graph.without_activation import WithoutActivation
from keras_calib.keras_private import flatten_layers
from keras_calib.keras_private import producer
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._log_probabilities import LogProbabilities

# Layers whose `call` applies `activation` last.
FINAL = (
    keras.layers.Dense,
    keras.layers.EinsumDense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
    keras.layers.Conv1DTranspose,
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose,
    keras.layers.DepthwiseConv1D,
    keras.layers.DepthwiseConv2D,
    keras.layers.SeparableConv1D,
    keras.layers.SeparableConv2D,
)
FUSABLE = (
    keras.layers.Dense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
)
# Layers that return their input in inference.
IDENTITY = (
    keras.layers.Identity,
    keras.layers.Dropout,
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
    keras.layers.AlphaDropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
    keras.layers.ActivityRegularization,
)
# Layers and operations that only arrange rows, if the last axis keeps its size
# and its place.
ARRANGING = (keras.layers.Reshape, keras.layers.Flatten)
ARRANGING_NAMES = ("Reshape", "Cast")
FUNCTIONS = {
    "softmax": (keras.activations.softmax, keras.ops.softmax),
    "sigmoid": (keras.activations.sigmoid, keras.ops.sigmoid),
    # Log-probabilities are logits whose softmax they are.
    "linear": (
        keras.activations.linear,
        keras.activations.log_softmax,
        keras.ops.log_softmax,
        None,
    ),
}


@dataclasses.dataclass(frozen=True)
class Head:
    """How a model ends.

    Attributes:
        inputs: the model's inputs, as nested as they are.
        tensor: the symbolic tensor of logits, or of the output where no
            final activation can be taken off.
        activation: `"softmax"`, `"sigmoid"`, or `None` where none was taken
            off.
        layer: with `twin=True`, a copy of the layer that computes the logits,
            already part of the graph of `tensor`; otherwise `None`.
        kind: what the model's output is, see `output_kind`.
    """

    inputs: object
    tensor: object
    activation: str | None
    layer: keras.layers.Layer | None = None
    kind: str | None = None


def output_kind(model):
    """What a model's output is, as far as its graph proves it.

    A layer proves it only if its activation is the last that it computes:
    `Dense`, `EinsumDense`, convolutions, `Activation`, `Softmax`, `ops.softmax`
    and `ops.sigmoid`, `TimeDistributed` around one of them, nested models, and
    what leaves rows as they are in inference: `Dropout`, `Reshape`, casts. The
    average of softmaxes has probabilities. Recurrent and attention layers,
    `Lambda`, `Rescaling` and custom layers prove nothing.

    Several sigmoid units are probabilities, and no softmax: see
    `refuse_several_sigmoids`.

    Args:
        model: a `keras.Model`. One without a graph (subclassed) may have an
            attribute `output_kind` that says it.

    Returns:
        `"logits"`, `"probabilities"`, or `None` where it cannot be known: ask
        for `from_logits=` then.

    Example:
        >>> import keras
        >>> from keras_calib.keras_graph.heads import output_kind
        >>> model = keras.Sequential([keras.Input((2,)),
        ...                           keras.layers.Dense(3, "softmax")])
        >>> output_kind(model)
        'probabilities'
    """
    said = getattr(model, "output_kind", None)
    if said in ("logits", "probabilities"):
        return said
    activation, _ = _ending(model)
    kinds = {
        "softmax": "probabilities",
        "sigmoid": "probabilities",
        "linear": "logits",
    }
    return kinds.get(activation)


def final_activation(model):
    """The last function of a model's graph, as far as the graph proves it.

    Args:
        model: a `keras.Model`.

    Returns:
        `"softmax"`, `"sigmoid"`, `"linear"` (logits), or `None`; see
        `output_kind`.
    """
    return _ending(model)[0]


def refuse_several_sigmoids(model):
    """Refuse a model whose graph ends in more than one sigmoid unit.

    Raises:
        ValueError: with what to do.
    """
    activation, _ = _ending(model)
    num_units = model.outputs[0].shape[-1] if has_graph(model) else 1
    if activation == "sigmoid" and num_units != 1:
        raise ValueError(
            "Several sigmoid units are a multi-label model: their "
            "probabilities do not exclude each other, and no softmax "
            f"describes them. Received: model {model.name!r} with {num_units} "
            "sigmoid units. Give it a softmax, or calibrate one label at a "
            "time: `keras.Model(model.input, model.output[..., i:i + 1])` with "
            "`y[..., i]`."
        )


def has_graph(model):
    """Whether a model is Functional or Sequential, so that its end is known."""
    if not getattr(model, "outputs", None):
        return False
    # A subclass may be built from inputs and outputs, and compute otherwise.
    return type(model).call.__module__.split(".")[0] == "keras"


def find_head(model, twin=False):
    """Find the logits of a Functional or Sequential model.

    The final softmax (or sigmoid) may be the activation of the last layer, a
    layer of its own, an operation, or any of these inside a nested model; see
    `output_kind` for what may come after it. The model is left untouched:
    where an activation sits inside a layer, a `WithoutActivation` stands for
    it, which has the same weights (not copies).

    Args:
        model: a built Functional or Sequential model with one output.
        twin: copy the layer that computes the logits in any case, with a bias,
            so that its weights may be changed.

    Returns:
        `Head`.

    Raises:
        ValueError: if the model has several outputs; with `twin`, if the
            logits do not come from a dense or convolutional layer.
    """
    check_one_output(model)
    tensor, layer = model.outputs[0], None
    activation, removable = _ending(model)
    final = activation in ("softmax", "sigmoid")
    if twin:
        tensor, layer = _Stripper(model, twin=True).strip(final)
    elif final and removable:
        tensor, _ = _Stripper(model).strip(final)
    return Head(
        inputs_of(model),
        tensor,
        activation if final and (twin or removable) else None,
        layer,
        output_kind(model),
    )


def check_one_output(model):
    """Refuse a graph with several outputs, or with named ones."""
    outputs = model.outputs
    if isinstance(getattr(model, "output", None), dict):
        names = ", ".join(map(repr, model.output))
        received = f"a dict of outputs with the keys {names}"
        remedy = "keras.Model(model.input, model.output[name])"
    elif len(outputs) != 1:
        received = f"{len(outputs)} outputs"
        remedy = "keras.Model(model.input, model.outputs[i])"
    else:
        return
    raise ValueError(
        "Calibration needs a model with one output, the class scores. "
        f"Received: {received}. Pass `{remedy}`."
    )


def inputs_of(model):
    """A model's symbolic inputs, in the structure that it is called with."""
    # A Sequential has a list of one where a call wants the tensor itself.
    single = isinstance(model, keras.Sequential)
    return model.inputs[0] if single else model.input


def free_name(network, name):
    """The name, with a number if a layer of the network has it."""
    taken = {layer.name for layer in flatten_layers(network)}
    free, i = name, 1
    while free in taken:
        free, i = f"{name}_{i}", i + 1
    return free


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


def _ending(model, tensor=None):
    """The last function of a model: its name, and if it can be taken off.

    Returns:
        activation: `"softmax"`, `"sigmoid"`, `"linear"`, or `None` where the
            graph does not tell.
        removable: whether the tensor before it is in the graph.
    """
    if isinstance(model, CalibratedModel):
        return _ending(model.head)[0], False
    if tensor is None:
        if not has_graph(model) or len(model.outputs) != 1:
            return None, False
        tensor = model.outputs[0]
    operation, arguments = producer(model, tensor)
    if isinstance(operation, keras.Model):
        activation, removable = _ending(operation)
        if removable:
            removable = not _used_before(model, operation, arguments)
        return activation, removable
    if _is_identity(operation) or _arranges(operation, arguments, tensor):
        return _ending(model, arguments[0])
    if type(operation) is keras.layers.Average:
        found = {_ending(model, argument)[0] for argument in arguments}
        return (found.pop() if len(found) == 1 else None), False
    if isinstance(operation, CalibrationLayer | LogProbabilities):
        return "linear", False
    return _activation(operation, arguments, tensor), True


def _used_before(model, nested, arguments):
    """Whether layers of a nested model have a part in its inputs, too.

    Then a second nested model would share them with the first, and Keras
    cannot load a file of layers that two nested models share.
    """
    before = keras.Model(inputs_of(model), arguments, name="before")
    inside = {id(layer) for layer in flatten_layers(nested) if layer.variables}
    return any(id(layer) in inside for layer in flatten_layers(before))


def _is_identity(operation):
    """Layers that only name what the head computed, in inference."""
    if type(operation) is keras.layers.Activation:
        return operation.activation is keras.activations.linear
    return type(operation) in IDENTITY


def _arranges(operation, arguments, tensor):
    """Whether rows of the output are rows of the only input."""
    if len(arguments) != 1 or arguments[0].shape[-1] is None:
        return False
    if arguments[0].shape[-1] != tensor.shape[-1]:
        return False
    if type(operation) is keras.layers.Permute:
        return operation.dims[-1] == len(operation.dims)
    if type(operation) is keras.layers.Flatten:
        return operation.data_format == "channels_last"
    if type(operation) in ARRANGING:
        return True
    return _of_keras(operation) and type(operation).__name__ in ARRANGING_NAMES


def _of_keras(operation):
    return type(operation).__module__.split(".")[0] == "keras"


def _activation(operation, arguments, tensor):
    """The function that an operation applies last, or `None` if unknown."""
    rank = len(tensor.shape)
    if _is_separate(operation):
        if len(arguments) != 1:
            return None  # a softmax with a mask
        if type(operation) is keras.layers.Activation:
            return _name_of(operation.activation)
        name = {"Softmax": "softmax", "Sigmoid": "sigmoid"}.get(
            type(operation).__name__, "linear"
        )
        axis = getattr(operation, "axis", -1)
        return name if axis in (-1, None, rank - 1) else None
    if type(operation) is keras.layers.TimeDistributed:
        operation = operation.layer
    if not _is_final(operation):
        return None
    if getattr(operation, "data_format", None) == "channels_first":
        return None  # a softmax over the last axis, which is not the classes
    return _name_of(operation.activation)


def _is_separate(operation):
    """Whether an operation is an activation and nothing else."""
    if type(operation) in (keras.layers.Activation, keras.layers.Softmax):
        return True
    return (
        _of_keras(operation)
        and not isinstance(operation, keras.layers.Layer)
        and type(operation).__name__ in ("Softmax", "Sigmoid", "LogSoftmax")
    )


def _is_final(operation):
    """Whether a layer's `activation` is certainly its last step."""
    for kind in FINAL:
        # A subclass may compute something else.
        if isinstance(operation, kind) and type(operation).call is kind.call:
            return True
    return False


def _name_of(function):
    if isinstance(function, keras.layers.Softmax):
        return "softmax" if function.axis == -1 else None
    for name, functions in FUNCTIONS.items():
        if any(function is known for known in functions):
            return name
    return None


class _Stripper:
    """Rebuilds the end of a graph without its final softmax or sigmoid.

    Args:
        model: a Functional or Sequential model with one output.
        twin: replace the layer that computes the logits by a copy of it.
    """

    def __init__(self, model, twin=False):
        self.model = model
        self.twin = twin

    def strip(self, final):
        """The tensor of logits, and the copy of the layer that computes it.

        Args:
            final: whether there is a softmax or sigmoid to take off.
        """
        return self._before(self.model, self.model.outputs[0], final)

    def _before(self, model, tensor, final):
        operation, arguments = producer(model, tensor)
        if isinstance(operation, keras.Model) and has_graph(operation):
            return self._nested(operation, arguments, final, model)
        if _is_identity(operation):
            return self._before(model, arguments[0], final)
        if _arranges(operation, arguments, tensor):
            tensor, layer = self._before(model, arguments[0], final)
            return operation(tensor), layer
        if final and _is_separate(operation):
            if self.twin:
                return self._before(model, arguments[0], False)
            return arguments[0], None
        if self.twin:
            _check_fusable(operation, final)
            # A layer that is used before, too, stays there under its name.
            rest = keras.Model(inputs_of(model), arguments[0])
            name = free_name(rest, operation.name)
            return _copy(operation, arguments[0], name)
        name = free_name(self.model, f"{operation.name}_logits")
        if type(operation) is keras.layers.TimeDistributed:
            layer = keras.layers.TimeDistributed(
                WithoutActivation(operation.layer), name=name
            )
        else:
            layer = WithoutActivation(operation, name=name)
        return layer(arguments[0]), None

    def _nested(self, model, arguments, final, outer):
        if _used_before(outer, model, arguments):
            raise ValueError(
                "`fuse=True` changes a part of a nested model, and Keras "
                "cannot save one that shares layers with another. Received: "
                f"{model.name!r}, which is used in two places. Leave out "
                "`fuse`."
            )
        tensor, layer = self._before(model, model.outputs[0], final)
        inner = keras.Model(
            inputs_of(model),
            tensor,
            name=free_name(self.model, f"{model.name}_logits"),
        )
        given = keras.tree.pack_sequence_as(inputs_of(model), arguments)
        return inner(given), layer


def _check_fusable(operation, final):
    if not _is_final(operation) or not isinstance(operation, FUSABLE):
        problem = f"come from {type(operation).__name__} {operation.name!r}"
    elif operation.activation is not keras.activations.linear and not (
        final and _name_of(operation.activation) in ("softmax", "sigmoid")
    ):
        name = keras.activations.serialize(operation.activation)
        problem = (
            f"come from {type(operation).__name__} {operation.name!r}, whose "
            f"activation is {name!r}"
        )
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


# What the shape and the arithmetic of a layer of `FUSABLE` depend on.
SETTINGS = (
    "units",
    "filters",
    "kernel_size",
    "strides",
    "padding",
    "data_format",
    "dilation_rate",
    "groups",
)
# What only training depends on; objects of the user's.
PARTS = tuple(
    f"{weight}_{part}"
    for weight in ("kernel", "bias")
    for part in ("initializer", "regularizer", "constraint")
)


def _copy(layer, tensor, name):
    """A copy of `layer` with a bias and no activation, applied to `tensor`.

    It is made from the layer's arguments, because `get_config` fails for a
    regularizer that cannot be serialized.
    """
    (kind,) = (kind for kind in FUSABLE if isinstance(layer, kind))
    copy = kind(
        **{
            name: getattr(layer, name)
            for name in (*SETTINGS, *PARTS, "activity_regularizer")
            if hasattr(layer, name)
        },
        name=name,
        dtype=layer.dtype_policy,
    )
    weights = layer.get_weights()
    if not layer.use_bias:
        filters = weights[0].shape[-1]
        weights = [*weights, np.zeros(filters, weights[0].dtype)]
    logits = copy(tensor)
    copy.set_weights(weights)
    return logits, copy
