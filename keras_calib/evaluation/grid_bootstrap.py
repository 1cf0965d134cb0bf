"""Grid bootstrap: intervals of errors that are biased upwards.

An error sums up the gaps of bins, without their signs. Noise adds to it, the
more the smaller the gaps are, so that no shift of its resamples is right for
all of them. Here the gaps of the sample are multiplied by a scale, and the
noise of a resample is added:

    s G_b + (G*_b - G_b)

`G_b = S_b / W` is the residual of a bin over all weights, `G*_b` that of a
resample, which is the resample itself for `s = 1`. For each scale this is a
distribution of the error of samples whose true error is `s` times the value
that was found. The interval has all true errors for which the value is no
surprise.

Of errors of classes most bins may hold a handful of samples or none. Noise adds
least to gaps in proportion to it, as the `G_b` of such bins are, and most to
large gaps in few bins. Therefore their upper end is the one above, and their
lower end the least of three: of `G_b` as it is, and of gaps without their noise
(`SparseBins`) with that of resamples and with that of drawn labels.
"""

import functools

import numpy as np

from keras_calib.evaluation.named_errors import CLASSWISE
from keras_calib.evaluation.named_errors import FLOORS
from keras_calib.evaluation.named_errors import BinsOfEvents
from keras_calib.evaluation.named_errors import errors_of_events
from keras_calib.evaluation.smooth_scales import errors_at_scales
from keras_calib.evaluation.smooth_scales import spectrum_of_events
from keras_calib.evaluation.sparse_bins import SparseBins
from keras_calib.ops.bin_errors import Bins
from keras_calib.ops.bin_errors import calibration_error
from keras_calib.ops.bin_errors import divide

# A value that is small by chance is consistent with much larger gaps.
SCALES = np.array([
    0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3,
    1.6, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0,
])  # fmt: skip
# Of these, the one at which a sample is itself.
ITSELF = int(np.flatnonzero(SCALES == 1.0)[0])


# Errors that sum up gaps, of which they need weight and residual only. That of
# `smooth_scales` is a gap at every confidence.
GRID = {
    *FLOORS,
    "overconfidence_error",
    "underconfidence_error",
    *CLASSWISE,
    # At a scale they are the error that is debiased.
    "debiased_calibration_error",
    "smooth_calibration_error",
}


class Shares(Bins):
    """`Bins` whose sums are parts of all weights."""

    total = 1.0


class ScaledBins:
    """In place of `BinsOfEvents`: bins whose gaps are at each of `SCALES`.

    They are `Shares` with `s G_b` and noise, `(scales, ..., bins)`; with
    `sparse` there are three times as many scales, see `grid_ends`.

    Args:
        events: `Events` of the sample, or of resamples.
        sample: `BinsOfEvents` of the sample, whose cuts and gaps they have.
        sparse: `None`, or `SparseBins` of the sample by name, a dict that is
            filled.
    """

    def __init__(self, events, sample, sparse=None):
        self._events = events
        self._sample = sample
        self._sparse = sparse

    @functools.cached_property
    def width(self):
        return self._scaled("width")

    @functools.cached_property
    def mass(self):
        return self._scaled("mass")

    @functools.cached_property
    def above(self):
        return self._scaled("above")

    def debiased(self):
        """The error that is debiased: gaps without noise need no correction."""
        return calibration_error(self._scaled("split"), 2)

    @functools.cached_property
    def smooth(self):
        own = spectrum_of_events(self._sample.events)
        noise = spectrum_of_events(self._events) - own
        return errors_at_scales(noise, own, SCALES, float(self._sample.smooth))

    def _scaled(self, name):
        bins = getattr(self._sample, name)
        # Of all events, not of those above the threshold.
        cuts = len(self._events) - len(bins.events) + bins.cuts
        own, mass = _share(bins, bins.residual), _share(bins, bins.weight)
        drawn = self._events.bins(cuts)
        share = _share(drawn, drawn.residual)
        scales = SCALES.reshape(-1, *[1] * share.ndim)
        # The mass of the sample: the variance of a sum of residuals is in
        # proportion to it, and not to what a resample happens to have drawn.
        scaled = share - (1 - scales) * own
        if self._sparse is not None:
            if name not in self._sparse:
                self._sparse[name] = SparseBins(bins)
            sparse = self._sparse[name]
            # Of the sample there is no noise.
            labels = np.zeros(share.shape)
            if share.ndim > 1:
                labels = sparse.label_noise(share - own)
            gaps = scales * sparse.gaps
            scaled = np.concatenate([scaled, share - own + gaps, labels + gaps])
        return Shares(mass, scaled, xp=np)


class ScaledErrors:
    """Errors of resamples, and of gaps at each of `SCALES` with their noise.

    The first call is of the sample itself, whose bins and gaps are kept.

    Args:
        table: of the errors, such as `TOP_LABEL`.
        wanted: names of errors.
        bins: pair of `num_bins` and `threshold`.
    """

    def __init__(self, table, wanted, bins):
        self._table = table
        self._wanted = wanted
        self._bins = bins
        self._sample = None
        self._sparse = {} if table is CLASSWISE else None

    def __call__(self, events):
        """The errors; those of `GRID` with the scales behind, `(..., s)`."""
        found = errors_of_events(events, self._table, self._wanted, *self._bins)
        if self._sample is None:
            self._sample = BinsOfEvents(events, *self._bins)
        scaled = ScaledBins(events, self._sample, self._sparse)
        for name in found.keys() & GRID:
            errors = np.moveaxis(self._table[name](scaled), 0, -1)
            value = np.asarray(found[name])[..., None]
            found[name] = np.concatenate([value, errors], axis=-1)
        return found


def _share(bins, sums):
    """Sums of bins over the weight in all of them: `S_b / W` or `W_b / W`."""
    weight = np.asarray(bins.weight, "float64")
    return divide(sums, weight.sum(axis=-1, keepdims=True))


def grid_ends(value, scaled, level):
    """Ends of the interval of an error.

    The lower end is the least true error for which as much as the value is not
    rare. At the upper end, as little as the value is rare beside how rare it is
    for a true error of 0: a value that is small by luck has no short interval.

    Args:
        value: of the sample, float.
        scaled: errors at each of `SCALES`, `(num_resamples, scales)`.
        level: nominal coverage.

    Returns:
        low, high: floats, not clipped to the range of the error.

    Reference:
        Hansen, "The Grid Bootstrap and the Autoregressive Model", Review of
        Economics and Statistics, 1999, Section III. For the upper end: Read,
        "Presentation of Search Results: the CL_s Technique", Journal of Physics
        G, 2002.
    """
    tail = (1 - level) / 2
    low = _lower_end(value, value, scaled, tail)
    as_small = (1 + np.sum(scaled[:, 0] <= value)) / (1 + len(scaled))
    least = np.maximum.accumulate(np.quantile(scaled, tail * as_small, axis=0))
    if value <= least[0]:  # less than any resample
        return low, float(value)
    return low, float(value * np.interp(value, least, SCALES))


def ends_of_scaled(values, level):
    """Ends of the interval of an error, see `grid_ends`.

    Args:
        values: of `ScaledErrors`, `(1 + num_resamples, 1 + scales)`. If there
            are three times as many scales, the lower end is the least of three.
        level: nominal coverage.
    """
    own, *others = np.split(values[:, 1:], values.shape[1] // len(SCALES), 1)
    # Of the sample there is no noise: its error, also of a debiased one.
    value = own[0, ITSELF]
    low, high = grid_ends(value, own[1:], level)
    for other in others:
        error, tail = other[0, ITSELF], (1 - level) / 2
        low = min(low, _lower_end(value, error, other[1:], tail))
    return low, high


def _lower_end(value, error, scaled, tail):
    """The least true error for which as much as the value is not rare.

    Args:
        value: of the sample, float.
        error: that of the gaps that are scaled, float.
        scaled: errors at each of `SCALES`, `(num_resamples, scales)`.
        tail: how rare is rare.
    """
    # As the true error grows, so do the errors of samples, but for chance.
    most = np.maximum.accumulate(np.quantile(scaled, 1 - tail, axis=0))
    if value <= most[0]:
        return 0.0
    return float(error * np.interp(value, most, SCALES))
