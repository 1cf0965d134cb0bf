"""The corruptions of CIFAR-10-C once more, plainly, in float64, with loops.

Each takes one image, `(32, 32, 3)`, levels from 0 to 255, and the random
numbers it needs.
"""

import colorsys
import math

import numpy as np

SIDE = 32


def smooth(x, deviation, border, truncate=4.0):
    """A Gaussian filter of rows and columns by padding and summing."""
    reach = int(truncate * deviation + 0.5)
    weights = [math.exp(-0.5 * (k / deviation) ** 2) for k in range(reach + 1)]
    weights = np.array(weights[:0:-1] + weights)
    weights /= weights.sum()
    for axis in (0, 1):
        pad = [(0, 0)] * x.ndim
        pad[axis] = (reach, reach)
        wide = np.moveaxis(np.pad(x, pad, mode=border), axis, 0)
        parts = [w * wide[k : k + SIDE] for k, w in enumerate(weights)]
        x = np.moveaxis(sum(parts), 0, axis)
    return x


def shot_noise(x, counts, u):
    out = np.empty_like(x)
    for place, level in np.ndenumerate(x):
        rate, k = level / 255 * counts, 0
        chance = math.exp(-rate)
        total = chance
        while total < u[place] and k < counts:
            k += 1
            chance *= rate / k
            total += chance
        out[place] = 255 * k / counts
    return out


def defocus_blur(x, radius, deviation):
    disk = np.zeros((5, 5))
    for i in range(-2, 3):
        for j in range(-2, 3):
            disk[i + 2, j + 2] = i * i + j * j <= radius * radius
    disk /= disk.sum()
    line = np.exp(-0.5 * (np.arange(-1, 2) / deviation) ** 2)
    line /= line.sum()
    wide = np.pad(disk, 2)
    kernel = np.zeros((7, 7))
    for i in range(7):
        for j in range(7):
            patch = wide[i : i + 3, j : j + 3]
            kernel[i, j] = line @ patch @ line if patch.shape == (3, 3) else 0.0
    padded = np.pad(x, ((3, 3), (3, 3), (0, 0)), mode="reflect")
    return sum(
        kernel[i, j] * padded[i : i + SIDE, j : j + SIDE]
        for i in range(7)
        for j in range(7)
    )


def glass_blur(x, deviation, offsets):
    """The authors' loop, whose exchange is of views; offsets are 0 or -1."""
    x = np.floor(smooth(x, deviation, "edge") + 1e-4)
    for rows, columns in offsets:
        for h in range(SIDE - 1, 1, -1):
            for w in range(SIDE - 1, 1, -1):
                hh, ww = h + rows[h - 2, w - 2], w + columns[h - 2, w - 2]
                x[h, w], x[hh, ww] = x[hh, ww], x[h, w]
    return smooth(x, deviation, "edge")


def streak(x, radius, deviation, degrees):
    width = 2 * math.ceil(radius) + 1
    weights = [math.exp(-(j * j) / (2 * deviation**2)) for j in range(width)]
    angle = math.radians(degrees)
    out = np.zeros_like(x)
    for j, weight in enumerate(weights):
        right = math.ceil(j * math.cos(angle) - 0.5)
        down = math.ceil(j * math.sin(angle) - 0.5)
        for h in range(SIDE):
            for w in range(SIDE):
                row = min(max(h + down, 0), SIDE - 1)
                column = min(max(w + right, 0), SIDE - 1)
                out[h, w] += weight / sum(weights) * x[row, column]
    return np.floor(out + 0.5)


def zoomed(x, factor):
    crop = math.ceil(SIDE / factor)
    first = (SIDE - crop) // 2
    x = x[first : first + crop, first : first + crop]
    size = round(crop * factor)
    places = np.linspace(0, crop - 1, size)
    for axis in (0, 1):
        x = np.apply_along_axis(
            lambda line: np.interp(places, np.arange(crop), line), axis, x
        )
    trim = (size - SIDE) // 2
    return x[trim : trim + SIDE, trim : trim + SIDE]


def zoom_blur(x, factors):
    return (x + sum(zoomed(x, z) for z in factors)) / (len(factors) + 1)


def snow(x, constants, normal, degrees):
    mean, deviation, factor, least, radius, blur, share = constants
    layer = zoomed(mean + deviation * normal, factor)
    layer[layer < least] = 0
    layer = np.floor(np.clip(layer, 0, 1) * 255)
    layer = streak(layer[..., None], radius, blur, degrees) / 255
    x = x / 255
    grey = 0.299 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2]
    pale = np.maximum(x, grey[..., None] * 1.5 + 0.5)
    x = share * x + (1 - share) * pale + layer + np.rot90(layer, k=2)
    return 255 * np.clip(x, 0, 1)


def plasma(decay, uniform):
    """Diamond-square; `uniform()` gives the next level's numbers in (-1, 1)."""
    m = np.zeros((SIDE, SIDE))
    step, size = SIDE, 100.0
    while step > 1:
        half = step // 2
        center, top, left = (size**2 * uniform() for _ in range(3))
        for i in range(0, SIDE, step):
            for j in range(0, SIDE, step):
                k, n = (i + step) % SIDE, (j + step) % SIDE
                total = m[i, j] + m[k, j] + m[i, n] + m[k, n]
                noise = center[i // step, j // step]
                m[i + half, j + half] = total / 4 + noise
        for i in range(0, SIDE, step):
            for j in range(0, SIDE, step):
                k, n = (i + step) % SIDE, (j + step) % SIDE
                at = i // step, j // step
                middle = m[i + half, j + half]
                total = m[i, j] + m[i, n] + middle + m[i - half, j + half]
                m[i, j + half] = total / 4 + top[at]
                total = m[i, j] + m[k, j] + middle + m[i + half, j - half]
                m[i + half, j] = total / 4 + left[at]
        step, size = half, size / decay
    m -= m.min()
    return m / m.max()


def fog(x, amount, cloud):
    x = x / 255
    most = x.max()
    x = (x + amount * cloud[..., None]) * most / (most + amount)
    return 255 * np.clip(x, 0, 1)


def brightness(x, amount):
    out = np.empty_like(x)
    for h in range(SIDE):
        for w in range(SIDE):
            hue, saturation, value = colorsys.rgb_to_hsv(*(x[h, w] / 255))
            value = min(value + amount, 1)
            out[h, w] = colorsys.hsv_to_rgb(hue, saturation, value)
    return 255 * out


def contrast(x, factor):
    mean = x.mean(axis=(0, 1))
    return np.clip((x - mean) * factor + mean, 0, 255)


def bilinear(x, rows, columns, border):
    padded = np.pad(x, ((40, 40), (40, 40), (0, 0)), mode=border)
    out = np.empty_like(x)
    for h in range(SIDE):
        for w in range(SIDE):
            i, j = math.floor(rows[h, w]), math.floor(columns[h, w])
            p, q = rows[h, w] - i, columns[h, w] - j
            patch = padded[i + 40 : i + 42, j + 40 : j + 42]
            out[h, w] = (1 - p) * ((1 - q) * patch[0, 0] + q * patch[0, 1])
            out[h, w] += p * ((1 - q) * patch[1, 0] + q * patch[1, 1])
    return out


def elastic_transform(x, constants, moves, field):
    """Affine map by three points, then a field `(32, 32, 2)` in (-1, 1)."""
    strength, deviation, _ = (SIDE * c for c in constants)
    source = np.array([[26.0, 26], [26, 6], [6, 6]])
    target = np.column_stack([source + moves, np.ones(3)])
    back = np.linalg.solve(target, source)
    columns, rows = np.meshgrid(np.arange(SIDE), np.arange(SIDE))
    places = np.stack([columns, rows, np.ones((SIDE, SIDE))], axis=-1) @ back
    places = np.floor(32 * places + 0.5) / 32
    x = bilinear(x, places[..., 1], places[..., 0], "reflect")
    if strength:
        field = strength * smooth(field, deviation, "symmetric", 3.0)
        x = bilinear(
            x, rows + field[..., 0], columns + field[..., 1], "symmetric"
        )
    return x
