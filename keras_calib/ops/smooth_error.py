"""Smooth calibration error from residual mass on nodes, for tensors and NumPy.

    smECE_s = int |1/n sum_i (c_i - a_i) K_s(t, c_i)| dt

`K_s` is a Gaussian kernel of standard deviation `s`, reflected at 0 and 1.
"""

import numpy as np
from keras import ops

from keras_calib.ops.bin_errors import divide


def smooth_error(nodes, bandwidth=None, points=None, steps=10, xp=ops):
    """Smooth error at a bandwidth, by default at the one that equals the error.

    Args:
        nodes: `1/n sum (c - a)` of the samples of each of evenly spaced nodes
            from 0 to 1, `(..., num_nodes)`.
        bandwidth: float, the `s` above, or `None` for `s = smECE_s`.
        points: int, distances between the points of the integral; by default
            those of the nodes. Fewer are faster.
        steps: int, the most steps of the search for the bandwidth.
        xp: `keras.ops` or `numpy`.

    Returns:
        Shape `(...)`.
    """
    points = points or nodes.shape[-1] - 1
    error = _error_of_bandwidth(nodes, points, xp)
    gap = xp.abs(xp.sum(nodes, axis=-1))
    if bandwidth is not None:
        return error(xp.ones_like(gap) * bandwidth)
    return _fixed_point(error, xp.maximum(gap, 2.0 / points), steps, xp)


def _error_of_bandwidth(nodes, points, xp):
    """The smooth error as a function of the bandwidth s.

    `damping` is the Fourier transform of the kernel `K_s`, and `density` is
    `1/n sum_i (c_i - a_i) K_s(t, c_i)` at the points t, times their distance
    `1 / points`.
    """
    spectrum = spectrum_of(nodes, xp)[..., : points + 1]
    dtype = "float64" if xp is np else "float32"
    frequency = xp.arange(points + 1, dtype=dtype) * np.pi

    def error(bandwidth):
        damping = xp.exp(-0.5 * (frequency * bandwidth[..., None]) ** 2)
        damped = spectrum * damping
        if xp is np:
            density = np.fft.irfft(damped)
        else:
            density = ops.irfft((damped, ops.zeros_like(damped)))
        size = xp.abs(density[..., : points + 1])
        # The trapezoid rule. `irfft` has divided by `2 points`, and reflection
        # has doubled the mass: what is left is the distance of the points.
        ends = (size[..., 0] + size[..., -1]) / 2
        return xp.sum(size, axis=-1) - ends

    return error


def spectrum_of(nodes, xp=ops):
    """The Fourier transform of nodes that are reflected at 0 and 1."""
    # This is an even function of period 2, in which an inner node occurs twice
    # and an end node once: the mass of an end is doubled.
    first, inner, last = nodes[..., :1], nodes[..., 1:-1], nodes[..., -1:]
    parts = [2 * first, inner, 2 * last, xp.flip(inner, axis=-1)]
    wave = xp.concatenate(parts, axis=-1)
    # The spectrum of an even function is real.
    return np.fft.rfft(wave).real if xp is np else ops.rfft(wave)[0]


def _fixed_point(error, low, steps, xp):
    """`s = error(s)` of a falling function; `error(low)` if that is below.

    False position (Illinois) for `log error(s) - log s` in `log s`, which is
    nearly straight: a sum of kernels falls like a power of its bandwidth.
    """

    def excess(place):
        return xp.log(xp.maximum(error(xp.exp(place)), 1e-12)) - place

    first, start = error(low), low
    low, high = xp.log(low), xp.log(xp.maximum(first, low))
    above, below = excess(low), excess(high)
    up = None
    for step in range(steps):
        fraction = divide(above, above - below, xp)
        middle = low + (high - low) * (0.5 if step % 4 == 3 else fraction)
        value, last = excess(middle), up
        up = value > 0
        if last is not None:
            # An end that stays twice gets half its weight.
            again = xp.equal(up, last)
            below = xp.where(xp.logical_and(again, up), below / 2, below)
            again = xp.logical_and(again, xp.logical_not(up))
            above = xp.where(again, above / 2, above)
        low, above = xp.where(up, middle, low), xp.where(up, value, above)
        high, below = xp.where(up, high, middle), xp.where(up, below, value)
        # Compiled code cannot stop early.
        if xp is np and ((np.abs(value) < 1e-11) | (high <= low)).all():
            break
    fraction = divide(above, above - below, xp)
    found = xp.exp(low + (high - low) * fraction)
    return xp.where(first <= start, first, found)
