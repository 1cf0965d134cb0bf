"""Piecewise linear functions by a binary search that compiles everywhere."""

import numpy as np
from keras import ops

# Above every probability, for knots that are not in use.
UNUSED = 2.0


def count_below(knots, values, xp=ops):
    """How many knots of each value's row lie strictly below it.

    Args:
        knots: ascending, `(rows, 2**m - 1)`; `rows` is 1, or one for each
            entry of the last axis of `values`.
        values: `(..., rows)`, or `(..., anything)` for one row.
        xp: `keras.ops` or `numpy`.

    Returns:
        int32 (NumPy: int64), the shape of `values`.
    """
    rows, size = knots.shape
    if xp is np and rows == 1:
        return np.searchsorted(knots[0], values)
    offset = xp.array(np.arange(rows) * size, "int32")
    count = xp.zeros_like(values, dtype="int32")
    step = (size + 1) // 2
    while step:
        below = _entries(knots, offset + count + (step - 1), xp) < values
        count = xp.where(below, count + step, count)
        step //= 2
    return count


def take_rows(table, index, xp=ops):
    """`table[row, index[..., row]]`; one row of the table serves all."""
    # PyTorch's exporter has tensors for the sizes of what is computed.
    rows, size = map(int, table.shape)
    offset = xp.array(np.arange(rows) * size, "int32")
    return _entries(table, offset + index, xp)


def _entries(table, index, xp):
    """Entries of a table by their number, row after row.

    Of a table with one column: from a vector, PyTorch takes entries by an
    operation that cannot be exported to ONNX.
    """
    return xp.take(xp.reshape(table, (-1, 1)), index, axis=0)[..., 0]


def interpolate(knots, heights, values, xp=ops):
    """Straight lines between `(knots, heights)`, constant outside.

    Args:
        knots: ascending, `(rows, 2**m - 1)`; see `count_below`.
        heights: the shape of `knots`.
        values: `(..., rows)`.
        xp: `keras.ops` or `numpy`.
    """
    upper = count_below(knots, values, xp)
    last = knots.shape[1] - 1
    # On JAX `maximum` of whole numbers has fractions where `floatx` is half.
    lower = xp.where(upper > 0, upper - 1, 0)
    upper = xp.where(upper < last, upper, last)
    x0, x1 = take_rows(knots, lower, xp), take_rows(knots, upper, xp)
    y0, y1 = take_rows(heights, lower, xp), take_rows(heights, upper, xp)
    width = x1 - x0
    part = (values - x0) / xp.where(width > 0, width, 1.0)
    # `values` enters the result, so that NaN stays NaN.
    return y0 + (y1 - y0) * xp.clip(part, 0.0, 1.0)


def table_size(count):
    """The least `2**m - 1` that is at least `count`, for `count_below`."""
    return 2 ** int(np.ceil(np.log2(count + 1))) - 1


def padded(knots, heights, size):
    """Fill up to `size` with knots that no value reaches, float32."""
    missing = size - len(knots)
    knots = np.concatenate([knots, np.full(missing, UNUSED)])
    heights = np.concatenate([heights, np.full(missing, heights[-1])])
    return knots.astype("float32"), heights.astype("float32")
