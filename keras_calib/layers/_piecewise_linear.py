"""Piecewise linear functions by a binary search that compiles everywhere."""

import numpy as np
from keras import ops

# Above every probability, for knots that are not in use.
UNUSED = 2.0


def count_below(knots, values):
    """How many knots of each value's row lie strictly below it.

    Args:
        knots: ascending, `(rows, 2**m - 1)`; `rows` is 1, or one for each
            entry of the last axis of `values`.
        values: `(..., rows)`, or `(..., anything)` for one row.

    Returns:
        int32, the shape of `values`.
    """
    rows, size = knots.shape
    flat = ops.reshape(knots, (-1,))
    offset = ops.cast(np.arange(rows) * size, "int32")
    count = ops.zeros_like(values, dtype="int32")
    step = (size + 1) // 2
    while step:
        below = ops.take(flat, offset + count + (step - 1)) < values
        count = ops.where(below, count + step, count)
        step //= 2
    return count


def take_rows(table, index):
    """`table[row, index[..., row]]`; one row of the table serves all."""
    rows, size = table.shape
    offset = ops.cast(np.arange(rows) * size, "int32")
    return ops.take(ops.reshape(table, (-1,)), offset + index)


def interpolate(knots, heights, values):
    """Straight lines between `(knots, heights)`, constant outside.

    Args:
        knots: ascending, `(rows, 2**m - 1)`; see `count_below`.
        heights: the shape of `knots`.
        values: `(..., rows)`.
    """
    upper = count_below(knots, values)
    lower = ops.maximum(upper - 1, 0)
    upper = ops.minimum(upper, knots.shape[1] - 1)
    x0, x1 = take_rows(knots, lower), take_rows(knots, upper)
    y0, y1 = take_rows(heights, lower), take_rows(heights, upper)
    width = x1 - x0
    part = (values - x0) / ops.where(width > 0, width, 1.0)
    # `values` enters the result, so that NaN stays NaN.
    return y0 + (y1 - y0) * ops.clip(part, 0.0, 1.0)


def table_size(count):
    """The least `2**m - 1` that is at least `count`, for `count_below`."""
    return 2 ** int(np.ceil(np.log2(count + 1))) - 1


def padded(knots, heights, size):
    """Fill up to `size` with knots that no value reaches, float32."""
    missing = size - len(knots)
    knots = np.concatenate([knots, np.full(missing, UNUSED)])
    heights = np.concatenate([heights, np.full(missing, heights[-1])])
    return knots.astype("float32"), heights.astype("float32")
