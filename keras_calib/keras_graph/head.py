"""The logits of a network: its graph without the final softmax or sigmoid."""

import dataclasses
from typing import Any

import keras

from keras_calib.keras_graph import endings
from keras_calib.keras_graph.endings import inputs_of
from keras_calib.keras_graph.fuse import copy_with_bias
from keras_calib.keras_graph.without_activation import WithoutActivation
from keras_calib.keras_private import flatten_layers
from keras_calib.keras_private import inside
from keras_calib.keras_private import producer


@dataclasses.dataclass(frozen=True)
class Head:
    """How a model ends.

    Attributes:
        inputs: the model's inputs, in the structure that it is called with.
        tensor: the symbolic tensor of logits; or the model's output, if no
            final activation can be taken off.
        activation: the activation that was taken off, `"softmax"` or
            `"sigmoid"`; or `None`.
        layer: with `twin=True`, a copy of the layer that computes the logits,
            which is part of the graph of `tensor`; otherwise `None`.
    """

    inputs: Any
    tensor: keras.KerasTensor
    activation: str | None
    layer: keras.layers.Layer | None = None


def find_head(model: keras.Model, *, twin: bool = False) -> Head:
    """Find the logits of a Functional or Sequential model.

    The final softmax (or sigmoid) may be the activation of the last layer, a
    layer, an operation, or any of these inside a nested model; see
    `output_kind` for what may follow it. The model is not changed. Where an
    activation belongs to a layer, a `WithoutActivation` takes the place of the
    layer and uses the same weights, not copies.

    Args:
        model: a built Functional or Sequential model with one output.
        twin: whether to copy the layer that computes the logits, with a bias,
            so that its weights may be changed.

    Returns:
        `Head`.

    Raises:
        ValueError: if the model has several outputs; with `twin`, if the
            logits do not come from a dense or convolutional layer.
    """
    endings.check_one_output(model)
    tensor, layer = model.outputs[0], None
    activation, removable = endings.ending(model)
    final = activation in ("softmax", "sigmoid")
    removed = final and (twin or removable)
    if twin or removed:
        tensor, layer = _Stripper(model, twin).before(model, tensor, final)
    return Head(
        inputs_of(model), tensor, activation if removed else None, layer
    )


def free_name(network: keras.Model, name: str) -> str:
    """The name, with a number if a layer of the network has it."""
    taken = {layer.name for layer in flatten_layers(network)}
    free, i = name, 1
    while free in taken:
        free, i = f"{name}_{i}", i + 1
    return free


@dataclasses.dataclass
class _Stripper:
    """Rebuilds the end of a graph without its final softmax or sigmoid.

    Attributes:
        root: the whole model, for names that are free in it.
        twin: whether to replace the layer that computes the logits by a copy.
    """

    root: keras.Model
    twin: bool

    def before(self, model, tensor, final):
        """The logits that a tensor is computed from, and the copied layer.

        Args:
            model: the model whose graph holds `tensor`.
            tensor: a symbolic tensor.
            final: whether a softmax or sigmoid has to be taken off.
        """
        operation, arguments = producer(model, tensor)
        if isinstance(operation, keras.Model) and endings.has_graph(operation):
            within = inside(operation, tensor)
            return self._nested(model, operation, within, arguments, final)
        if endings.is_identity(operation):
            return self.before(model, arguments[0], final)
        if endings.rearranges(operation, arguments, tensor):
            tensor, layer = self.before(model, arguments[0], final)
            return operation(tensor), layer
        if final and endings.is_activation(operation):
            if self.twin:
                return self.before(model, arguments[0], False)
            return arguments[0], None
        if not arguments:
            raise ValueError(
                "`fuse=True` changes the last layer, and this model has none "
                f"with weights. Received: {model.name!r}, whose output is its "
                "input. Leave out `fuse`."
            )
        if self.twin:
            # If the layer is also used earlier, it stays there with its name.
            rest = keras.Model(inputs_of(model), arguments[0])
            name = free_name(rest, operation.name)
            return copy_with_bias(operation, arguments[0], name, final)
        name = free_name(self.root, f"{operation.name}_logits")
        if type(operation) is keras.layers.TimeDistributed:
            layer = keras.layers.TimeDistributed(
                WithoutActivation(operation.layer), name=name
            )
        else:
            layer = WithoutActivation(operation, name=name)
        return layer(arguments[0]), None

    def _nested(self, outer, model, tensor, arguments, final):
        if endings.is_used_before(outer, model, arguments):
            raise ValueError(
                "`fuse=True` changes a part of a nested model, and Keras "
                "cannot save one that shares layers with another. Received: "
                f"{model.name!r}, which is used in two places. Leave out "
                "`fuse`."
            )
        tensor, layer = self.before(model, tensor, final)
        name = free_name(self.root, f"{model.name}_logits")
        inner = keras.Model(inputs_of(model), tensor, name=name)
        given = keras.tree.pack_sequence_as(inputs_of(model), arguments)
        return inner(given), layer
