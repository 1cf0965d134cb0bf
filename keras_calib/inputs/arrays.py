"""Any framework's tensors as NumPy arrays, and formulas on rows of them."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib.inputs.large import by_rows
from keras_calib.keras_private import in_symbolic_scope

# The smallest normal float32: the floor of a probability before its logarithm.
TINY = 1.1754944e-38
# A finite stand-in for minus infinity: 0 times it is 0.
LOWEST = -1e30
# A class is ruled out so far below the largest logit, and so many times as far
# as is usual: a mask of -1e9 says so, as minus infinity does.
RULED_OUT, TIMES = 1e8, 1e6
# Numbers, and classes, of a table that is copied where another order of them is
# faster.
FEW, FEW_CLASSES = 1 << 18, 128


def largest_seen(distances: np.ndarray) -> float:
    """How far below the largest logit a class is not ruled out.

    Args:
        distances: of classes from the largest logit, >= 0.
    """
    for below in (RULED_OUT, -LOWEST / 4):
        known = distances[distances < below]
        if known.size:
            return max(RULED_OUT, TIMES * float(np.median(known)))
    return RULED_OUT


def as_array(values: ArrayLike) -> np.ndarray:
    """A NumPy view of an array, a list, or any framework's tensor."""
    if isinstance(values, np.ndarray):
        return values
    refuse_ragged(values)
    if is_sparse(values):
        shape = getattr(values, "shape", None)
        raise ValueError(
            "A sparse matrix is no array. Pass `.toarray()` of it. Received: "
            f"{type(values).__name__} of shape {shape}."
        )
    if hasattr(values, "detach"):
        values = _on_the_host(values)
    if isinstance(values, list | tuple) and any(
        hasattr(value, "detach") for value in values
    ):
        # NumPy does not read the memory of a GPU.
        values = [as_array(value) for value in values]
    array = concrete_value(values) if keras.ops.is_tensor(values) else None
    try:
        return np.asarray(values if array is None else array)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "An array, or a list that is one, is needed. Received: "
            f"{type(values).__name__}, of which NumPy says: {error}"
        ) from error


def _on_the_host(tensor: Any) -> Any:
    """A tensor of PyTorch as one that NumPy reads."""
    tensor = tensor.detach().cpu()
    short = any(each in str(tensor.dtype) for each in ("bfloat16", "float8"))
    # NumPy has no such numbers; Keras reads those of its own backend.
    return (
        tensor if keras.ops.is_tensor(tensor) or not short else tensor.float()
    )


def refuse_ragged(values: Any) -> None:
    """Raise `ValueError` for TensorFlow's tensor of rows of unequal length."""
    if hasattr(values, "flat_values"):
        raise ValueError(
            "Rows of unequal length would be padded with zeros that count. "
            "Pass the `flat_values` of labels and of predictions. Received: "
            f"{type(values).__name__} of shape {tuple(values.shape)}."
        )


def is_sparse(values: Any) -> bool:
    """Whether it is a sparse matrix of SciPy, which need not be there."""
    return hasattr(values, "tocsr")


def with_fast_rows(values: Any) -> Any:
    """A sparse matrix in the form whose rows are quick to read; else itself."""
    return values.tocsr() if is_sparse(values) else values


def holds_numbers(values: Any) -> bool:
    """Whether an array, a tensor or a list has real numbers or booleans.

    Of a list the first entry tells.
    """
    while isinstance(values, list | tuple) and values:
        values = values[0]
    if values is None:
        return False
    dtype = getattr(values, "dtype", type(values))
    kind = getattr(dtype, "kind", None)
    if kind is not None:
        return kind not in "cmMOSU"
    # Frameworks have dtypes of their own, and a Python number has a type.
    return not any(each in str(dtype) for each in ("str", "bytes", "complex"))


def as_floats(
    values: ArrayLike, what: str, dtype: str | None = None
) -> np.ndarray:
    """`as_array` of real numbers, in float32 or float64.

    Args:
        values: array, list or tensor.
        what: how they are called in the message.
        dtype: `None` for float32, or float64 where that was passed in.

    Raises:
        ValueError: for text, objects, complex numbers and lists of lists that
            are not equally long.
    """
    array = as_array(values)
    if dtype is None:
        # Also those of another byte order, and longer ones.
        wide = array.dtype.kind == "f" and array.dtype.itemsize >= 8
        dtype = "float64" if wide else "float32"
    if array.dtype == dtype:
        return array
    try:
        if array.dtype.kind in "cMm":  # a cast would lose what they mean
            raise TypeError(array.dtype)
        return array.astype(dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{what} must be real numbers. Received: an array of dtype "
            f"{array.dtype} and shape {array.shape} ({error})."
        ) from error


def concrete_value(tensor):
    """The value of a tensor as a NumPy array, or `None` in compiled code.

    No backend-neutral question "is this concrete?" exists, but each backend
    refuses to convert a symbolic tensor. Only torch is asked first: its
    compiler would break the graph instead of refusing, and Keras works out
    shapes on it with tensors of ones, which are nobody's predictions.
    """
    if keras.backend.backend() == "torch":
        import torch

        if torch.compiler.is_compiling() or in_symbolic_scope():
            return None
    try:
        return ops.convert_to_numpy(tensor)
    except Exception:
        return None


def two_classes(logits: np.ndarray) -> np.ndarray:
    """One sigmoid unit, `(n, 1)`, as the logits `(0, z)` of two classes."""
    return np.concatenate([np.zeros_like(logits), logits], axis=-1)


def at_least_two(logits: np.ndarray) -> np.ndarray:
    """The logits, or `two_classes` of those of one sigmoid unit."""
    return two_classes(logits) if logits.shape[-1] == 1 else logits


def by_class(scores: np.ndarray, dtype: Any = None) -> np.ndarray:
    """Few scores with the numbers of each class next to each other.

    NumPy takes the largest of ten numbers, or their sum, up to ten times as
    fast for rows of such a table.

    Args:
        scores: `(n, num_classes)`.
        dtype: of the result.

    Returns:
        The same numbers in Fortran's order; those of a large table as they are.
    """
    few = scores.size <= FEW and scores.shape[-1] <= FEW_CLASSES
    order: Any = "F" if few else "K"
    return np.asarray(scores, dtype, order=order)


def log_softmax(scores: np.ndarray, dtype: Any = None) -> np.ndarray:
    """Log-probabilities; a class at minus infinity has probability 0."""
    return by_rows(lambda block: _log_softmax(block, dtype), np.asarray(scores))


def softmax(scores: np.ndarray) -> np.ndarray:
    """Probabilities; those of large arrays are in a temporary file."""
    return by_rows(lambda block: np.exp(_log_softmax(block)), scores)


def _log_softmax(scores, dtype=None):
    scores = np.asarray(scores, dtype)
    # A ruled-out class must not turn a mean over classes into infinity.
    shifted = scores - scores.max(axis=-1, keepdims=True)
    np.maximum(shifted, LOWEST, out=shifted)
    total = np.exp(shifted).sum(axis=-1, keepdims=True, dtype="float64")
    shifted -= np.log(total).astype(shifted.dtype)
    return shifted


def log_softmax_of_labels(scores, labels, dtype=None):
    """The entries of `log_softmax` that are those of labels.

    Args:
        scores: `(n, num_classes)`.
        labels: int class ids, `(n,)`.
        dtype: of the computation.

    Returns:
        float64, `(n,)`.
    """
    scores = by_class(scores, dtype)
    shifted = scores - scores.max(axis=-1, keepdims=True)
    own = shifted[np.arange(len(labels)), labels].astype("float64")
    total = np.exp(shifted, out=shifted).sum(axis=-1, dtype="float64")
    return np.maximum(own, LOWEST) - np.log(total)


def numbered(ids):
    """Ids by numbers, and how many different ones there are.

    In the order in which they come, so that other names of the same groups draw
    the same folds and resamples.
    """
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.empty(len(first), "int64")
    rank[first.argsort()] = np.arange(len(first))
    return rank[inverse.reshape(-1)], len(first)


def effective_num_samples(weights):
    """How many samples of equal weight tell as much, `(sum w)^2 / sum w^2`.

    Reference:
        Kish, "Survey Sampling", 1965.
    """
    return float(weights.sum() ** 2 / (weights @ weights))


def squared_norms(values):
    """The sum of the squares of each row, float64, however they lie."""
    values = np.ascontiguousarray(values)
    return np.einsum("nk,nk->n", values, values, dtype="float64")


def entropy(probabilities, log_probabilities):
    """Entropy of each row in nats; 0 log 0 is 0."""
    log_p = np.maximum(log_probabilities, math.log(TINY))
    return -np.einsum("nk,nk->n", probabilities, log_p)


def class_probabilities(scores: np.ndarray, from_logits: bool) -> np.ndarray:
    """Probabilities of all classes; one sigmoid unit, `(..., 1)`, has two."""
    single = scores.shape[-1] == 1
    if from_logits:
        return softmax(two_classes(scores) if single else scores)
    return np.concatenate([1.0 - scores, scores], axis=-1) if single else scores


def sigmoid(x):
    """`1 / (1 + exp(-x))`, without overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1 + small)
