"""What a network ends in: logits, a softmax or a sigmoid.

The graph proves it only through operations whose last step is known.
"""

import keras
from keras import layers

from keras_calib.keras_graph.calibrated_model import CalibratedModel
from keras_calib.keras_private import flatten_layers
from keras_calib.keras_private import producer

# Layers whose `call` applies `activation` last.
FINAL = (
    layers.Dense, layers.EinsumDense,
    layers.Conv1D, layers.Conv2D, layers.Conv3D,
    layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose,
    layers.DepthwiseConv1D, layers.DepthwiseConv2D,
    layers.SeparableConv1D, layers.SeparableConv2D,
)  # fmt: skip
# Layers that return their input in inference.
IDENTITY = (
    layers.Identity, layers.ActivityRegularization, layers.Dropout,
    layers.SpatialDropout1D, layers.SpatialDropout2D, layers.SpatialDropout3D,
    layers.AlphaDropout, layers.GaussianDropout, layers.GaussianNoise,
)  # fmt: skip
# Operations that only rearrange rows if the last axis keeps its size.
REARRANGING = ("Reshape", "Cast")
FUNCTIONS = {
    "softmax": (keras.activations.softmax, keras.ops.softmax),
    "sigmoid": (keras.activations.sigmoid, keras.ops.sigmoid),
    # Log-probabilities are logits: their softmax returns the probabilities.
    "linear": (
        keras.activations.linear,
        keras.activations.log_softmax,
        keras.ops.log_softmax,
        None,
    ),
}
# Operations of Keras that are an activation and nothing else.
ACTIVATIONS = {
    "Softmax": "softmax",
    "Sigmoid": "sigmoid",
    "LogSoftmax": "linear",
}
# An attribute of a model that was taken out of one with several outputs.
OTHERS = "_keras_calib_other_outputs"
KINDS = {
    "softmax": "probabilities",
    "sigmoid": "probabilities",
    "linear": "logits",
}


def output_kind(model: keras.Model) -> str | None:
    """What a model's output is, as far as its graph proves it.

    A layer proves it only if its activation is its last step: `Dense`,
    `EinsumDense`, convolutions, `Activation`, `Softmax`, `ops.softmax` and
    `ops.sigmoid`, `TimeDistributed` around one of them, and nested models.
    Operations that do not change rows in inference may follow, such as
    `Dropout`, `Reshape` and casts. The average of softmax outputs has
    probabilities. Recurrent and attention layers, `Lambda`, `Rescaling` and
    custom layers prove nothing.

    Several sigmoid units are probabilities, but not of a softmax: see
    `refuse_several_sigmoids`.

    Args:
        model: a `keras.Model`. One without a graph (subclassed) may have an
            attribute `output_kind` with the answer.

    Returns:
        `"logits"`, `"probabilities"`, or `None` if it is unknown, so that
        `from_logits=` has to be passed.

    Example:
        >>> import keras
        >>> from keras_calib.keras_graph.endings import output_kind
        >>> model = keras.Sequential([keras.Input((2,)),
        ...                           keras.layers.Dense(3, "softmax")])
        >>> output_kind(model)
        'probabilities'
    """
    said = getattr(model, "output_kind", None)
    if said in ("logits", "probabilities"):
        return said
    return KINDS.get(final_activation(model) or "")


def is_average(model: keras.Model) -> bool:
    """Whether it is an average of networks, whose class says what it gives."""
    return getattr(type(model), "output_kind", None) == "probabilities"


def gives_logits(model: keras.Model, from_logits: bool | None = None) -> bool:
    """Whether a model gives logits: `from_logits`, or what its graph shows.

    One that ends in a softmax or sigmoid gives probabilities, whatever is said
    of the models beside it.

    Raises:
        ValueError: if `from_logits` is `None` and the graph does not show it,
            or if the model ends in a decision.
    """
    refuse_decision(model)
    kind = output_kind(model)
    if kind == "probabilities":
        return False
    if from_logits is not None:
        return bool(from_logits)
    if kind is None:
        raise ValueError(
            f"The graph of {model.name!r} does not show whether it gives "
            "logits or probabilities. Received: from_logits=None. Pass "
            "`from_logits=True` or `False`."
        )
    return kind == "logits"


def final_activation(model: keras.Model) -> str | None:
    """The last function of a model's graph, as far as the graph proves it.

    Args:
        model: a `keras.Model`.

    Returns:
        `"softmax"`, `"sigmoid"`, `"linear"` (logits), or `None`; see
        `output_kind`.
    """
    return ending(model)[0]


def ending(model, tensor=None):
    """The last function of a model, and whether it can be taken off.

    Args:
        model: a `keras.Model`; `None` for a tensor of which no model is made.
        tensor: a symbolic tensor of the model; its only output by default.

    Returns:
        activation: see `final_activation`.
        removable: whether the graph contains the input of that function.
    """
    if isinstance(model, CalibratedModel):
        return final_activation(model.head), False
    if tensor is None:
        if not has_graph(model) or len(model.outputs) != 1:
            return None, False
        tensor = model.outputs[0]
    operation, arguments = producer(model, tensor)
    if isinstance(operation, keras.Model):
        activation, removable = ending(operation)
        if removable and model is not None:
            removable = not is_used_before(model, operation, arguments)
        return activation, removable
    if is_identity(operation) or rearranges(operation, arguments, tensor):
        return ending(model, arguments[0])
    if type(operation) is layers.Average:
        found = {ending(model, argument)[0] for argument in arguments}
        return (found.pop() if len(found) == 1 else None), False
    declared = getattr(operation, "ends_in", None)
    if declared is not None:
        return declared, False
    return activation_of(operation, arguments, tensor), True


def refuse_probabilities(tensor, name):
    """Refuse a symbolic tensor that its graph shows to be probabilities.

    Args:
        tensor: inputs of a layer that takes logits.
        name: of the layer.

    Raises:
        ValueError: if it does, with what to do.
    """
    try:
        activation, _ = ending(None, tensor)
        operation, _ = producer(None, tensor)
    except ValueError:  # it belongs to no graph
        return
    given = None
    if KINDS.get(activation or "") == "probabilities":
        given = f"a {activation}"
    elif output_kind(operation) == "probabilities":
        given = f"{operation.name!r}, a {type(operation).__name__}"
    if given is not None:
        raise ValueError(
            f"{name} takes logits. Received: the output of {given}, which are "
            "probabilities. Pass what comes before them, or their logarithm; "
            '`kc.calibrate(..., output="logits")` returns a model of logits.'
        )


def averages_probabilities(model):
    """Whether the last layer averages probabilities: there are no logits.

    An average of networks says so itself.
    """
    if getattr(model, "output_kind", None) == "probabilities":
        return True
    if not has_graph(model) or output_kind(model) != "probabilities":
        return False
    operation, _ = producer(model, model.outputs[0])
    return type(operation) is layers.Average


def is_used_before(model, nested, arguments):
    """Whether layers of a nested model also compute its inputs.

    Or another output of the model that this one was taken out of. A second
    nested model would then share them with the first, and Keras cannot load a
    file of layers that two nested models share.
    """
    others = getattr(model, OTHERS, [])
    ends = [*arguments, *others]
    before = keras.Model(inputs_of(model), ends, name="elsewhere")
    inside = {id(layer) for layer in flatten_layers(nested) if layer.variables}
    return any(id(layer) in inside for layer in flatten_layers(before))


def with_other_outputs(model, others):
    """Remember, beside a model of one output, the others of the whole model.

    Args:
        model: a Functional model.
        others: list of symbolic tensors of the model that it was taken out of.

    Returns:
        `model`.
    """
    setattr(model, OTHERS, others)
    return model


def inputs_of(model):
    """A model's symbolic inputs, in the structure that it is called with."""
    # A Sequential has a list of one, and is called with the tensor itself.
    single = isinstance(model, keras.Sequential)
    return model.inputs[0] if single else model.input


def refuse_decision(model: keras.Model) -> None:
    """Raise if a model ends in a decision layer that gives no class scores."""
    if not has_graph(model) or len(model.outputs) != 1:
        return
    layer, _ = producer(model, model.outputs[0])
    if not getattr(layer, "gives_scores", True):
        raise ValueError(
            "The model ends in a decision, and gives no class scores. "
            f"Received: model {model.name!r}, which ends in {layer.name!r} "
            f"({type(layer).__name__}). Pass the model before it, "
            f"`keras.Model(model.inputs, model.get_layer({layer.name!r})"
            ".input)`, and fit the decision again to what comes back."
        )


def refuse_several_sigmoids(model: keras.Model) -> None:
    """Refuse a model whose graph ends in more than one sigmoid unit.

    Raises:
        ValueError: if it does, with what to do.
    """
    num_units = model.outputs[0].shape[-1] if has_graph(model) else 1
    if final_activation(model) == "sigmoid" and num_units != 1:
        raise ValueError(
            "Several sigmoid units are a multi-label model: their "
            "probabilities do not exclude each other, and no softmax "
            f"describes them. Received: model {model.name!r} with {num_units} "
            "sigmoid units. `kc.calibrate` takes `multi_label=True`; or give "
            "it a softmax."
        )


def has_graph(model: keras.Model) -> bool:
    """Whether a model is Functional or Sequential, so that its end is known."""
    if not getattr(model, "outputs", None):
        return False
    # A subclass may be built from inputs and outputs, but override `call`.
    return type(model).call.__module__.split(".")[0] == "keras"


def check_one_output(
    model: keras.Model, name: str | None = None, *, called: bool = False
) -> None:
    """Refuse a graph with several outputs, or with a dict of them.

    Args:
        model: a model with a graph.
        name: how the error calls it.
        called: whether a list of one output is refused, too: `predict` and
            `fit` take it out of the list, a symbolic call does not.

    Raises:
        ValueError: if there are any.
    """
    structure = getattr(model, "output", None)
    refused = (dict, list) if called else dict
    if len(model.outputs) == 1 and not isinstance(structure, refused):
        return
    received, place = f"the outputs {model.output_names}", "outputs[i]"
    if len(model.outputs) == 1:
        received, place = "a list of one output", "outputs[0]"
    if isinstance(structure, dict):
        keys = ", ".join(map(repr, structure))
        received = f"a dict of outputs with the keys {keys}"
        place = "output[key]"
    raise ValueError(
        "A model needs one output, the class scores as a tensor. Received: "
        f"{name or f'model {model.name!r}'} with {received}. Pass "
        f"`keras.Model(model.inputs, model.{place})`; `kc.calibrate` takes "
        "`output_name=`."
    )


def has_outputs(model: keras.Model) -> bool:
    """Whether a model has a graph that ends somewhere."""
    return bool(getattr(model, "outputs", None))


def is_identity(operation):
    """Whether a layer returns its input in inference."""
    operation = of_each_step(operation)
    if type(operation) is layers.Activation:
        return operation.activation is keras.activations.linear
    return type(operation) in IDENTITY


def rearranges(operation, arguments, tensor):
    """Whether rows of the output are rows of the only input."""
    if len(arguments) != 1 or arguments[0].shape[-1] is None:
        return False
    if arguments[0].shape[-1] != tensor.shape[-1]:
        return False
    if type(operation) is layers.Permute:
        return operation.dims[-1] == len(operation.dims)
    if type(operation) is layers.Flatten:
        return operation.data_format == "channels_last"
    return _of_keras(operation) and type(operation).__name__ in REARRANGING


def _of_keras(operation):
    return type(operation).__module__.split(".")[0] == "keras"


def activation_of(operation, arguments, tensor):
    """The function that an operation applies last, or `None` if unknown."""
    given, operation = operation, of_each_step(operation)
    # A layer of each step does not see the axis of steps.
    rank = len(tensor.shape) - (operation is not given)
    if is_activation(operation):
        if len(arguments) != 1:
            return None  # a softmax with a mask
        if isinstance(operation, layers.Activation):
            return name_of(operation.activation)
        last = getattr(operation, "axis", -1) in (-1, None, rank - 1)
        return ACTIVATIONS[type(operation).__name__] if last else None
    if not applies_activation_last(operation):
        return None
    if getattr(operation, "data_format", None) == "channels_first":
        return None  # a softmax over the last axis, which is not the classes
    return name_of(operation.activation)


def of_each_step(operation):
    """The layer that `TimeDistributed` applies, or the operation itself."""
    if type(operation) is layers.TimeDistributed:
        return operation.layer
    return operation


def is_activation(operation):
    """Whether an operation is an activation and nothing else."""
    operation = of_each_step(operation)
    if type(operation) in (layers.Activation, layers.Softmax):
        return True
    is_layer = isinstance(operation, layers.Layer)
    known = type(operation).__name__ in ACTIVATIONS
    return known and not is_layer and _of_keras(operation)


def applies_activation_last(operation):
    """Whether a layer's `activation` is certainly its last step."""
    # A subclass with a `call` of its own may compute something else.
    return any(
        isinstance(operation, kind) and type(operation).call is kind.call
        for kind in FINAL
    )


def name_of(function):
    """`"softmax"`, `"sigmoid"`, `"linear"`, or `None` if unknown."""
    if isinstance(function, layers.Softmax):
        return "softmax" if function.axis == -1 else None
    for name, functions in FUNCTIONS.items():
        if any(function is known for known in functions):
            return name
    return None
