"""Binned errors that need more than the sums per bin."""

import numpy as np

from keras_calib.ops.bin_errors import accuracy_falls
from keras_calib.ops.bin_errors import calibration_error
from keras_calib.ops.bin_errors import divide

MOST_BINS = 1000


def label_binned_error(bins, norm=1):
    """`(1/n sum_i |A_bin(i) - c_i|^p)^(1/p)`."""
    events, accuracy = bins.events, bins.accuracy
    sizes = np.broadcast_to(np.diff(bins.cuts), accuracy.shape)
    rows = zip(np.atleast_2d(accuracy), np.atleast_2d(sizes), strict=True)
    own = np.stack([np.repeat(row, size) for row, size in rows])
    own = own.reshape((*accuracy.shape[:-1], len(events)))
    distance = np.abs(own - events.values) ** norm
    mean = divide(events.weigh(distance).sum(axis=-1), events.total)
    return mean ** (1 / norm)


def sweep(events, norm=2):
    """Error at the largest number of bins that keeps accuracy monotone.

    Bins of equal mass are added one by one, while the accuracy does not fall
    from one bin to the next; empty bins are skipped. There are at most 1000
    bins, and fewer than samples, because the accuracy of a model without errors
    never falls.

    Args:
        events: `Events`.
        norm: 1 or 2.

    Returns:
        The error and the number of bins, each of shape `(...)`.
    """
    whole = events.bins(np.array([0, len(events)]))
    error = np.asarray(calibration_error(whole, norm))
    number = np.ones(error.shape, int)
    going = np.ones(error.shape, bool)
    # Samples of equal weight.
    samples = whole.samples[..., 0]
    most = int(np.ceil(samples.max(initial=0)))
    # Sums of counts are exact, but sums of weights are rounded.
    rounding = 0.0 if events.square is None else 1e-9
    for b in range(2, min(most, MOST_BINS) + 1):
        going = going & (b < samples - 1e-9)
        bins = events.bins(events.mass_cuts(b))
        going = going & ~accuracy_falls(bins, rounding)
        if not going.any():
            break
        error = np.where(going, calibration_error(bins, norm), error)
        number = np.where(going, b, number)
    return error[()], number[()]
