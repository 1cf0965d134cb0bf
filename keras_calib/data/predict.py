"""Outputs and masks of a network, batch by batch.

`predict` of Keras loses the mask of the outputs, and recurrent layers may carry
their states over.
"""

import collections
import contextlib
import types

import keras
import numpy as np

from keras_calib.inputs.arrays import as_array
from keras_calib.keras_graph.preprocessors import preprocessor_of
from keras_calib.keras_private import flatten_layers
from keras_calib.keras_private import keras_mask
from keras_calib.ops.replicas import num_replicas


def stateful_layers(model):
    """Recurrent layers that carry their state from batch to batch."""
    return [
        layer
        for layer in flatten_layers(model)
        if getattr(layer, "stateful", False) and hasattr(layer, "states")
    ]


@contextlib.contextmanager
def states_kept(model, *, reset=False):
    """Give stateful layers their states back when the block ends.

    Args:
        model: a `keras.Model`.
        reset: whether the block starts from zero states.
    """
    layers = [layer for layer in stateful_layers(model) if layer.states]
    # Keras does not track states as variables of the layer.
    states = keras.tree.flatten([layer.states for layer in layers])
    before = [np.array(keras.ops.convert_to_numpy(state)) for state in states]
    if reset:
        for layer in layers:
            layer.reset_state()
    try:
        yield
    finally:
        for state, value in zip(states, before, strict=True):
            state.assign(value)


def outputs_and_mask(network, x):
    """Output of a network for one batch, and Keras' mask of this output.

    `predict_on_batch` loses the mask. If a layer can make one (see `may_mask`),
    a second model that also returns the mask is compiled. It shares the layers
    of the network, and is stored with the network for the next call. Otherwise
    this is `network.predict_on_batch(x)`.

    Args:
        network: a built `keras.Model` with one output, which may be in a dict
            or list.
        x: inputs of one batch, NumPy arrays or tensors of the backend.

    Returns:
        outputs: array, `(batch, ..., num_classes)`.
        mask: boolean array, `(batch, ...)`, false for padding; `None` if Keras
            has no mask.

    Raises:
        ValueError: if the network has several outputs, or its mask does not
            fit its output.
    """
    runner = network
    if preprocessor_of(network) is not None:
        x = strings_as_lists(x)
    if may_mask(network):
        # Only its own `predict_on_batch` would preprocess raw inputs.
        runner, x = _with_mask(network), _preprocessed(network, x)
    found = runner.predict_on_batch(x)
    outputs, mask = found if isinstance(found, _Masked) else (found, None)
    outputs = _only_leaf(outputs)
    if isinstance(outputs, dict | list | tuple):
        raise ValueError(
            "This needs a model with one output, the class scores. "
            f"Received: a {type(outputs).__name__} of {len(outputs)} outputs. "
            "Pass `keras.Model(model.inputs, model.outputs[i])`, or "
            "`model.output[key]` of a dict."
        )
    # Each replica of a strategy receives the whole batch.
    length = len(outputs) // num_replicas(network)
    outputs = as_array(outputs)[:length]
    return outputs, _fitting(mask, outputs, length)


def _preprocessed(network, x):
    """Inputs of a network that preprocesses them, as tasks of KerasHub do."""
    if preprocessor_of(network) is None:
        return x
    found = network.preprocess_samples(x)
    return keras.utils.unpack_x_y_sample_weight(found)[0]


def strings_as_lists(x):
    """Arrays of strings as lists, which every tokenizer takes."""
    return keras.tree.map_structure(_as_list_if_strings, x)


def _as_list_if_strings(leaf):
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "OSU":
        return leaf
    texts = leaf.tolist()
    if leaf.ndim != 1 or not all(isinstance(t, str | bytes) for t in texts):
        return leaf
    return [t.decode() if isinstance(t, bytes) else t for t in texts]


def _only_leaf(outputs):
    """The tensor in a dict or list of one; several as they are."""
    leaves = keras.tree.flatten(outputs)
    return leaves[0] if len(leaves) == 1 else outputs


def _fitting(mask, outputs, length):
    if mask is None:
        return None
    mask = as_array(mask)[:length].astype(bool)
    if mask.shape == (*outputs.shape[:-1], 1):
        mask = mask[..., 0]
    if mask.shape != outputs.shape[: mask.ndim] or mask.ndim == outputs.ndim:
        raise ValueError(
            "The mask of the model's output does not fit the output. Received: "
            f"a mask of shape {mask.shape}, an output of shape "
            f"{outputs.shape}. A layer that removes the time axis must not "
            "pass its mask on: return `None` from its `compute_mask`."
        )
    return mask


def may_mask(network):
    """Whether any layer of a network can make a mask.

    Such layers are `Masking`, embeddings with `mask_zero=True`, and custom
    layers that override `compute_mask`.
    """
    return any(map(_makes_mask, flatten_layers(network)))


def _makes_mask(layer):
    if isinstance(layer, keras.layers.Masking):
        return True
    if getattr(layer, "mask_zero", False):
        return True
    module = getattr(type(layer).compute_mask, "__module__", "")
    return module.split(".")[0] != "keras"


class _WithMask(keras.Model):
    """A network that returns its output, and the mask if there is one."""

    def __init__(self, network):
        super().__init__(name="with_mask", autocast=False)
        self.network = network
        self.run_eagerly = network.run_eagerly
        self.jit_compile = network.jit_compile
        self.built = True

    def call(self, inputs):
        outputs = _only_leaf(self.network(inputs, training=False))
        if isinstance(outputs, dict | list | tuple):
            return outputs
        mask = keras_mask(outputs)
        return outputs if mask is None else _Masked(outputs, mask)


_Masked = collections.namedtuple("_Masked", ["outputs", "mask"])
# The attribute of a network that holds its `_WithMask`.
_RUNNER = "_keras_calib_runner"


def _with_mask(network):
    holder = vars(network).get(_RUNNER)
    settings = network.run_eagerly, network.jit_compile
    if holder is None or holder.settings != settings:
        strategy = getattr(network, "distribute_strategy", None)
        scope = strategy.scope if strategy else contextlib.nullcontext
        with scope():
            model = _WithMask(network)
        # Not by Keras, which would track the model as a part of the network.
        holder = types.SimpleNamespace(model=model, settings=settings)
        object.__setattr__(network, _RUNNER, holder)
    return holder.model
