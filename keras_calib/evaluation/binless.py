"""Errors without bins: KS, smooth ECE, kernel; and how well errors rank."""

import numpy as np

from keras_calib.evaluation.events import between
from keras_calib.evaluation.events import divide
from keras_calib.evaluation.events import running

NODES = 8192
REPLICATE_NODES = 1024


def ks_error(events):
    """`max_t |1/n sum_{c_i <= t} (c_i - a_i)|`, at the ends of ties only."""
    if not len(events):
        return np.zeros(events.residuals_below.shape[:-1])[()]
    ends = events.residuals_below[..., events.tie_ends]
    return divide(np.abs(ends).max(axis=-1), events.total)[()]


def kernel_error(events, width=0.4, unbiased=False):
    """MMCE with the kernel `exp(-|c - c'| / width)`, in `n log n`.

    In sorted order the kernel is a quotient, so that the sum over pairs is a
    running sum.

    Args:
        events: `Events`.
        width: float, the kernel's width.
        unbiased: return the unbiased *square*, which may be negative.
    """
    r = events.weigh(events.residuals)
    below = running(r * np.exp(events.values / width))[..., :-1]
    pairs = 2 * (r * np.exp(-events.values / width) * below).sum(axis=-1)
    total = np.asarray(events.total, "float64")
    own = (r**2).sum(axis=-1)
    if unbiased:
        # Copies of one sample are pairs, a sample with itself is not.
        square = events.weigh(1.0) if events.square is None else events.square
        pairs = pairs + own - (square * events.residuals**2).sum(axis=-1)
        return divide(pairs, total**2 - events.squares_below[..., -1])[()]
    return np.sqrt(np.maximum(divide(pairs + own, total**2), 0.0))[()]


def smooth_error(events, bandwidth=None):
    """Smooth ECE, by default at the bandwidth that equals the error.

    Args:
        events: `Events`.
        bandwidth: float, the kernel's standard deviation, or `None`.
    """
    shape = events.residuals_below.shape[:-1]
    if not len(events):
        return np.zeros(shape)[()]
    place = events.values * NODES
    cell = np.minimum(place.astype("int32"), NODES - 1)
    cuts = np.searchsorted(cell, np.arange(NODES + 1))
    upper = running(events.weigh(events.residuals * (place - cell)))
    nodes = np.zeros((*shape, NODES + 1))
    nodes[..., :-1] = between(events.residuals_below, cuts)
    moved = between(upper, cuts)
    nodes[..., :-1] -= moved
    nodes[..., 1:] += moved
    nodes = divide(nodes, np.asarray(events.total)[..., None])
    return smooth_error_from_nodes(nodes, bandwidth)


def smooth_error_from_nodes(nodes, bandwidth=None):
    """Smooth ECE from residual mass on evenly spaced nodes of `[0, 1]`."""
    cells = nodes.shape[-1] - 1
    mass = np.abs(nodes.sum(axis=-1))
    # Reflection at 0 and 1 is an even function of period 2, in which an inner
    # node occurs twice and an end node once: its mass is doubled.
    ends = nodes.copy()
    ends[..., [0, -1]] *= 2
    wave = np.concatenate([ends, ends[..., -2:0:-1]], axis=-1)
    spectrum = np.fft.rfft(wave, axis=-1)
    # Replicates are looked at on a coarser grid, which is several times
    # faster and moves them by less than 1e-5.
    points = cells if mass.ndim == 0 else min(cells, REPLICATE_NODES)
    spectrum = spectrum[..., : points + 1]
    frequency = np.pi * np.arange(points + 1)

    def error(sigma):
        damping = np.exp(-0.5 * (frequency * np.asarray(sigma)[..., None]) ** 2)
        wave = np.fft.irfft(spectrum * damping, n=2 * points, axis=-1)
        size = np.abs(wave[..., : points + 1])
        # The trapezoid rule; `irfft` has divided by the number of points.
        return size.sum(axis=-1) - (size[..., 0] + size[..., -1]) / 2

    if bandwidth is not None:
        return error(np.full(mass.shape, float(bandwidth)))[()]
    return fixed_point(error, np.maximum(mass, 2 / points))[()]


def fixed_point(error, low, steps=60, tolerance=1e-10):
    """`s = error(s)` of a falling function; `error(low)` if that is below."""
    at_low = error(low)
    found = at_low <= low
    high, above = np.maximum(at_low, low), at_low - low
    below = error(high) - high
    value = np.where(found, at_low, high)
    for step in range(steps):
        if (found | (high - low < tolerance)).all():
            break
        slope = np.where(above > below, above - below, 1.0)
        middle = low + (high - low) * np.where(
            step % 3 == 2, 0.5, np.clip(above / slope, 0, 1)
        )
        excess = error(middle) - middle
        value = np.where(found, value, middle + excess)
        up = excess > 0
        low, above = np.where(up, middle, low), np.where(up, excess, above)
        high, below = np.where(up, high, middle), np.where(up, below, excess)
        found = found | (np.abs(excess) < tolerance)
    return value


def harmonic(x):
    """`1 + 1/2 + ... + 1/x`, and between whole numbers the smooth function."""
    y = np.asarray(x, "float64") + 8
    square = 1 / y**2
    tail = 1 / 252 - square / 240
    tail = square * (1 / 12 - square * (1 / 120 - square * tail))
    value = np.log(y) + np.euler_gamma + 1 / (2 * y) - tail
    for step in range(8):
        value = value - 1 / (y - step)
    return value


def selective_risk(events):
    """Area under the risk-coverage curve, and its excess over the best order.

    Ties count by their mean error: the expectation over their orders.

    Returns:
        AURC and E-AURC, each of shape `(...)`.
    """
    zero = np.zeros(events.residuals_below.shape[:-1])
    if not len(events):
        return zero[()], zero[()]
    cuts = np.concatenate([[0], events.tie_ends])
    weight = between(events.weights_below, cuts)[..., ::-1]
    errors = weight - between(events.hits_below, cuts)[..., ::-1]
    kept, wrong = running(weight), running(errors)
    share = divide(errors, weight)
    rise = np.diff(harmonic(kept), axis=-1)
    start = wrong[..., :-1] - share * kept[..., :-1]
    total = kept[..., -1]
    area = divide((errors + start * rise).sum(axis=-1), total)
    right = total - wrong[..., -1]
    best = wrong[..., -1] - right * (harmonic(total) - harmonic(right))
    return area[()], (area - divide(best, total))[()]


def ranking(events):
    """AUROC: how often a hit has more confidence than a miss; ties count half.

    0.5 where there is no hit, or no miss.
    """
    cuts = np.concatenate([[0], events.tie_ends]).astype(int)
    weight = between(events.weights_below, cuts)
    hits = between(events.hits_below, cuts)
    misses = weight - hits
    below = running(misses)[..., :-1]
    won = (hits * (below + misses / 2)).sum(axis=-1)
    pairs = hits.sum(axis=-1) * misses.sum(axis=-1)
    return np.where(pairs > 0, divide(won, pairs), 0.5)[()]
