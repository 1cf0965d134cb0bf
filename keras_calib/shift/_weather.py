"""Weather: snow, frost, fog and brightness."""

import functools

from keras import ops

from keras_calib.shift._blur import LIFT
from keras_calib.shift._blur import streak
from keras_calib.shift._frost_fields import frost_fields
from keras_calib.shift._linear import apply_both
from keras_calib.shift._linear import zoom

# Luma of red, green and blue.
GREY = (0.299, 0.587, 0.114)


def snow(images, constants, draws):
    """Flakes that fall, twice (once turned by 180 degrees), on paler images."""
    mean, deviation, factor, least, radius, blur, share = constants
    height, width = images.shape[1:3]
    layer = mean + deviation * draws.normal(height, width, 1)
    if factor != 1:
        layer = apply_both(functools.partial(zoom, factor), layer)
    layer = ops.where(layer < least, 0.0, ops.clip(layer, 0, 1))
    layer = ops.floor(255 * layer + LIFT)
    layer = streak(layer, (radius, blur), draws.uniform(-135.0, -45.0))
    red, green, blue = (images[..., c : c + 1] * GREY[c] for c in range(3))
    pale = ops.maximum(images, 1.5 * (red + green + blue) + 127.5)
    images = share * images + (1 - share) * pale
    layer = layer + ops.flip(layer, axis=(1, 2))
    return ops.clip(images + layer, 0, 255)


def frost(images, constants, draws):
    """A mean of the image and a field of ice."""
    own, ice = constants
    fields = frost_fields(draws, *images.shape[1:3])
    return ops.clip(own * images + ice * fields, 0, 255)


def fog(images, constants, draws):
    """Add a cloud, and bring the largest value back to what it was."""
    amount, decay = constants
    largest = ops.max(images, axis=(1, 2, 3), keepdims=True)
    cloud = plasma(draws, decay, *images.shape[1:3])
    thick = 255 * amount
    images = (images + thick * cloud) * largest / (largest + thick)
    return ops.clip(images, 0, 255)


def plasma(draws, decay, height, width):
    """Clouds by the diamond-square method, 0 to 1, `(n, height, width, 1)`.

    The map is periodic. It starts as one value 0, and each level doubles its
    side: the centers of the squares are means of four corners plus noise, then
    the middles of the edges are. As in the authors' code the size of a level
    is squared, because it both scales a uniform number and bounds it.
    """
    side = 2 ** (max(height, width) - 1).bit_length()
    size = 100.0
    grid = ops.zeros((ops.shape(draws.index)[0], 1, 1))
    while grid.shape[1] < side:
        old = grid.shape[1]

        def jitter(total, old=old, size=size):
            noise = size * draws.uniform(-size, size, old, old)
            return total / 4 + noise

        pairs = grid + ops.roll(grid, -1, axis=1)
        center = jitter(pairs + ops.roll(pairs, -1, axis=2))
        above = center + ops.roll(center, 1, axis=1)
        beside = center + ops.roll(center, 1, axis=2)
        top = jitter(above + grid + ops.roll(grid, -1, axis=2))
        left = jitter(beside + pairs)
        rows = (
            ops.reshape(ops.stack(pair, axis=-1), (-1, old, 2 * old))
            for pair in ((grid, top), (left, center))
        )
        grid = ops.stack(list(rows), axis=2)
        grid = ops.reshape(grid, (-1, 2 * old, 2 * old))
        size = size / decay
    low = ops.min(grid, axis=(1, 2), keepdims=True)
    high = ops.max(grid, axis=(1, 2), keepdims=True)
    grid = (grid - low) / (high - low)
    return grid[:, :height, :width, None]


def brightness(images, amount, draws):
    """Add to the value of HSV, which scales all three colors alike."""
    value = ops.max(images, axis=-1, keepdims=True)
    lighter = ops.minimum(value + 255 * amount, 255.0)
    # Black has no color to scale.
    scaled = images * (lighter / ops.maximum(value, 1e-6))
    return ops.where(value > 0, scaled, lighter)
