"""Blur: defocus, frosted glass, motion and zoom."""

import functools
import math

import numpy as np
from keras import ops

from keras_calib.shift._linear import apply_both
from keras_calib.shift._linear import gaussian
from keras_calib.shift._linear import gaussian_filter
from keras_calib.shift._linear import half_up
from keras_calib.shift._linear import look_up
from keras_calib.shift._linear import outside
from keras_calib.shift._linear import zoom

# Lifts a level that rounding put below a whole number.
LIFT = 1e-4
# Weights of less change no level.
SMALL = 1e-6


def defocus_blur(images, constants, draws):
    """Correlate with a disk that a small Gaussian smooths."""
    kernel = disk(*constants)
    reach = len(kernel) // 2
    places = [
        [
            outside(np.arange(side) + offset, side, "mirror").astype("int32")
            for offset in range(-reach, reach + 1)
        ]
        for side in images.shape[1:3]
    ]
    total = 0.0
    for (row, column), weight in np.ndenumerate(kernel):
        if weight:
            taken = ops.take(images, places[0][row], axis=1)
            taken = ops.take(taken, places[1][column], axis=2)
            total = total + taken * float(weight)
    return ops.clip(total, 0, 255)


def disk(radius, deviation):
    """Kernel of `defocus_blur`: a disk of whole pixels, smoothed at its edge.

    The Gaussian has 3 x 3 pixels.
    """
    reach = int(radius)
    place = np.arange(-reach, reach + 1)
    flat = place[:, None] ** 2 + place**2 <= radius**2
    kernel = np.pad(flat / flat.sum(), 1)
    smooth = gaussian(deviation, 1)
    for _ in range(2):
        columns = [np.convolve(each, smooth, "same") for each in kernel.T]
        kernel = np.array(columns)
    return kernel


def glass_blur(images, constants, draws):
    """Gaussian filter, each pixel replaced by a neighbor, Gaussian filter.

    The authors exchange neighbors in a loop, but on views of the array: the
    second half of an exchange reads what the first has written. So a pixel is
    only overwritten, by one that the loop has not reached yet, and a pass of
    the loop is one look-up. Offsets are -1 or 0; two rows and two columns stay.
    """
    deviation, passes = constants
    height, width = images.shape[1:3]
    inner = height - 2, width - 2
    smooth = functools.partial(gaussian_filter, deviation)
    images = ops.floor(apply_both(smooth, images) + LIFT)
    fixed = ((0, 0), (2, 0), (2, 0))
    for _ in range(passes):
        rows, columns = (
            ops.subtract(place, ops.pad(draws.below(2, *inner), fixed))
            for place in np.indices((height, width), "int32")
        )
        images = look_up(images, rows, columns)
    return ops.clip(apply_both(smooth, images), 0, 255)


def motion_blur(images, constants, draws):
    """A streak in a direction within 45 degrees of the horizontal."""
    return streak(images, constants, draws.uniform(-45.0, 45.0))


def streak(images, constants, degrees):
    """ImageMagick's motion blur: the half of a Gaussian along a line.

    With one half only, the picture also moves, by up to 1.7 pixels. Places are
    rounded to whole pixels, and so is the result to whole levels.

    Args:
        images: `(n, height, width, channels)`.
        constants: radius, which sets how many pixels are summed, and
            deviation, in pixels.
        degrees: float32, `(n,)`.
    """
    radius, deviation = constants
    tap = np.arange(2 * math.ceil(radius) + 1)
    weight = np.exp(-0.5 * (tap / deviation) ** 2)
    weight = weight / weight.sum()
    height, width = images.shape[1:3]
    angle = degrees * (math.pi / 180)
    right, down = ops.cos(angle), ops.sin(angle)
    total = 0.0
    for j in tap[weight > SMALL]:
        rows, columns = (
            outside(
                ops.cast(ops.ceil(float(j) * step - 0.5), "int32")[:, None]
                + ops.arange(side, dtype="int32"),
                side,
                "edge",
            )
            for step, side in ((down, height), (right, width))
        )
        taken = look_up(images, rows[:, :, None], columns[:, None])
        total = total + float(weight[j]) * taken
    return half_up(total)


def zoom_blur(images, number, draws):
    """Mean of the image and `number` zooms of it, by 1.00, 1.01, 1.02, ..."""
    total = images
    # As `np.arange` sums: 1.25 with the last bit more grows 26 pixels to 33.
    for factor in 1 + (1.01 - 1) * np.arange(number):
        matrix = functools.partial(zoom, factor)
        total = total + apply_both(matrix, images)
    return ops.clip(total / (number + 1), 0, 255)
