"""Contrast, elastic transform, pixels; `_jpeg.py` has the compression."""

import functools

import numpy as np
from keras import ops

from keras_calib.shift._linear import apply
from keras_calib.shift._linear import apply_both
from keras_calib.shift._linear import bilinear
from keras_calib.shift._linear import box
from keras_calib.shift._linear import gaussian_filter
from keras_calib.shift._linear import half_up

# OpenCV rounds the places of an affine map to this part of a pixel.
PARTS = 32


def contrast(images, factor, draws):
    """Shrink toward the mean of each channel of an image."""
    mean = ops.mean(images, axis=(1, 2), keepdims=True)
    return ops.clip((images - mean) * factor + mean, 0, 255)


def elastic_transform(images, constants, draws):
    """An affine map that moves three points, then a smooth random field.

    Args:
        images: `(n, height, width, channels)`.
        constants: strength of the field, deviation of its filter, and reach of
            the three points, in parts of the smaller side.
        draws: `Draws`.
    """
    side = min(images.shape[1:3])
    strength, deviation, reach = (side * each for each in constants)
    images = shaken(images, reach, draws)
    if strength:
        smooth = functools.partial(
            gaussian_filter, deviation, border="symmetric", truncate=3.0
        )
        field = draws.uniform(-1.0, 1.0, *images.shape[1:3], 2)
        field = strength * apply_both(smooth, field)
        rows, columns = places(*images.shape[1:3])
        rows, columns = rows + field[..., 0], columns + field[..., 1]
        images = bilinear(images, rows, columns, "symmetric")
    return ops.clip(images, 0, 255)


def shaken(images, reach, draws):
    """The affine map: corners of a triangle move by up to `reach` pixels.

    The corners are (x, y) = (right, bottom), (right, top) and (left, top) of
    the square in the middle with a third of the side on each hand. With the
    moved right top corner c and the edges a and b along x and y of the moved
    triangle, a place p of the new image shows `(p - c) = u a + v b`, so that u
    and v, by Cramer's rule, are the way from the old right top corner.
    """
    height, width = images.shape[1:3]
    third = min(height, width) // 3
    right, left = width // 2 + third, width // 2 - third
    bottom, top = height // 2 + third, height // 2 - third
    corners = [(right, bottom), (right, top), (left, top)]
    moved = draws.uniform(-reach, reach, 3, 2)
    moved = ops.add(moved, np.array(corners, "float32"))
    corner = moved[:, 1]
    a = (corner - moved[:, 2]) / (right - left)
    b = (moved[:, 0] - corner) / (bottom - top)
    ax, ay, bx, by, cx, cy = (
        each[:, i, None, None] for each in (a, b, corner) for i in (0, 1)
    )
    rows, columns = places(height, width)
    x, y = columns - cx, rows - cy
    area = ax * by - ay * bx
    u = (x * by - y * bx) / area
    v = (ax * y - ay * x) / area
    rows, columns = half_up((v + top) * PARTS), half_up((u + right) * PARTS)
    return bilinear(images, rows / PARTS, columns / PARTS, "mirror")


def places(height, width):
    """Row and column of each pixel, float32 tensors `(height, width)`."""
    return map(ops.convert_to_tensor, np.indices((height, width), "float32"))


def pixelate(images, share, draws):
    """Pillow's box filter to a share of the side, then enlarged pixels.

    Pillow shrinks columns first, and rounds to whole levels after each pass.
    """
    height, width = images.shape[1:3]
    rows, columns = int(height * share), int(width * share)
    small = half_up(apply(box(width, columns), images, 2))
    small = half_up(apply(box(height, rows), small, 1))
    small = apply(box(rows, height), small, 1)
    return apply(box(columns, width), small, 2)
