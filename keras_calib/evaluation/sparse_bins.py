"""Bins of few samples: their gaps without noise, and the noise of labels.

A resample of a bin with a handful of samples is a multiple of its own residual,
so it has too little noise, and a gap that is mostly noise is no sample of the
true gaps. Where many bins are like this, as those of many classes are, both are
estimated, from these sums over the samples of a bin:

    S_b = sum w (c - a)          V_b = sum w^2 c (1 - c)
    R_b = sum w^2 (c - a)^2      t_b = sum w^2 / sum w

    noise       U_b = V_b (R_b + m t_b^2 R / V) / (V_b + m t_b^2)
    gap         S_b sqrt(max(0, 1 - U_b / S_b^2))
    accuracy    C_b - (C_b - A_b) V_b / (V_b + m t_b^2)

The ratio of `R` and `V`, the sums over all bins, is above 1 if the model is
overconfident, and `V_b / t_b^2` is the number of labels that are expected to be
a surprise. `m` is the number of these that make up for what is not known.
"""

import functools
import zlib

import numpy as np

from keras_calib.evaluation.events import between
from keras_calib.evaluation.events import running
from keras_calib.evaluation.floor import residual_variances
from keras_calib.inputs.arguments import generator
from keras_calib.ops.bin_errors import divide

# `m`, in labels that are a surprise.
PRIOR = 3.0


class SparseBins:
    """Gaps and noise of the bins of a sample, as parts of its weight.

    Args:
        bins: `SortedBins`.
    """

    def __init__(self, bins):
        self._bins = bins
        self._square = divide(bins.square, bins.weight) ** 2  # t_b^2
        self._variance = residual_variances(bins)
        # Of the data, because each class needs labels of its own.
        seed = zlib.crc32(bins.events.confidence.tobytes())
        self._rng = generator(seed)
        # Of the squared noise of resamples, and how many they were.
        self._sum = self._number = 0.0

    @functools.cached_property
    def gaps(self):
        """`S_b / W` with the noise taken off, `(num_bins,)`."""
        own = self._bins.residual
        part = 1 - divide(self._noise(), own**2)
        return divide(own * np.sqrt(np.maximum(part, 0.0)), self._bins.total)

    def label_noise(self, noise):
        """Residuals of drawn labels, without gaps, `(..., num_bins)`.

        Where rows depend on each other, resamples have more noise than `R_b`,
        and a bin has as many fewer labels.

        Args:
            noise: that of resamples, `G*_b - G_b`, `(..., num_bins)`.
        """
        bins = self._bins
        self._sum += float(np.sum(noise**2)) * bins.total**2
        self._number += noise.size // max(len(self._square), 1)
        ratio = divide(self._sum, self._number * self._squares.sum())
        ratio = np.maximum(ratio, 1.0)
        prior = PRIOR * self._square * ratio
        known = divide(self._variance, self._variance + prior)
        accuracy = np.clip(bins.confidence - bins.gap * known, 0.0, 1.0)
        number = np.maximum(np.rint(bins.samples / ratio).astype(int), 1)
        hits = self._rng.binomial(number, accuracy, noise.shape)
        return divide(bins.weight * (accuracy - hits / number), bins.total)

    @functools.cached_property
    def _squares(self):
        """`R_b`."""
        events = self._bins.events
        squares = running(events.weigh(events.residuals) ** 2)
        return np.maximum(between(squares, self._bins.cuts), 0.0)

    def _noise(self):
        """`U_b`."""
        squares = self._squares
        ratio = divide(squares.sum(), self._variance.sum())
        prior = PRIOR * self._square
        noise = self._variance * (squares + ratio * prior)
        return divide(noise, self._variance + prior)
