"""Whatever `fit` accepts as data -> batches -> one pass of a network."""

import collections
import contextlib
import itertools
import types

import keras
import numpy as np

from keras_calib.inputs import rules
from keras_calib.inputs.arrays import as_array
from keras_calib.keras_private import flatten_layers
from keras_calib.keras_private import keras_mask
from keras_calib.ops.replicas import num_replicas


def batches(x, y=None, sample_weight=None, batch_size=None, steps=None):
    """Iterate over calibration data once.

    Args:
        x: arrays (or a list or dict of them) when `y` is given; otherwise a
            `tf.data.Dataset`, a `keras.utils.PyDataset`, a torch `DataLoader`
            or any iterable of `(x, y)` or `(x, y, sample_weight)`.
        y: labels, or `None`.
        sample_weight: weights for arrays, or `None`.
        batch_size: for arrays; 32 by default, as in Keras.
        steps: how many batches to take; needed for endless data.

    Returns:
        An iterator of `(x, y, sample_weight)` and the number of batches, or
        `None` where it cannot be known.

    Raises:
        ValueError: if arrays differ in length, data has no labels, or the
            data is endless and `steps` is not given.
    """
    if y is not None:
        # A list of numbers would be taken for a structure of arrays.
        y, sample_weight = (
            np.asarray(part) if isinstance(part, list | tuple) else part
            for part in (y, sample_weight)
        )
        source, total = _array_batches(x, y, sample_weight, batch_size or 32)
    else:
        source, total = _dataset_batches(x, sample_weight, batch_size)
        if steps is None and total == float("inf"):
            raise ValueError(
                "The calibration data is endless. Pass `steps=`, the number "
                "of batches to take."
            )
    if steps is not None:
        total = steps if total is None else min(steps, total)
    return itertools.islice(source, steps), total


def _array_batches(x, y, sample_weight, batch_size):
    lengths = {
        len(leaf)
        for leaf in keras.tree.flatten((x, y, sample_weight))
        if leaf is not None
    }
    if len(lengths) != 1:
        raise ValueError(
            "Inputs, labels and weights must have the same length. "
            f"Received: lengths {sorted(lengths)}."
        )
    length = lengths.pop()

    def cut(part):
        return keras.tree.map_structure(
            lambda leaf: leaf if leaf is None else leaf[part],
            (x, y, sample_weight),
        )

    starts = range(0, length, batch_size)
    return (cut(slice(i, i + batch_size)) for i in starts), len(starts)


def _dataset_batches(data, sample_weight, batch_size):
    if isinstance(data, np.ndarray) or keras.ops.is_tensor(data):
        raise ValueError(
            "Labels are missing: pass `kc.calibrate(model, x, y)`, or a "
            "dataset of `(x, y)`."
        )
    if sample_weight is not None or batch_size is not None:
        raise ValueError(
            "A dataset brings its own weights and batches: leave out "
            "`sample_weight` and `batch_size`."
        )
    if isinstance(data, keras.utils.PyDataset):
        total = data.num_batches
        if total is None:
            total = float("inf")
            return (_unpack(data[i]) for i in _count()), total
        return (_unpack(data[i]) for i in range(total)), total
    if not hasattr(data, "__iter__"):
        remedy = ""
        if callable(data):
            remedy = " Call it, if it makes a generator: pass `data()`."
        raise ValueError(
            "Data must be arrays `x` and `y`, or a dataset, generator or list "
            "of `(x, y)` or `(x, y, sample_weight)`. Received: x of type "
            f"{type(data).__name__}.{remedy}"
        )
    total = _length(data)
    return (_unpack(batch) for batch in data), total


def _count():
    i = 0
    while True:
        yield i
        i += 1


def _length(data):
    if hasattr(data, "cardinality"):  # tf.data; -1 endless, -2 unknown
        total = int(data.cardinality())
        return {-1: float("inf"), -2: None}.get(total, total)
    try:
        return len(data)
    except TypeError:
        return None


def _unpack(batch):
    if not isinstance(batch, list | tuple):
        batch = (batch,)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(tuple(batch))
    if y is None:
        raise ValueError(
            "Calibration needs labels: a dataset must give `(x, y)` or "
            f"`(x, y, sample_weight)`. Received: {len(batch)} element per "
            "batch."
        )
    return x, y, sample_weight


def for_model(x):
    """Inputs as the backend takes them: foreign tensors become arrays."""
    return keras.tree.map_structure(
        lambda leaf: leaf if keras.ops.is_tensor(leaf) else as_array(leaf), x
    )


def outputs_and_mask(network, x):
    """Output of a network for one batch, and Keras' mask of this output.

    `predict_on_batch` loses the mask. Where a layer can make one (see
    `may_mask`), a second model that returns it, too, is compiled instead; it
    shares the network's layers, and is kept with the network for the next
    call. Otherwise this is `network.predict_on_batch(x)`.

    Args:
        network: a built `keras.Model` with one output.
        x: inputs of one batch, NumPy arrays or tensors of the backend.

    Returns:
        outputs: array, `(batch, ..., num_classes)`.
        mask: boolean array, `(batch, ...)`, false where an element is padding;
            `None` where Keras has no mask.

    Raises:
        ValueError: if the network has several outputs, or its mask does not
            fit its output.
    """
    runner = _with_mask(network) if may_mask(network) else network
    found = runner.predict_on_batch(x)
    outputs, mask = found if isinstance(found, _Masked) else (found, None)
    if isinstance(outputs, dict | list | tuple):
        raise ValueError(
            "Calibration needs a model with one output, the class scores. "
            f"Received: a {type(outputs).__name__} of {len(outputs)} outputs. "
            "Pass a model that returns a single one of them."
        )
    # Each replica of a strategy is given the whole batch.
    length = len(outputs) // num_replicas(network)
    outputs = as_array(outputs)[:length]
    return outputs, _fitting(mask, outputs, length)


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

    Such layers are `Masking`, embeddings with `mask_zero=True`, and layers
    from outside Keras with a `compute_mask` of their own.
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
    """A network that returns its output, and its mask where it has one."""

    def __init__(self, network):
        super().__init__(name="with_mask", autocast=False)
        self.network = network
        self.run_eagerly = network.run_eagerly
        self.jit_compile = network.jit_compile
        self.built = True

    def call(self, inputs):
        outputs = self.network(inputs, training=False)
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
        # Past Keras, which would track the model as a part of the network.
        holder = types.SimpleNamespace(model=model, settings=settings)
        object.__setattr__(network, _RUNNER, holder)
    return holder.model


def masked_weights(sample_weight, mask, shape):
    """Weights with 0 where a mask is false; broadcast from the left.

    Args:
        sample_weight: `None`, or weights of shape `(batch,)` up to `shape`, or
            with a last axis of size 1 more.
        mask: `None`, or a boolean array, `(batch, ...)`.
        shape: of the outputs without their class axis.

    Returns:
        `sample_weight` as an array or `None` where there is no mask, otherwise
        float64 weights of shape `shape`.

    Raises:
        ValueError: if the weights do not fit.
    """
    weight = None if sample_weight is None else as_array(sample_weight)
    if mask is None:
        return weight
    if weight is None:
        weight = np.ones(mask.shape)
    weight = np.broadcast_to(
        weight.reshape(rules.shape_per_row(weight.shape, shape)), shape
    )
    mask = mask.reshape(rules.shape_per_row(mask.shape, shape, "A mask"))
    # Whatever the weight of padding is, it does not count.
    return np.where(mask, weight.astype("float64"), 0.0)


def concatenate(parts):
    """Join arrays and free each once it is copied: one copy at a time."""
    length = sum(len(part) for part in parts)
    whole = np.empty((length, *parts[0].shape[1:]), parts[0].dtype)
    start = 0
    while parts:
        part = parts.pop(0)
        whole[start : start + len(part)] = part
        start += len(part)
    return whole
