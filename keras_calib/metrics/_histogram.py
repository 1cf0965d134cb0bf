"""A fine histogram of confidences, of which bins of equal mass are merged.

Errors that depend on every single confidence are approximated by a fixed number
of cells. Their edges are the union of an even grid on [0, 1] and an even grid
of log-odds, because many confidences are close to 1.
"""

import functools

import numpy as np
from keras import ops

from keras_calib.inputs.tensors import running_sum
from keras_calib.ops.binning import bin_sums
from keras_calib.ops.binning import bin_sums_by_class
from keras_calib.ops.binning import interior_edges

CELLS = 1024


@functools.lru_cache
def cell_edges(cells=CELLS, num_bins=None):
    """Interior edges of the cells, sorted, float64.

    Args:
        cells: int, number of cells of each of the two grids.
        num_bins: int, number of equal-width bins whose edges are added, or
            `None`.
    """
    even = np.arange(1, cells) / cells
    odds = 1 / (1 + np.exp(-np.linspace(-17.0, 17.0, cells)))
    edges = np.union1d(even.astype("float32"), odds.astype("float32"))
    if num_bins is not None:
        width = interior_edges(num_bins).astype("float32")
        edges = np.union1d(edges, width)
    return edges[(edges > 0) & (edges < 1)].astype("float64")


def mass_bin_of_cell(count, num_bins):
    """The bin of equal mass that each cell belongs to, int32.

    The upper edge of bin `j` is the first cell at which the running count
    reaches the fraction `j / num_bins`; so the bin of a cell is the number of
    fractions that were reached before the cell.

    Args:
        count: weight per cell, shape `(..., num_cells)`.
        num_bins: int.
    """
    running = running_sum(count)
    total = running[..., -1:]
    before = running - count
    reached = ops.divide_no_nan(before * num_bins, total)
    # The sum may have been rounded down to just below the fraction.
    one = ops.ones_like(total)
    slack = 1e-5 * ops.where(_is_whole(count), one, num_bins * one)
    index = ops.cast(ops.floor(reached + slack), "int32")
    return ops.clip(index, 0, num_bins - 1)


def _is_whole(count):
    """Whether all are whole numbers, whose float32 sums are exact.

    The relative rounding error of running sums of weights is up to about 1e-6.
    """
    return ops.all(ops.equal(count, ops.round(count)))


def merge_cells(sums, num_bins):
    """Sums of cells as sums of bins of equal mass, for each class.

    Args:
        sums: per cell, the weight first, `(num_columns, num_cells)` or
            `(num_columns, num_classes, num_cells)`.
        num_bins: int.

    Returns:
        The same with `num_bins` instead of `num_cells`.
    """
    index = mass_bin_of_cell(sums[0], num_bins)
    if len(sums.shape) == 2:
        return bin_sums(sums, index, num_bins)
    classes = np.arange(sums.shape[1])[:, None]
    return bin_sums_by_class(sums, index, num_bins, classes)


def cells_below(count, fraction):
    """Number of cells, from the first, that hold fractions of the weight.

    Args:
        count: weight per cell, `(num_cells,)`.
        fraction: a NumPy array of values in `[0, 1]`, `(m,)`.

    Returns:
        int32, `(m,)`: the first cell that reaches the fraction is included.
    """
    running = running_sum(count)
    rank = ops.convert_to_tensor(fraction, count.dtype)
    # The product may have been rounded up to just above the sum.
    one = ops.ones_like(rank)
    slack = 1e-7 * ops.where(_is_whole(count), one, 100 * one)
    found = ops.searchsorted(running, (rank - slack) * running[-1])
    found = ops.cast(found, "int32") + 1
    return ops.minimum(found, ops.full_like(found, count.shape[0]))
