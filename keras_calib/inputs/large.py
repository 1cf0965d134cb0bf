"""Arrays that may not fit in memory: above a size they are in a file.

The file has no name and goes with the array. Its pages are memory that the
system can take back, where those of an ordinary array are not.
"""

import contextlib
import math
import os
import tempfile

import numpy as np

# Bytes of an array above which it is in a temporary file.
LIMIT = 1 << 27
# Elements of a block of rows.
BLOCK = 1 << 22


def empty(shape, dtype):
    """An array to fill: `np.empty`, or one in a temporary file if it is large.

    Args:
        shape: tuple of ints.
        dtype: that of the array.

    Raises:
        OSError: if it does not fit into the folder of temporary files.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size <= LIMIT:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile(prefix="keras_calib_") as file:
        # A disk that is full later, while the map is filled, ends the process.
        if hasattr(os, "posix_fallocate"):
            with full_disk_is_told("Large arrays", f"{size:,} bytes"):
                os.posix_fallocate(file.fileno(), 0, size)
        # The map keeps what it needs of the file.
        return np.memmap(file, dtype, "w+", shape=shape).view(np.ndarray)


@contextlib.contextmanager
def full_disk_is_told(what, received):
    """A full disk does not say which folder it was, nor what to do."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"{what} do not fit into the temporary folder "
            f"{tempfile.gettempdir()}: {error.strerror}. Received: {received}. "
            "Name a larger folder in the environment variable TMPDIR",
        ) from error


def by_rows(function, *arrays):
    """A function of the rows of arrays, block by block if they are large.

    Args:
        function: takes blocks of the arrays; each row of what it returns
            depends on one row of each.
        *arrays: `(n, ...)`.

    Returns:
        What `function(*arrays)` returns, `(n, ...)`.
    """
    if max(array.nbytes for array in arrays) <= LIMIT:
        return function(*arrays)
    found = None
    for rows in blocks(arrays[0].shape):
        block = function(*(np.asarray(array[rows]) for array in arrays))
        if found is None:
            shape = (len(arrays[0]), *block.shape[1:])
            found = empty(shape, block.dtype)
        found[rows] = block
    return found


def selected_rows(array, which):
    """`array[which]`, for a boolean array, `(n,)`, or positions."""
    if array.nbytes <= LIMIT:
        return array[which]
    places = np.flatnonzero(which) if which.dtype == bool else which
    found = empty((len(places), *array.shape[1:]), array.dtype)
    for rows in blocks(found.shape):
        found[rows] = array[places[rows]]
    return found


def transposed(array):
    """A matrix with its axes exchanged, contiguous."""
    if array.nbytes <= LIMIT:
        return np.ascontiguousarray(array.T)
    found = empty(array.shape[::-1], array.dtype)
    for rows in blocks(array.shape):
        found[:, rows] = array[rows].T
    return found


def blocks(shape):
    """Slices of rows that cut an array of this shape into blocks."""
    rows = max(1, BLOCK // max(1, int(np.prod(shape[1:]))))
    return [slice(start, start + rows) for start in range(0, shape[0], rows)]
