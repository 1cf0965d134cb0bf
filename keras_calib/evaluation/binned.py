"""Errors that are read from bins of confidence."""

import math

import numpy as np

from keras_calib.evaluation.events import divide

MOST_BINS = 1000


def binned_error(bins, norm=1, total=None):
    """`(sum_m n_m / n |C_m - A_m|^p)^(1/p)`; 0 where nothing was counted.

    Args:
        bins: `Bins`.
        norm: 1, 2 or `inf`.
        total: `n`, by default the weight in the bins.
    """
    total = bins.total if total is None else total
    size = np.abs(bins.residual)
    if norm == 1:
        # n_m cancels against the means.
        return divide(size.sum(axis=-1), total)
    gap = divide(size, bins.weight)
    if norm == float("inf"):
        return gap.max(axis=-1, initial=0.0)
    return np.sqrt(divide((size * gap).sum(axis=-1), total))


def label_binned_error(events, cuts, norm=1):
    """`(1/n sum_i |A_bin(i) - c_i|^p)^(1/p)`."""
    accuracy = events.bins(cuts).accuracy
    last = np.broadcast_to(cuts[..., 1:], accuracy.shape)
    index = np.arange(len(events))
    own = np.stack(
        [
            row[np.searchsorted(ends, index, side="right")]
            for row, ends in zip(
                np.atleast_2d(accuracy), np.atleast_2d(last), strict=True
            )
        ]
    ).reshape((*accuracy.shape[:-1], len(events)))
    distance = np.abs(own - events.values) ** norm
    mean = divide(events.weigh(distance).sum(axis=-1), events.total)
    return mean ** (1 / norm)


def debiased_square(bins):
    """`sum_m n_m / n [(C_m - A_m)^2 - A_m (1 - A_m) / (n_m - 1)]`, signed.

    Bins that stand for less than two samples are left out.
    """
    samples = divide(bins.weight**2, bins.square)
    used = samples >= 2 - 1e-9
    accuracy = bins.accuracy
    bias = divide(accuracy * (1 - accuracy), np.where(used, samples - 1, 0))
    terms = np.where(used, bins.weight * (bins.gap**2 - bias), 0.0)
    return divide(terms.sum(axis=-1), bins.total)


def debiased_error(bins):
    """`sqrt(max(0, D))` with `D` of `debiased_square`."""
    return np.sqrt(np.maximum(debiased_square(bins), 0.0))


def debiased_absolute_error(bins):
    """`2 ECE - E[ECE]`, accuracies redrawn as `N(A_m, A_m (1 - A_m) / n_m)`.

    The expectation of a folded normal has a closed form, so that nothing is
    drawn. Signed: it may be negative.
    """
    samples = divide(bins.weight**2, bins.square)
    accuracy = bins.accuracy
    deviation = np.sqrt(np.maximum(accuracy * (1 - accuracy), 0.0))
    deviation = divide(deviation, np.sqrt(samples))
    folded = folded_normal_mean(-bins.gap, deviation)
    terms = bins.weight * (2 * np.abs(bins.gap) - folded)
    return divide(terms.sum(axis=-1), bins.total)


def folded_normal_mean(mean, deviation):
    """`E |X|` of a normal `X`."""
    t = divide(mean, deviation)
    density = np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi)
    value = 2 * deviation * density + mean * erf(t / np.sqrt(2))
    return np.where(deviation > 0, value, np.abs(mean))


def erf(x):
    """The error function; NumPy has none, and SciPy is not required."""
    flat = [math.erf(value) for value in np.ravel(x)]
    return np.reshape(np.array(flat, dtype="float64"), np.shape(x))


def over_and_under(bins):
    """The parts of ECE where confidence is too high, and too low."""
    total = bins.total
    over = divide(np.maximum(bins.residual, 0.0).sum(axis=-1), total)
    under = divide(np.maximum(-bins.residual, 0.0).sum(axis=-1), total)
    return over, under


def confidence_weighted(bins, sign=1):
    """`sum_m n_m / n C_m max(C_m - A_m, 0)`; the other part for `sign=-1`."""
    part = np.maximum(sign * bins.residual, 0.0) * bins.confidence
    return divide(part.sum(axis=-1), bins.total)


def sweep(events, norm=2, binning="mass", ties=True):
    """Error at the largest number of bins that keeps accuracy monotone.

    Bins are added one by one, as long as accuracy does not fall from one bin
    to the next; empty bins are skipped. A model without errors would go on for
    ever: the sweep ends at 1000 bins, or one below the number of samples.

    Args:
        events: `Events`.
        norm: 1 or 2.
        binning: `"mass"`; or `"width"`, left-closed as in the authors' code.
        ties: keep equal confidences in one bin.

    Returns:
        The error and the number of bins, each of shape `(...)`.
    """
    error = np.asarray(binned_error(events.bins(_ends(events)), norm))
    number = np.ones(error.shape, int)
    going = np.ones(error.shape, bool)
    # At most one bin less than there are samples, however they are weighted.
    squares = events.squares_below[..., -1]
    samples = divide(np.asarray(events.total, "float64") ** 2, squares)
    most = int(np.ceil(samples.max(initial=0)))
    for b in range(2, min(most, MOST_BINS) + 1):
        going = going & (b < samples - 1e-9)
        if binning == "mass":
            cuts = events.mass_cuts(b, ties=ties)
        else:
            cell = np.minimum(b - 1, np.floor(events.values * b))
            cuts = np.searchsorted(cell, np.arange(1, b))
            cuts = np.concatenate([[0], cuts, [len(events)]])
        bins = events.bins(cuts)
        going = going & _never_falls(bins)
        if not going.any():
            break
        error = np.where(going, binned_error(bins, norm), error)
        number = np.where(going, b, number)
    return error[()], number[()]


def _ends(events):
    return np.array([0, len(events)])


def _never_falls(bins):
    accuracy = np.where(bins.weight > 0, bins.accuracy, -np.inf)
    highest = np.maximum.accumulate(accuracy, axis=-1)[..., :-1]
    # Sums of counts are exact, those of weights are rounded.
    rounding = 0.0 if bins.events.square is None else 1e-9
    below = accuracy[..., 1:] < highest - rounding
    return ~(below & (bins.weight[..., 1:] > 0)).any(axis=-1)
