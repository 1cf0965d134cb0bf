"""Calibration error over as many bins as keep the accuracy monotone."""

import numpy as np

from keras_calib.ops.bin_errors import accuracy_falls
from keras_calib.ops.bin_errors import calibration_error

MOST_BINS = 1000


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
