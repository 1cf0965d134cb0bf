"""Label-binned error: each confidence against the accuracy of its bin."""

import numpy as np

from keras_calib.ops.bin_errors import divide


def label_binned_error(bins, norm=1):
    """`(1/n sum_i |A_bin(i) - c_i|^p)^(1/p)`."""
    events, accuracy = bins.events, bins.accuracy
    sizes = np.broadcast_to(np.diff(bins.cuts), accuracy.shape)
    rows = zip(np.atleast_2d(accuracy), np.atleast_2d(sizes), strict=True)
    own = np.stack([np.repeat(row, size) for row, size in rows])
    own = own.reshape((*accuracy.shape[:-1], len(events)))
    distance = np.abs(own - events.confidence64) ** norm
    mean = divide(events.weigh(distance).sum(axis=-1), events.total)
    return mean ** (1 / norm)
