"""A fine histogram of confidences, from which mass bins and more are read.

What needs every confidence is streamed from a fixed number of cells instead.
Cells are the union of an even grid on [0, 1] and an even grid in log-odds,
because confidences crowd near 1.
"""

import functools

import numpy as np
from keras import ops

from keras_calib.ops.binning import bin_sums

CELLS = 1024


@functools.lru_cache
def cell_edges(cells=CELLS, num_bins=None):
    """Interior edges of the cells, sorted, float64.

    Args:
        cells: how many cells each of the two grids has.
        num_bins: also the edges of so many bins of equal width.
    """
    even = np.arange(1, cells) / cells
    odds = 1 / (1 + np.exp(-np.linspace(-17.0, 17.0, cells)))
    edges = np.union1d(even.astype("float32"), odds.astype("float32"))
    if num_bins is not None:
        width = np.arange(1, num_bins) / num_bins
        edges = np.union1d(edges, width.astype("float32"))
    return edges[(edges > 0) & (edges < 1)].astype("float64")


@functools.lru_cache
def cell_centres(cells=CELLS, num_bins=None):
    """The middle of each cell, float64."""
    edges = np.concatenate([[0.0], cell_edges(cells, num_bins), [1.0]])
    return (edges[1:] + edges[:-1]) / 2


def num_cells(cells=CELLS, num_bins=None):
    """How many cells the histogram has."""
    return len(cell_edges(cells, num_bins)) + 1


def mass_bin_of_cell(count, num_bins):
    """The bin of equal mass that each cell belongs to, int32.

    The upper edge of bin `j` is the first cell at which the running count
    reaches the share `j / num_bins`; so a cell's bin is the number of shares
    that were reached before it.

    Args:
        count: weight per cell, shape `(..., num_cells)`.
        num_bins: int.
    """
    running = ops.cumsum(count, axis=-1)
    total = running[..., -1:]
    before = running - count
    reached = ops.divide_no_nan(before * num_bins, total)
    # A rank is reached although the sum was rounded down.
    slack = ops.where(_is_whole(count), 1e-5, 1e-5 * num_bins)
    index = ops.cast(ops.floor(reached + slack), "int32")
    return ops.clip(index, 0, num_bins - 1)


def _is_whole(count):
    """Whether all are whole: float32 sums of counts are exact.

    Those of weights are rounded, in the course of a running sum by up to some
    1e-6 of it.
    """
    return ops.all(ops.equal(count, ops.round(count)))


def merge_cells(weight, residual, num_bins):
    """Sums of cells as sums of bins of equal mass, class by class.

    Args:
        weight: per class and cell, `(num_classes, num_cells)`.
        residual: `sum w (confidence - correct)`, the same shape.
        num_bins: int.

    Returns:
        Weight and residual, each `(num_classes, num_bins)`.
    """
    classes = weight.shape[0]
    index = mass_bin_of_cell(weight, num_bins)
    offset = np.arange(classes, dtype="int32")[:, None] * num_bins
    index = ops.reshape(index + ops.convert_to_tensor(offset), (-1,))
    columns = ops.stack(
        [ops.reshape(weight, (-1,)), ops.reshape(residual, (-1,))]
    )
    sums = bin_sums(columns, index, classes * num_bins)
    weight, residual = ops.unstack(sums)
    shape = (classes, num_bins)
    return ops.reshape(weight, shape), ops.reshape(residual, shape)


def cells_below(count, share):
    """How many cells hold the given shares of all weight.

    Args:
        count: weight per cell, `(num_cells,)`.
        share: a NumPy array of shares in (0, 1), `(m,)`.

    Returns:
        int32, `(m,)`: the first cell that reaches the share is included.
    """
    running = ops.cumsum(count)
    share = ops.convert_to_tensor(share, count.dtype)
    # A rank is reached although the product was rounded up.
    slack = ops.where(_is_whole(count), 1e-7, 1e-5)
    found = ops.searchsorted(running, (share - slack) * running[-1])
    return ops.minimum(ops.cast(found, "int32") + 1, count.shape[0])
