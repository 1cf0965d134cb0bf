"""Linear maps of the rows and columns of images, and look-ups of pixels.

A map is a matrix that NumPy builds when a function is traced. It is applied as
a sum over its few non-zero entries a row, in a fixed order: a product of
matrices would round differently on each device and for each size of a batch,
and the corruptions cut to whole levels.
"""

import math

import numpy as np
from keras import ops

BORDERS = ("edge", "mirror", "symmetric")


def outside(place, side, border):
    """Places beyond the border as places within, int array.

    Args:
        place: int array, or int32 tensor.
        side: int, number of places.
        border: `"edge"` (a a | a b c), `"mirror"` (c b | a b c) or
            `"symmetric"` (b a | a b c).
    """
    xp = np if isinstance(place, np.ndarray) else ops
    if border == "edge":
        return xp.clip(place, 0, side - 1)
    period = 2 * side if border == "symmetric" else 2 * side - 2
    place = xp.mod(place, period)
    last = period - 1 if border == "symmetric" else period
    return xp.where(place >= side, last - place, place)


def correlation(kernel, side, border):
    """Matrix of a correlation with an odd kernel, `(side, side)`."""
    matrix = np.zeros((side, side))
    row = np.arange(side)
    reach = len(kernel) // 2
    for offset, weight in enumerate(kernel, -reach):
        np.add.at(matrix, (row, outside(row + offset, side, border)), weight)
    return matrix


def gaussian(deviation, reach):
    """A normalized Gaussian kernel, `(2 reach + 1,)`."""
    place = np.arange(-reach, reach + 1)
    kernel = np.exp(-0.5 * (place / deviation) ** 2)
    return kernel / kernel.sum()


def gaussian_filter(deviation, side, *, border="edge", truncate=4.0):
    """Matrix of SciPy's Gaussian filter, whose kernel ends at `truncate` sd."""
    reach = int(truncate * deviation + 0.5)
    return correlation(gaussian(deviation, reach), side, border)


def zoom(factor, side):
    """Matrix that crops the center and stretches it to the side again.

    SciPy's `zoom` of order 1, with corners on corners: the crop grows to a
    whole number of pixels, of which the middle ones are kept.
    """
    crop = math.ceil(side / factor)
    first = (side - crop) // 2
    grown = round(crop * factor)
    place = np.arange(side) + (grown - side) // 2
    place = place * (crop - 1) / (grown - 1)
    before = np.minimum(place.astype(int), crop - 2)
    share = place - before
    matrix = np.zeros((side, side))
    row = np.arange(side)
    matrix[row, first + before] = 1 - share
    matrix[row, first + before + 1] = share
    return matrix


def box(side, size):
    """Matrix of Pillow's box filter from `side` to `size` pixels.

    The pixels whose center is in a cell have equal weights, also at its border.
    """
    scale = side / size
    width = max(scale, 1.0)
    center = (np.arange(size) + 0.5)[:, None] * scale
    away = (np.arange(side) + 0.5 - center) / width
    inside = ((away > -0.5) & (away <= 0.5)).astype(float)
    return inside / inside.sum(axis=1, keepdims=True)


def apply(matrix, images, axis):
    """A matrix times the rows (`axis=1`) or columns (`axis=2`) of images."""
    used = matrix != 0
    number = int(used.sum(axis=1).max())
    # The places that count first, in their order.
    place = np.argsort(~used, axis=1, kind="stable")[:, :number]
    weight = np.take_along_axis(matrix, place, axis=1).astype("float32")
    shape = [1] * len(images.shape)
    shape[axis] = len(matrix)
    total = 0.0
    for tap in range(number):
        taken = ops.take(images, place[:, tap].astype("int32"), axis=axis)
        factor = ops.convert_to_tensor(weight[:, tap].reshape(shape))
        total = total + taken * factor
    return total


def apply_both(matrix_of_side, images):
    """`apply` to rows and columns, the matrix of a side given by a function."""
    images = apply(matrix_of_side(images.shape[1]), images, 1)
    return apply(matrix_of_side(images.shape[2]), images, 2)


def look_up(images, rows, columns):
    """The pixels at places within the images, `(n, height, width, channels)`.

    Args:
        images: `(n, height, width, channels)`.
        rows: int32, broadcasts to `(n, height, width)`.
        columns: the same.
    """
    height, width, channels = images.shape[1:]
    number = ops.shape(images)[0]
    first = ops.arange(number, dtype="int32") * (height * width)
    place = first[:, None, None] + rows * width + columns
    pixels = ops.reshape(images, (-1, channels))
    return ops.take(pixels, place, axis=0)


def bilinear(images, rows, columns, border):
    """The images at places between pixels.

    Args:
        images: `(n, height, width, channels)`.
        rows: float, `(n, height, width)`.
        columns: the same.
        border: see `outside`.
    """
    height, width = images.shape[1:3]
    top, left = ops.floor(rows), ops.floor(columns)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    top, left = ops.cast(top, "int32"), ops.cast(left, "int32")
    row = [outside(top + step, height, border) for step in (0, 1)]
    column = [outside(left + step, width, border) for step in (0, 1)]
    corners = [[look_up(images, r, c) for c in column] for r in row]
    above, below = ((1 - right) * a + right * b for a, b in corners)
    return (1 - down) * above + down * below


def half_up(values):
    """The nearest integer, halves up."""
    return ops.floor(values + 0.5)
