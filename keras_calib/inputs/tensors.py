"""Operations on rows of scores, with equal results on every backend."""

import functools

import keras
import numpy as np
from keras import ops

from keras_calib.inputs import rules
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import TINY
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import holds_numbers
from keras_calib.inputs.arrays import refuse_ragged

_INT32 = -(2**31), 2**31 - 1
# Up to here JAX compiles `argmax` to faster code than two reductions.
NARROW = 64


def unwrapped(values):
    """The array in a list, tuple or dict of one; all else as it is.

    `fit(x, [y])` gives such labels and weights, as for one of several outputs.
    """
    if isinstance(values, (list, tuple, dict)) and len(values) == 1:
        [inside] = values.values() if isinstance(values, dict) else values
        if inside is None or len(getattr(inside, "shape", ())):
            return inside
    return values


def row_max(scores, xp=ops, keepdims=False):
    """The largest of each row, `(n,)`.

    `ops.max` refuses an empty batch, and `ops.amax` too on TensorFlow.

    Args:
        scores: `(..., num_classes)`.
        xp: `keras.ops` or NumPy.
        keepdims: whether the result is a column, `(..., 1)`.
    """
    if xp is not ops:
        return xp.max(scores, axis=-1, keepdims=keepdims)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.reduce_max(scores, axis=-1, keepdims=keepdims)
    return ops.amax(scores, axis=-1, keepdims=keepdims)


def row_min(scores):
    """The smallest of each row, `(n,)`; see `row_max`."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.reduce_min(scores, axis=-1)
    return ops.amin(scores, axis=-1)


def predicted_class(logits):
    """Index of the largest score, the first one at a tie, int32, `(n,)`."""
    backend = keras.backend.backend()
    if backend == "torch":
        return ops.cast(ops.argmax(logits, axis=-1), "int32")
    if backend == "jax" and logits.shape[-1] <= NARROW:
        import jax.numpy as jnp

        # Keras' own puts -0.0 behind 0.0, and takes another pass for it.
        return jnp.argmax(logits, axis=-1).astype("int32")
    # XLA compiles two plain reductions to far faster code than `argmax`.
    logits = ops.stop_gradient(logits)
    last = logits.shape[-1] - 1
    # From 0: `jax2onnx` 0.17 fails where only the end is given.
    index = ops.arange(0, last + 1, dtype="int32")
    largest = row_max(logits)[:, None]
    return row_min(ops.where(logits >= largest, index, last))


def pick(scores, index):
    """The entry `index[i]` of each row of `scores`, shape `(n,)`."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Half the time of Keras' `take_along_axis`, gradient included.
        return tf.gather(scores, index, axis=1, batch_dims=1)
    return ops.squeeze(
        ops.take_along_axis(scores, index[:, None], axis=-1), axis=-1
    )


def floored(values):
    """Replace minus infinity by `LOWEST`; NaN stays."""
    if keras.backend.backend() == "torch":
        return values.clamp(min=LOWEST)  # Keras' `maximum` would lose float64
    return ops.maximum(values, LOWEST)


def as_tensor(values, what="Predictions"):
    """A dense tensor of an array, list, tensor or variable.

    Args:
        values: real numbers or booleans.
        what: how they are called in the message.

    Raises:
        ValueError: for text, objects, dates and complex numbers. Backends
            raise what they like, TensorFlow only in the first operation.
    """
    refuse_ragged(values)
    if not holds_numbers(values):
        found = type(values).__name__
        if hasattr(values, "dtype"):
            found += f" of dtype {values.dtype} and shape {tuple(values.shape)}"
        raise ValueError(
            f"{what} must be real numbers. Received: {found}. Classes are "
            "numbered from 0."
        )
    if hasattr(values, "detach") and not ops.is_tensor(values):
        values = as_array(values)  # a tensor of PyTorch, on another backend
    return ops.convert_to_tensor(values, sparse=False)


def wide_floatx():
    """The dtype of sums over batches: `floatx`, or float32 if that is half."""
    return keras.backend.result_type(keras.config.floatx(), "float32")


def at_least_float32(values):
    """Cast integers and half precision up; leave float32 and float64 alone."""
    values = as_tensor(values)
    if keras.backend.standardize_dtype(values.dtype) in ("float32", "float64"):
        return values
    return ops.cast(values, "float32")


def total(terms):
    """The sum of tensors, of several kinds of floats, too; 0.0 without any.

    Operators refuse two kinds on TensorFlow.
    """
    return functools.reduce(ops.add, terms, 0.0)


def within_int32(labels):
    """Integers that stay what they are, or wrong ids, when cast to int32.

    Args:
        labels: tensor, or array or list, which is left as it is.
    """
    wide = getattr(labels, "dtype", None)
    if isinstance(labels, np.ndarray):
        if wide.kind in "iu" and wide.itemsize >= 4:
            return np.clip(labels, *_INT32)
    elif wide is not None and keras.backend.standardize_dtype(wide) == "int64":
        return ops.clip(labels, *_INT32)
    return labels


# What rounds to 0 and what rounds to 1 lies within half a step of it; these are
# the middles.
_QUARTER_STEPS = {
    "float16": (2.0**-26, 2.0**-13),
    "bfloat16": (TINY, 2.0**-10),
    "float32": (TINY, 2.0**-26),
    "float64": (TINY, 2.0**-55),
}


def quarter_steps(probabilities):
    """The middle of what rounds to 0, and of what rounds to 1, in a dtype.

    They stand for probabilities of 0, and for `1 - p` of 0, before a logarithm.
    The first is at least `TINY`.

    Args:
        probabilities: tensor or array, in the dtype in which they were
            computed.

    Returns:
        Two floats.
    """
    dtype = getattr(probabilities, "dtype", "float32")
    dtype = keras.backend.standardize_dtype(dtype)
    return _QUARTER_STEPS.get(dtype, _QUARTER_STEPS["float32"])


def logits_of(scores, is_logits, steps):
    """Logits, and probabilities if they came, of two classes or more.

    Args:
        scores: `(n, num_units)`.
        is_logits: whether they are logits.
        steps: `quarter_steps` of what was passed in.
    """
    if scores.shape[-1] > 1:
        if is_logits:
            return scores, None
        return ops.log(ops.maximum(scores, steps[0])), scores
    # One sigmoid unit: its logit is known from its probability.
    z, probabilities = scores, None
    if not is_logits:
        scores = limited(scores)
        other = 1.0 - scores
        probabilities = ops.concatenate([other, scores], axis=-1)
        z = ops.log(ops.maximum(scores, steps[0]))
        z = z - ops.log(ops.maximum(other, steps[1]))
    return ops.concatenate([ops.zeros_like(z), z], axis=-1), probabilities


def maximum(a, b, xp=ops):
    """The larger of two, in the dtype of `a`; see `_as_torch`."""
    pair = _as_torch(a, b, xp)
    return xp.maximum(a, b) if pair is None else pair[0].maximum(pair[1])


def minimum(a, b, xp=ops):
    """The smaller of two, in the dtype of `a`; see `_as_torch`."""
    pair = _as_torch(a, b, xp)
    return xp.minimum(a, b) if pair is None else pair[0].minimum(pair[1])


def running_sum(a, xp=ops):
    """The sums of each row up to each of its entries; see `_as_torch`."""
    pair = _as_torch(a, 0.0, xp)
    return xp.cumsum(a, axis=-1) if pair is None else pair[0].cumsum(-1)


def _as_torch(a, b, xp):
    """Two tensors of PyTorch of float64 if `a` is one, or else `None`.

    Some operations of Keras return float32 there, with its digits.
    """
    if xp is not ops or keras.backend.backend() != "torch":
        return None
    if keras.backend.standardize_dtype(a.dtype) != "float64":
        return None
    return [ops.convert_to_tensor(each, "float64") for each in (a, b)]


def limited(x):
    """`x` within `[0, 1]`, with slope 1 at the ends, which JAX would halve."""
    return ops.where(x < 0, 0.0, ops.where(x > 1, 1.0, x))


def matmul(a, b):
    """The matrix product of arrays or tensors, in the dtype of both.

    Keras' is float32 on PyTorch, also of float64; see `_as_torch`. And there
    `autocast` computes products, and nothing else that we use, in half
    precision: sums over a batch would lose five digits, or overflow.
    """
    if isinstance(a, np.ndarray):
        return np.matmul(a, b)
    if keras.backend.backend() == "torch":
        import torch

        kind = a.device.type
        # Only where it is on: an exported graph would contain the block.
        if kind != "meta" and torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return matmul(a, b)
        pair = _as_torch(a, b, ops)
        if pair is not None:
            return pair[0].matmul(pair[1])
    return ops.matmul(a, b)


def classes_last(labels, scores, axis, one_hot):
    """The class axis of scores, and of one-hot labels, as the last one."""
    if axis not in (-1, len(scores.shape) - 1):
        scores = ops.moveaxis(scores, axis, -1)
        labels = ops.moveaxis(labels, axis, -1) if one_hot else labels
    return labels, scores


def from_the_left(values, batch, lead, what="Sample weights"):
    """Weights or a mask, `(batch,)` or more, as one value for each row.

    Args:
        values: array or tensor.
        batch: shape of the rows, of numbers or tensors.
        lead: the same as far as it is known, of numbers or `None`.
        what: see `rules.shape_per_row`, which refuses what does not fit.
    """
    values = as_tensor(values, what)
    rank = len(rules.shape_per_row(values.shape, lead, what))
    while len(values.shape) > rank:
        values = ops.squeeze(values, axis=-1)
    while len(values.shape) < rank:
        values = ops.expand_dims(values, axis=-1)
    return ops.broadcast_to(values, batch)


def sum_or_one(weights):
    """The sum of weights, or 1 where that is 0 and cannot divide.

    A tiny number instead of 1 would make the gradient `0 * inf`.
    """
    total = ops.sum(weights)
    return ops.where(total > 0, total, 1.0)
