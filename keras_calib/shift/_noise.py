"""Noise: Gaussian, shot (Poisson) and impulse noise.

In every room of corruptions a function takes images, float32 with levels from
0 to 255, `(n, height, width, channels)`, the constants of a severity, and
`Draws`. It returns levels that need not be whole.
"""

import functools
import math

import numpy as np
from keras import ops

from keras_calib.shift._linear import half_up

LEVELS = 256


def gaussian_noise(images, deviation, draws):
    """`x + N(0, deviation)`, independent for each value."""
    noise = draws.normal(*images.shape[1:])
    return ops.clip(images + 255 * deviation * noise, 0, 255)


def shot_noise(images, counts, draws):
    """`Poisson(counts x) / counts`: the light of few photons.

    The count is the smallest whose distribution function is not below a
    uniform number. Images have 256 levels, so that is a look-up; counts above
    `counts` are white in any case.
    """
    table = poisson_table(counts)
    columns = table.shape[1]
    level = ops.cast(half_up(images), "int32")
    u = draws.uniform(0.0, 1.0, *images.shape[1:])
    flat = ops.convert_to_tensor(table.reshape(-1))
    found = ops.zeros_like(level)
    step = columns // 2
    while step:  # a binary search
        value = ops.take(flat, level * columns + found + (step - 1), axis=0)
        found = ops.where(value < u, found + step, found)
        step //= 2
    count = ops.minimum(ops.cast(found, "float32"), float(counts))
    return count * (255 / counts)


@functools.lru_cache(maxsize=8)
def poisson_table(counts):
    """`P(count <= k)` at each of 256 levels, float32 `(256, 2^m)`, `k` first 0.

    Columns from `counts` on are 1, which ends the search there.
    """
    columns = 2 ** math.ceil(math.log2(counts + 1))
    rate = np.arange(LEVELS)[:, None] / (LEVELS - 1) * counts
    k = np.arange(columns)
    log_factorial = np.cumsum(np.log(np.maximum(k, 1)))
    log_rate = np.log(np.maximum(rate, 1e-300))
    chance = np.exp(k * log_rate - rate - log_factorial)
    chance[0] = k == 0
    table = np.minimum(np.cumsum(chance, axis=1), 1.0)
    table[:, counts:] = 1.0
    return table.astype("float32")


def impulse_noise(images, amount, draws):
    """Each value, not each pixel, is 0 or 255 with probability `amount`."""
    hit = draws.uniform(0.0, 1.0, *images.shape[1:]) <= amount
    white = draws.uniform(0.0, 1.0, *images.shape[1:]) <= 0.5
    return ops.where(hit, ops.where(white, 255.0, 0.0), images)
