"""`corrupt`: the table of corruptions, and how images go in and come out."""

import math

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib._warning import warn
from keras_calib.inputs.arguments import MOST
from keras_calib.inputs.arguments import are_numbers
from keras_calib.inputs.arguments import is_integer
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.arrays import concrete_value
from keras_calib.shift import _blur
from keras_calib.shift import _digital
from keras_calib.shift import _noise
from keras_calib.shift import _weather
from keras_calib.shift._hash import Draws
from keras_calib.shift._hash import as_int32
from keras_calib.shift._jpeg import jpeg_compression

# Function, and its constants at severities 1 to 5: those of the authors' script
# for CIFAR-10. The constants for ImageNet are others, in every row.
TABLE = {
    "gaussian_noise": (_noise.gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.1)),
    "shot_noise": (_noise.shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (_noise.impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    # Radius of the disk, deviation of the Gaussian.
    "defocus_blur": (
        _blur.defocus_blur,
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    ),
    # Deviation of the Gaussian, passes.
    "glass_blur": (
        _blur.glass_blur,
        ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)),
    ),
    # Radius, deviation.
    "motion_blur": (
        _blur.motion_blur,
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    ),
    # Number of zooms: rounding of `np.arange` decides about the last one.
    "zoom_blur": (_blur.zoom_blur, (7, 12, 16, 21, 26)),
    # Mean, deviation, zoom and least level of the flakes; radius and deviation
    # of their streaks; share of the image that is not made paler.
    "snow": (
        _weather.snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    # Factors of the image and of the ice.
    "frost": (
        _weather.frost,
        ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    ),
    # Amount, decay of the noise from a level to the next one.
    "fog": (
        _weather.fog,
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    ),
    "brightness": (_weather.brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (_digital.contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    # In sides: strength and deviation of the field, reach of the affine map.
    "elastic_transform": (
        _digital.elastic_transform,
        (
            (0, 0, 0.08),
            (0.05, 0.2, 0.07),
            (0.08, 0.06, 0.06),
            (0.1, 0.04, 0.05),
            (0.1, 0.03, 0.03),
        ),
    ),
    "pixelate": (_digital.pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": (jpeg_compression, (80, 65, 58, 50, 40)),
}
CORRUPTIONS = tuple(TABLE)
SEVERITIES = (1, 2, 3, 4, 5)
# They have red, green and blue in their formulas.
OF_COLOR = ("snow", "frost", "brightness", "jpeg_compression")
LEAST_SIDE = 16


def corrupt(
    images: Tensor,
    kind: str,
    severity: int,
    *,
    seed: int = 0,
    value_range: tuple[float, float] = (0, 255),
    start: int = 0,
) -> Tensor:
    """Corrupt images as CIFAR-10-C does, on any backend.

    The constants are those of the CIFAR-10 benchmark, in pixels of images of
    32 x 32; those of `elastic_transform` grow with the side. (Benchmarks of
    larger images have other constants: at 64 pixels and more these corruptions
    are mild.) The published files were drawn without a seed, so other
    pixels than theirs come out, of the same distribution. There is one
    exception: `frost` draws ice with the statistics of the photographs that the
    authors used, because the photographs' license is unknown.

    Image `i` depends on `(seed, kind, severity, start + i)` and its own pixels:
    the batches of a pipeline have the same noise unless `start` counts on.
    Random numbers are the same on every backend, and so are the results, but
    for single levels that rounding decides.

    Works in compiled code (`jax.jit`, `tf.function`); `kind`, `severity` and
    `value_range` are static, `seed` and `start` may be integer tensors. Values
    cannot be checked there.

    Args:
        images: `(n, height, width, channels)` of at least 16 x 16 pixels, uint8
            or floating point, channels last. Snow, frost, brightness and JPEG
            need three channels: red, green and blue.
        kind: one of `kc.shift.CORRUPTIONS`.
        severity: 1, 2, 3, 4 or 5.
        seed: int of 32 bits; the same seed draws the same corruptions.
        value_range: black and white of floating-point images, `(0, 255)` or for
            instance `(0, 1)`. It is never guessed.
        start: int of 32 bits, the place of the first image among all that share
            the seed: how many images the batches before have.

    Returns:
        Images of the same shape and dtype, a NumPy array for a NumPy array and
        otherwise a tensor. uint8 is cut off, as in the benchmark, not rounded.

    Raises:
        ValueError: if an argument is not as above, or a value is outside of
            `value_range`.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> images = np.full((2, 32, 32, 3), 128, "uint8")
        >>> noisy = kc.shift.corrupt(images, "gaussian_noise", 3)
        >>> noisy.dtype, noisy.shape, bool(18 < noisy.std() < 23)
        (dtype('uint8'), (2, 32, 32, 3), True)

    Reference:
        Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to
        Common Corruptions and Perturbations", ICLR 2019, arXiv:1903.12261,
        Section 4, with the constants of `make_cifar_c.py` in
        hendrycks/robustness.
    """
    check_arguments(kind, severity, value_range)
    check_integer(seed=seed)
    check_integer(start=start)
    check_images(images, kind, value_range)
    given = images
    if images.shape[0] == 0:
        return given
    check_values(images, value_range)
    images = ops.convert_to_tensor(images)
    found = corrupt_from(images, kind, severity, seed, start, value_range)
    if isinstance(given, np.ndarray):
        value = concrete_value(found)
        # JAX has float32 for float64.
        return found if value is None else value.astype(given.dtype)
    return found


def corrupt_from(images, kind, severity, seed, start, value_range):
    """`corrupt` of a part of a set whose first image has the place `start`."""
    index = ops.arange(images.shape[0] or ops.shape(images)[0], dtype="int32")
    index = index + as_int32(start)
    draws = Draws(seed, f"{kind} {severity}", index)
    function, constants = TABLE[kind]
    levels, back = as_levels(images, value_range)
    levels = function(levels, constants[severity - 1], draws)
    if back is not None:
        return back(levels)
    # The cast of the authors cuts. A quotient times 255 must not fall below
    # the level it came from.
    return ops.cast(ops.floor(levels + _blur.LIFT), "uint8")


def as_levels(images, value_range):
    """Images as float32 levels from 0 to 255, and the way back of floats."""
    dtype = keras.backend.standardize_dtype(images.dtype)
    images = ops.cast(images, "float32")
    if dtype == "uint8":
        return images, None
    low, high = map(float, value_range)
    scale = 255 / (high - low)

    def back(levels):
        # Rounding may go beyond white, of 255.00002 as of a sum.
        return ops.clip(ops.cast(levels / scale + low, dtype), low, high)

    return (images - low) * scale, back


def check_arguments(kind, severity, value_range):
    """Raise `ValueError` for what no image could be corrupted with."""
    require_one_of(CORRUPTIONS, kind=kind)
    require(
        isinstance(severity, int | np.integer)
        and not isinstance(severity, bool)
        and severity in SEVERITIES,
        "`severity` must be 1, 2, 3, 4 or 5.",
        severity=severity,
    )
    require(
        are_numbers(value_range)
        and len(value_range) == 2
        and -math.inf < value_range[0] < value_range[1] < math.inf,
        "`value_range` must be a level of black and a higher one of white.",
        value_range=value_range,
    )


def check_integer(**argument):
    """Raise `ValueError` unless it is one integer, or such a tensor."""
    [(name, value)] = argument.items()
    small = is_integer(value) and -MOST <= value < MOST
    require(
        small or (ops.is_tensor(value) and is_number(value)),
        f"`{name}` must be an integer of 32 bits.",
        **argument,
    )


def check_images(images, kind, value_range):
    """Raise `ValueError` for a shape or dtype that `corrupt` cannot take."""
    shape = tuple(images.shape) if hasattr(images, "shape") else None
    require(
        shape is not None and len(shape) == 4,
        "`images` must be one array of shape `(n, height, width, channels)`.",
        "Add an axis to a single image, `image[None]`; a dataset is read with "
        "`np.concatenate([x for x, _ in dataset])`.",
        shape=shape,
    )
    require(
        None not in shape[1:] and min(shape[1:3]) >= LEAST_SIDE,
        f"Images must have a known size, at least {LEAST_SIDE} x {LEAST_SIDE}.",
        "Channels come last.",
        shape=shape,
    )
    require(
        shape[3] != 0,
        "Images must have at least one channel.",
        "Add the axis of gray images: `images[..., None]`.",
        shape=shape,
    )
    require(
        kind not in OF_COLOR or shape[3] == 3,
        f"{kind!r} needs three channels: red, green and blue.",
        shape=shape,
    )
    dtype = keras.backend.standardize_dtype(images.dtype)
    is_float = "float" in dtype
    require(
        is_float or dtype == "uint8",
        "`images` must be uint8 or floating point.",
        "Cast them to the one that holds their levels.",
        dtype=dtype,
    )
    require(
        is_float or tuple(value_range) == (0, 255),
        "The `value_range` of uint8 images is `(0, 255)`.",
        value_range=value_range,
    )


def check_values(images, value_range):
    """Raise unless floats are in their range, where they can be seen."""
    if "float" not in keras.backend.standardize_dtype(images.dtype):
        return
    if not isinstance(images, np.ndarray):
        images = concrete_value(images)
    if images is None:  # in compiled code
        return
    least, most = float(images.min()), float(images.max())
    low, high = value_range
    # As these images hold them: float32 has 0.30000001 for 0.3.
    black, white = map(float, np.asarray(value_range, images.dtype))
    require(
        black <= least and most <= white,
        "Values of `images` are outside of `value_range`.",
        "Corrupt images before they are normalized, and pass the levels of "
        "black and white as `value_range`.",
        minimum=least,
        maximum=most,
        value_range=value_range,
    )
    if low == 0 and 0 < most <= (high - low) / 255:
        warn(
            f"All images are nearly black: the largest value is {most:.3g}, "
            f"and white is {high}. Pass `value_range=(0, 1)` if it is 1."
        )
