"""Confidence bins: this file alone decides which bin contains a sample."""

import functools

import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs.tensors import matmul


@functools.lru_cache
def interior_edges(num_bins: int) -> np.ndarray:
    """The edges `j / num_bins` between equal-width bins, each rounded once.

    `np.linspace` rounds some of them twice, and then a confidence such as 0.6
    is in the wrong bin.
    """
    return np.arange(1, num_bins) / num_bins


def centers(
    edges: np.ndarray, low: float = 0.0, high: float = 1.0
) -> np.ndarray:
    """The middle of each interval of `[low, high]` between interior edges."""
    edges = np.concatenate([[low], edges, [high]])
    return (edges[1:] + edges[:-1]) / 2


def bin_index(confidence: Tensor, num_bins: int) -> Tensor:
    """Index of the equal-width bin that holds each confidence, int32.

    Bin `m` is `(m / num_bins, (m + 1) / num_bins]`, as in Guo et al. (2017),
    Section 2. A confidence of 0 is in bin 0, so each sample is in one bin.

    Args:
        confidence: values in `[0, 1]`, a tensor or a NumPy array, any shape.
        num_bins: int, number of bins.

    Returns:
        int32 of the same shape and kind. NaN is in the last bin, so the sum of
        this bin is NaN.
    """
    return interval_index(confidence, interior_edges(num_bins))


def interval_index(values: Tensor, edges: np.ndarray) -> Tensor:
    """Index of the right-closed interval between sorted edges, int32.

    Args:
        values: a tensor or a NumPy array, any shape.
        edges: the interior edges; a NumPy array where `values` are one.
    """
    if isinstance(values, np.ndarray):
        edges = edges.astype(values.dtype)
        return np.searchsorted(edges, values, side="left").astype("int32")
    edges = ops.convert_to_tensor(edges, dtype=values.dtype)
    index = ops.searchsorted(edges, ops.reshape(values, (-1,)), side="left")
    return ops.reshape(ops.cast(index, "int32"), ops.shape(values))


def bin_sums(columns: Tensor, index: Tensor, num_bins: int) -> Tensor:
    """Sum the columns over the rows of each bin.

    Sums can be added over batches and devices, but averages cannot.

    Args:
        columns: shape `(num_columns, n)`.
        index: int32, the bin of each row, shape `(n,)`.
        num_bins: int.

    Returns:
        Shape `(num_columns, num_bins)`.
    """
    if num_bins <= 64:
        # A product with a one-hot matrix is faster than a scatter on
        # accelerators and with XLA, and works on the "meta" device of torch.
        one_hot = ops.one_hot(index, num_bins, dtype=columns.dtype)
        parts = ops.concatenate(short_parts(columns), axis=0)
        sums = matmul(parts, one_hot)
        return ops.sum(ops.reshape(sums, (3, -1, num_bins)), axis=0)
    start = ops.zeros((num_bins, columns.shape[0]), dtype=columns.dtype)
    sums = ops.scatter_update(
        start, index[:, None], ops.transpose(columns), reduction="add"
    )
    return ops.transpose(sums)


def bin_sums_by_class(columns, index, num_bins, classes):
    """`bin_sums` of each class by itself.

    Args:
        columns: shape `(num_columns, ...)`.
        index: int32, the bin of each entry, shape `(...)`.
        num_bins: int.
        classes: NumPy array that broadcasts to `(...)`, the class of each
            entry: `0, 1, ...` along one axis.

    Returns:
        Shape `(num_columns, num_classes, num_bins)`.
    """
    index = index + ops.convert_to_tensor(classes * num_bins, "int32")
    columns = ops.reshape(columns, (columns.shape[0], -1))
    sums = bin_sums(columns, ops.reshape(index, (-1,)), classes.size * num_bins)
    return ops.reshape(sums, (-1, classes.size, num_bins))


def short_parts(values):
    """Three tensors that sum to float32 `values`, each of 11 significant bits.

    GPUs multiply float32 matrices in TF32, which has 11 significant bits, so a
    product of values with zeros and ones is rounded. A product of these parts
    is not.
    """
    parts = []
    for _ in range(2):
        # Veltkamp's split: the upper 24 - 13 bits, and the rest.
        scaled = values * (2.0**13 + 1)
        head = scaled - (scaled - values)
        parts.append(head)
        values = values - head
    return [*parts, values]
