"""A fine histogram of confidences, from which equal-mass bins are read.

Equal-mass bins need every confidence; a metric keeps a fixed number of cells
instead. Cells are the union of an even grid on [0, 1] and an even grid in
log-odds, because confidences crowd near 1.
"""

import functools

import numpy as np
from keras import ops

CELLS = 1024


@functools.lru_cache
def cell_edges():
    """Interior edges of the cells, sorted, float64."""
    even = np.arange(1, CELLS) / CELLS
    odds = 1 / (1 + np.exp(-np.linspace(-17.0, 17.0, CELLS)))
    edges = np.union1d(even.astype("float32"), odds.astype("float32"))
    return edges[(edges > 0) & (edges < 1)].astype("float64")


def num_cells():
    """How many cells the histogram has."""
    return len(cell_edges()) + 1


def equal_mass_sums(count, residual, num_bins):
    """Merge cells into bins of equal mass.

    The upper edge of bin `j` is the first cell at which the running count
    reaches the share `j / num_bins`.

    Args:
        count: weight per cell, shape `(num_cells,)`.
        residual: `sum (confidence - correct)` per cell, `(num_cells,)`.
        num_bins: int.

    Returns:
        Weight and residual per bin, each of shape `(num_bins,)`.
    """
    running = ops.cumsum(count)
    total = running[-1]
    share = ops.cast(ops.arange(1, num_bins), count.dtype) / num_bins * total
    # A rank is reached although the division above was rounded up.
    last = ops.searchsorted(running, share - 1e-6 * total / num_bins)
    last = ops.clip(ops.cast(last, "int32"), 0, count.shape[0] - 1)

    def split(values):
        running = ops.cumsum(values)
        upper = ops.append(ops.take(running, last), running[-1:])
        return upper - ops.append(ops.zeros_like(upper[:1]), upper[:-1])

    return split(count), split(residual)
