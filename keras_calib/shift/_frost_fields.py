"""Fields of ice in the place of the photographs of frost.

The rights of the authors' photographs are unknown, so they are not here. Each
of the four kinds below has the mean colors, the deviation between and within
crops, the correlation of neighbors, and about the skewness, that crops of one
photograph have: noise of three widths is mixed, bent, and colored.
"""

import functools

import numpy as np
from keras import ops

from keras_calib.shift._linear import apply_both
from keras_calib.shift._linear import gaussian_filter

# One column for each kind. Of the authors' list of photographs the first five
# are drawn, and two of these are the same.
KINDS = {
    "mean": (
        (78.0, 148.0, 165.0),
        (198.0, 203.0, 212.0),
        (143.0, 158.0, 171.0),
        (102.0, 114.0, 126.0),
    ),
    "within": (
        (21.5, 13.2, 12.6),
        (18.0, 18.0, 19.0),
        (26.0, 26.0, 27.0),
        (34.5, 34.0, 33.5),
    ),
    "between": (11.0, 9.0, 10.0, 16.0),
    # Shares of the variance: wide and middle noise; the rest is of pixels.
    "wide": (0.45, 0.24, 0.18, 0.14),
    "middle": (0.12, 0.20, 0.08, 0.26),
    # Share that all colors have in common.
    "grey": (0.55, 0.99, 0.99, 1.0),
    # How much longer the dark tail is than the bright one.
    "dark": (-0.15, 0.50, 0.06, -0.18),
}
KIND_OF_DRAW = np.array([0, 1, 1, 2, 3], "int32")
# Deviations of the filters, in pixels.
WIDE, MIDDLE = 5.0, 1.2


def frost_fields(draws, height, width):
    """Levels of ice, `(n, height, width, 3)`."""
    kind = ops.take(KIND_OF_DRAW, draws.below(5), axis=0)

    def of_kind(name):
        values = np.array(KINDS[name], "float32").reshape(4, 1, 1, -1)
        return ops.take(values, kind, axis=0)

    smooth = [
        functools.partial(
            gaussian_filter, deviation, border="symmetric", truncate=3.0
        )
        for deviation in (WIDE, MIDDLE)
    ]
    wide = unit(apply_both(smooth[0], draws.normal(height, width, 1)))
    middle = unit(apply_both(smooth[1], draws.normal(height, width, 1)))
    fine = draws.normal(height, width, 1)
    wide_share, middle_share = of_kind("wide"), of_kind("middle")
    field = ops.sqrt(wide_share) * wide + ops.sqrt(middle_share) * middle
    field = field + ops.sqrt(1 - wide_share - middle_share) * fine
    field = unit(field - 0.35 * of_kind("dark") * (field**2 - 1))
    color = unit(apply_both(smooth[1], draws.normal(height, width, 3)))
    grey = of_kind("grey")
    field = ops.sqrt(grey) * field + ops.sqrt(1 - grey) * color
    level = of_kind("between") * draws.normal(1, 1, 1)
    found = of_kind("mean") + level + of_kind("within") * field
    return ops.clip(found, 0, 255)


def unit(field):
    """Fields of mean 0 and variance 1, each channel of each image."""
    field = field - ops.mean(field, axis=(1, 2), keepdims=True)
    variance = ops.mean(field**2, axis=(1, 2), keepdims=True)
    return field / ops.sqrt(variance)
