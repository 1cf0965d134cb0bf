"""Smooth errors of residuals at several scales, with the noise of resamples.

At a bandwidth the density of residuals is linear in them. So one transform of
a resample, and one of the sample, give the error at each scale, and the error
that equals its bandwidth is between two neighbors of a fixed grid.
"""

import numpy as np

from keras_calib.evaluation.binless import REPLICATE_NODES
from keras_calib.evaluation.binless import residual_nodes
from keras_calib.ops.smooth_error import spectrum_of

# The narrowest bandwidth, as in `ops.smooth_error`.
NARROWEST = 2 / REPLICATE_NODES
# Between two of so many, `log error` is a straight line to 1e-2 of the error.
NUMBER = 10


def spectrum_of_events(events):
    """What `errors_at_scales` needs to know of events, `(..., points + 1)`."""
    spectrum = spectrum_of(residual_nodes(events), np)
    return spectrum[..., : REPLICATE_NODES + 1].copy()


def errors_at_scales(noise, own, scales, value):
    """Smooth errors of `noise + s * own`.

    Args:
        noise: spectra, `(..., points + 1)`.
        own: spectrum of the sample, `(points + 1,)`.
        scales: float, `(m,)`.
        value: float, a third to three times of which has bandwidths; errors
            beyond are estimates.

    Returns:
        `(m, ...)`.
    """
    bandwidths = np.geomspace(
        max(value / 3, NARROWEST), max(3 * value, 4 * NARROWEST), NUMBER
    )
    errors = np.stack(
        [_errors_at(width, noise, own, scales) for width in bandwidths], axis=-1
    )
    place = np.log(bandwidths)
    excess = np.log(np.maximum(errors, 1e-12)) - place
    above = (excess > 0).sum(axis=-1)
    right = np.clip(above, 1, len(place) - 1)
    left = right - 1
    before, after = (
        np.take_along_axis(excess, each[..., None], axis=-1)[..., 0]
        for each in (left, right)
    )
    step = place[right] - place[left]
    found = np.exp(place[left] + step * before / (before - after))
    # An error below the first bandwidth is at most that of this bandwidth.
    return np.where(above == 0, errors[..., 0], found)


def _errors_at(bandwidth, noise, own, scales):
    """Those of one bandwidth, `(m, ...)`."""
    # 8 points to a bandwidth leave no frequency out.
    points = 1 << int(np.ceil(np.log2(8 / bandwidth)))
    points = min(max(points, 64), noise.shape[-1] - 1)
    frequency = np.pi * np.arange(points + 1)
    damping = np.exp(-0.5 * (frequency * bandwidth) ** 2)

    def density(spectrum):
        return np.fft.irfft(spectrum[..., : points + 1] * damping)[
            ..., : points + 1
        ]

    noise, own = density(noise), density(own)
    errors = np.empty((len(scales), *noise.shape[:-1]))
    both = np.empty_like(noise)
    for number, s in enumerate(scales):
        np.add(noise, s * own, out=both)
        np.abs(both, out=both)
        # The trapezoid rule.
        ends = (both[..., 0] + both[..., -1]) / 2
        errors[number] = both.sum(axis=-1) - ends
    return errors
