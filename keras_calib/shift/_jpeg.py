"""JPEG: what coding and decoding does to an image, without the bits.

The steps and roundings are those of libjpeg with its defaults, colors at half
the resolution and the integer transform. Its results differ between versions
by a level here and there.
"""

import math

import numpy as np
from keras import ops

from keras_calib.shift._linear import apply
from keras_calib.shift._linear import half_up

BLOCK = 8
# Two blocks: colors have half the resolution.
UNIT = 16
# ITU-T T.81, tables K.1 and K.2.
LUMA = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ]
)
CHROMA = np.full((BLOCK, BLOCK), 99)
CHROMA[:4, :4] = [
    [17, 18, 24, 47],
    [18, 21, 26, 66],
    [24, 26, 56, 99],
    [47, 66, 99, 99],
]
# JFIF: Y, Cb and Cr of red, green and blue, and back.
TO_YCC = (
    (0.299, 0.587, 0.114),
    (-0.168735892, -0.331264108, 0.5),
    (0.5, -0.418687589, -0.081312411),
)


def jpeg_compression(images, quality, draws):
    """Code at a quality of libjpeg's scale, and decode."""
    height, width = images.shape[1:3]
    images = padded(images)
    red, green, blue = (images[..., c] for c in range(3))
    planes = [
        half_up(r * red + g * green + b * blue + middle)
        for (r, g, b), middle in zip(TO_YCC, (0, 128, 128), strict=True)
    ]
    luma = code(planes[0], table(LUMA, quality))
    cb, cr = (
        enlarged(code(halved(plane), table(CHROMA, quality))) - 128
        for plane in planes[1:]
    )
    green = half_up(-0.344136286 * cb - 0.714136286 * cr)
    rgb = (luma + half_up(1.402 * cr), luma + green, luma + half_up(1.772 * cb))
    rgb = ops.clip(ops.stack(rgb, axis=-1), 0, 255)
    return rgb[:, :height, :width]


def padded(images):
    """Images whose last row and column are repeated to whole units."""
    for axis in (1, 2):
        side = images.shape[axis]
        if side % UNIT:
            place = np.minimum(np.arange(-(-side // UNIT) * UNIT), side - 1)
            images = ops.take(images, place.astype("int32"), axis=axis)
    return images


def table(base, quality):
    """Steps of the coefficients at a quality from 1 to 100, `(8, 8)`."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return np.clip((base * scale + 50) // 100, 1, 255)


def cosines():
    """The DCT times the root of 8, which makes rows 0 and 4 whole numbers."""
    k, i = np.indices((BLOCK, BLOCK))
    matrix = np.cos((2 * i + 1) * k * math.pi / (2 * BLOCK)) * math.sqrt(2)
    matrix[0] = 1.0
    matrix[4] = np.round(matrix[4])
    return matrix


def code(plane, steps):
    """One plane, `(n, height, width)`, coded and decoded.

    The transform of libjpeg keeps quarters of its first pass and eighths of its
    second; without these roundings a sixth of all levels would differ.
    """
    height, width = plane.shape[1:]
    shape = (-1, height // BLOCK, BLOCK, width // BLOCK, BLOCK)
    blocks = ops.reshape(plane, shape) - 128
    forward = cosines()
    blocks = half_up(4 * apply(forward, blocks, 4)) / 4
    blocks = half_up(apply(forward, blocks, 2)) / 8
    steps = ops.convert_to_tensor(steps.astype("float32")[:, None, :])
    # Halves away from zero.
    number = ops.floor(ops.abs(blocks) / steps + 0.5)
    blocks = ops.sign(blocks) * number * steps
    blocks = half_up(4 * apply(forward.T, blocks, 2)) / 4
    blocks = apply(forward.T, blocks, 4) / 8
    plane = ops.reshape(blocks, (-1, height, width))
    return ops.clip(half_up(plane + 128), 0, 255)


def halved(plane):
    """Means of 2 x 2; halves and quarters go up and down in turn on a row."""
    height, width = plane.shape[1:]
    pairs = ops.reshape(plane, (-1, height // 2, 2, width // 2, 2))
    total = ops.sum(pairs, axis=(2, 4))
    bias = 1 + ops.arange(width // 2, dtype="float32") % 2
    return ops.floor((total + bias) / 4)


def enlarged(plane):
    """Twice the size, 3/4 of the nearest pixel and 1/4 of the next one."""
    height, width = plane.shape[1:]
    plane = apply(triangle(height), plane, 1)
    plane = apply(triangle(width), plane, 2)
    bias = 8 - ops.arange(2 * width, dtype="float32") % 2
    return ops.floor((16 * plane + bias) / 16)


def triangle(side):
    """Matrix of `enlarged`, `(2 side, side)`; the edge is repeated."""
    matrix = np.zeros((2 * side, side))
    place = np.arange(2 * side)
    near = place // 2
    next_ = np.clip(near + np.where(place % 2, 1, -1), 0, side - 1)
    matrix[place, near] += 0.75
    matrix[place, next_] += 0.25
    return matrix
