"""Kernel and smooth error, risk-coverage curve and AUROC of sorted samples."""

import numpy as np

from keras_calib.evaluation.events import between
from keras_calib.evaluation.events import running
from keras_calib.ops.bin_errors import divide
from keras_calib.ops.smooth_error import smooth_error as error_of_nodes

NODES = 8192
REPLICATE_NODES = 1024


def kernel_error(events, width=0.4):
    """MMCE with the kernel `exp(-|c - c'| / width)`, in `n log n`.

        MMCE^2 = 1/n^2 sum_ij r_i r_j exp(-|c_i - c_j| / width), r = c - a

    In sorted order the kernel is the quotient of a function of `c_i` and one of
    `c_j`, so the sum over pairs is a running sum.

    Args:
        events: `Events`.
        width: float, width of the kernel.
    """
    r = events.weigh(events.residuals)
    below = running(r * np.exp(events.confidence64 / width))[..., :-1]
    pairs = 2 * (r * np.exp(-events.confidence64 / width) * below).sum(axis=-1)
    total = np.asarray(events.total, "float64")
    square = divide(pairs + (r**2).sum(axis=-1), total**2)
    return np.sqrt(np.maximum(square, 0.0))[()]


def smooth_error(events, bandwidth=None):
    """Smooth ECE; see `ops.smooth_error`.

    Args:
        events: `Events`.
        bandwidth: float, the standard deviation of the kernel, or `None` for
            the one that equals the error.
    """
    nodes = residual_nodes(events)
    # The integral of replicates has fewer points, which is several times
    # faster and changes the values by less than 1e-5.
    points = REPLICATE_NODES if nodes.ndim > 1 else NODES
    return error_of_nodes(nodes, bandwidth, points, steps=30, xp=np)[()]


def residual_nodes(events):
    """`1/n sum (c - a)` of the events at evenly spaced nodes from 0 to 1."""
    place = events.confidence64 * NODES
    cell = np.minimum(place.astype("int32"), NODES - 1)
    cuts = np.searchsorted(cell, np.arange(NODES + 1))
    residual = between(events.residuals_below, cuts)
    # Each residual is split between the nodes on both sides of it.
    upper = running(events.weigh(events.residuals * (place - cell)))
    upper = between(upper, cuts)
    nodes = np.zeros((*residual.shape[:-1], NODES + 1))
    nodes[..., :-1] = residual - upper
    nodes[..., 1:] += upper
    return divide(nodes, np.asarray(events.total)[..., None])


def harmonic(x):
    """`1 + 1/2 + ... + 1/x`, interpolated smoothly between integers."""
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

        AURC = 1/n sum_k (errors among the k most confident samples) / k
        E-AURC = AURC - AURC with all errors among the least confident

    Equal confidences get their mean error, which is the expectation over their
    orders. Such a run of n samples, after K of which W were errors, with the
    error rate e, adds

        sum_(k=K+1..K+n) (W + e (k - K)) / k = e n + (W - e K) (H(K+n) - H(K))

    with the numbers H of `harmonic`, which take weights, too.

    Returns:
        AURC and E-AURC, each of shape `(...)`.
    """
    bins = events.tie_bins
    weight = bins.weight[..., ::-1]
    errors = weight - bins.hits[..., ::-1]
    kept, wrong = running(weight), running(errors)
    error_rate = divide(errors, weight)
    rise = np.diff(harmonic(kept), axis=-1)
    start = wrong[..., :-1] - error_rate * kept[..., :-1]
    total = kept[..., -1]
    area = divide((errors + start * rise).sum(axis=-1), total)
    right = total - wrong[..., -1]
    best = wrong[..., -1] - right * (harmonic(total) - harmonic(right))
    return area[()], (area - divide(best, total))[()]


def auroc(events):
    """AUROC: P(c of a hit > c of a miss) + P(equal) / 2.

    The value is 0.5 without hits or without misses.
    """
    bins = events.tie_bins
    hits, misses = bins.hits, bins.weight - bins.hits
    below = running(misses)[..., :-1]
    won = (hits * (below + misses / 2)).sum(axis=-1)
    pairs = hits.sum(axis=-1) * misses.sum(axis=-1)
    return np.where(pairs > 0, divide(won, pairs), 0.5)[()]
