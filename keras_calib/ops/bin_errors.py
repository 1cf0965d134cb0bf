"""Calibration errors from sums per bin, for tensors and for NumPy arrays.

C_m  mean confidence of bin m        n_m  weight of bin m
A_m  accuracy of bin m               n    weight of all bins
"""

import math

import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs.tensors import running_sum

INFINITY = float("inf")


class Bins:
    """Sums over the samples of each bin, each of shape `(..., num_bins)`.

    `w` is the weight of a sample, `c` its confidence, and `a` is 1 where the
    prediction is correct, else 0.

    Args:
        weight: `sum w`.
        residual: `sum w (c - a)`.
        hits: `sum w a`, where an error needs it.
        square: `sum w^2`, where an error needs it.
        xp: `keras.ops` for tensors, `numpy` for arrays.
    """

    def __init__(self, weight, residual, hits=None, square=None, xp=ops):
        self.weight = weight
        self.residual = residual
        self.hits = hits
        self.square = square
        self.xp = xp

    @property
    def total(self):
        """`n`."""
        return self.xp.sum(self.weight, axis=-1)

    @property
    def accuracy(self):
        """`A_m`; 0 in an empty bin."""
        return divide(self.hits, self.weight, self.xp)

    @property
    def gap(self):
        """`C_m - A_m`; 0 in an empty bin."""
        return divide(self.residual, self.weight, self.xp)

    @property
    def confidence(self):
        """`C_m`; 0 in an empty bin."""
        return divide(self.hits + self.residual, self.weight, self.xp)

    @property
    def samples(self):
        """How many samples of equal weight each bin stands for."""
        # The square of a large sum may overflow.
        return self.weight * divide(self.weight, self.square, self.xp)

    @property
    def variance(self):
        """`A_m (1 - A_m)`, not below 0."""
        accuracy = self.accuracy
        return self.xp.maximum(accuracy * (1 - accuracy), 0.0)

    @property
    def residual_up_to(self):
        """`residual` of each bin and of all bins before it."""
        return running_sum(self.residual, self.xp)

    def mean(self, values):
        """`sum_m n_m / n values_m`."""
        total = self.xp.sum(self.weight * values, axis=-1)
        return divide(total, self.total, self.xp)


def divide(a, b, xp=np):
    """`a / b`, and 0 where `b` is 0."""
    if xp is ops:
        return ops.divide_no_nan(a, b)
    a, b = np.broadcast_arrays(a, b)
    return np.divide(a, b, out=np.zeros(a.shape), where=b != 0)


def calibration_error(bins: Bins, norm: float = 1) -> Tensor:
    """`(sum_m n_m / n |C_m - A_m|^p)^(1/p)`, in `[0, 1]`, `(...)`.

    Norm 1 is the ECE of Guo et al. (2017), equation 3, `inf` the MCE, equation
    5; norm 2 is in Kumar et al. (2019), Definition 2.1.
    An empty bin adds 0, and the error of no sample is 0.

    Args:
        bins: `Bins` with weight and residual.
        norm: 1, 2 or `inf`; the power `p`.
    """
    xp = bins.xp
    residual = xp.abs(bins.residual)  # n_m |C_m - A_m|
    if norm == 1:
        return divide(xp.sum(residual, axis=-1), bins.total, xp)
    gap = divide(residual, bins.weight, xp)
    if norm == INFINITY:
        return xp.max(gap, axis=-1)
    return xp.sqrt(divide(xp.sum(residual * gap, axis=-1), bins.total, xp))


def signed_error(bins, sign=1, confidence_weighted=False):
    """Overconfidence: `sum_m n_m / n max(0, C_m - A_m)`.

    With `sign=-1` it is the underconfidence, of `A_m - C_m`. With
    `confidence_weighted`, each term is multiplied by `C_m`.
    """
    xp = bins.xp
    part = xp.maximum(sign * bins.residual, 0.0)
    if confidence_weighted:
        part = part * bins.confidence
    return divide(xp.sum(part, axis=-1), bins.total, xp)


def debiased_power(bins, norm=2):
    """`calibration_error^norm` minus what noisy accuracies add.

    It may be negative.

        norm 2: D = sum_m n_m / n [(C_m - A_m)^2 - A_m (1 - A_m) / (n_m - 1)]
        norm 1: 2 ECE - E[ECE] with accuracies from N(A_m, A_m (1 - A_m) / n_m)

    In the noise terms `n_m` is `samples`: `A_m (1 - A_m) / (n_m - 1)` is the
    unbiased variance of `A_m` also with weights, where two samples are less
    than 2. With norm 2, bins of one sample add 0.
    """
    xp, gap, samples = bins.xp, bins.gap, bins.samples
    if norm == 2:
        used = samples > 1 + 1e-5
        noise = bins.variance / xp.where(used, samples - 1, 1.0)
        # Not a plain 0: NaN must stay NaN.
        return bins.mean(xp.where(used, gap**2 - noise, 0.0 * gap * samples))
    deviation = xp.sqrt(divide(bins.variance, samples, xp))
    folded = folded_normal_mean(gap, deviation, xp)
    return bins.mean(2 * xp.abs(gap) - folded)


def folded_normal_mean(mean, deviation, xp):
    """`E |X|` of a normal `X`."""
    t = divide(mean, deviation, xp)
    density = xp.exp(-0.5 * t**2) / math.sqrt(2 * math.pi)
    erf_t = erf(t / math.sqrt(2), xp)
    value = 2 * deviation * density + mean * erf_t
    return xp.where(deviation > 0, value, xp.abs(mean))


def erf(x, xp=np):
    """The error function; NumPy has none, and SciPy is not required."""
    if xp is ops:
        return ops.erf(x)
    return np.vectorize(math.erf, otypes=["float64"])(x)


def ks_error(bins):
    """`max_m |1/n sum w (c - a)|` over the samples of the bins up to `m`."""
    xp = bins.xp
    largest = xp.max(xp.abs(bins.residual_up_to), axis=-1)
    return divide(largest, bins.total, xp)


def accuracy_falls(bins, rounding=0.0):
    """Whether a bin's accuracy is below that of an earlier bin, `(...)`.

    Args:
        bins: `Bins` with weight and hits; empty ones are skipped.
        rounding: how much an accuracy may fall by rounding alone.
    """
    xp, accuracy = bins.xp, bins.accuracy
    falls = accuracy < highest_before(accuracy, xp) - rounding
    return xp.any(xp.logical_and(falls, bins.weight > 0), axis=-1)


def highest_before(values, xp):
    """Largest of the values, at least 0, before each one on the last axis."""
    first, width = xp.zeros_like(values[..., :1]), values.shape[-1]
    values = xp.concatenate([first, values[..., :-1]], axis=-1)
    if xp is np:
        return np.maximum.accumulate(values, axis=-1)
    step, before = 1, [[0, 0]] * (len(values.shape) - 1)
    while step < width:
        shifted = ops.pad(values, [*before, [step, 0]])[..., :width]
        values = ops.maximum(values, shifted)
        step *= 2
    return values
