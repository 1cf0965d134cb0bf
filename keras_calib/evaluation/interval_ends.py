"""Ends of bootstrap intervals, by what resampling adds to a statistic.

- Means and their like: nothing. Their interval goes from percentile to
  percentile of the resamples; see `rare_errors` for means of few errors.
- Errors of bins: their upward bias once more. Their interval is that of a grid
  bootstrap, or the basic one, which is reflected about the value and so removes
  both where they are alike.
- Debiased errors have little of this bias, but their resamples have it: they
  take the noise of resampling off, and not that of the samples. Their
  percentiles are moved by what the mean of the resamples is above the value
  ("centered"), with norm 2 in squares, in which noise adds. Those of norm 2 are
  meant to be the error that they debias, whose interval on the grid they have
  by default.
- The slope of a recalibration is steeper in a sample than it should be, and in
  a resample once more. Its interval has half the width between percentiles on
  both sides of the value.
- What a temperature takes off a loss is about a square of its logarithm, which
  no resample has near 0. Where resamples leave open whether the temperature
  should be above or below 1, the interval is that of the root with the sign of
  the logarithm, squared again.
"""

import numpy as np

from keras_calib.evaluation.grid_bootstrap import ends_of_scaled
from keras_calib.evaluation.named_errors import MEANS
from keras_calib.evaluation.named_errors import NO_FLOOR
from keras_calib.evaluation.named_errors import SELECTIVE

# The power of a debiased error in which noise adds.
DEBIASED = {
    "debiased_calibration_error": 2,
    "debiased_calibration_error_l1": 1,
    "debiased_marginal_calibration_error": 2,
}
SYMMETRIC = {"calibration_slope"}
# By which an error differs from the same one of drawn labels.
ROUNDING = 1e-12
TAKEN_OFF = {"calibration_loss", "brier_calibration_loss"}
# All other errors have a corner at 0.
UNBIASED = {*NO_FLOOR, *MEANS, *SELECTIVE}
# The bias of errors without bins is small beside their spread: in simulations
# their percentiles hold the true value more often than the basic interval does.
PERCENTILE = {*UNBIASED, "ks_calibration_error", "kernel_calibration_error"}


def interval_ends(name, values, level, *, basic):
    """Ends of the interval of a statistic, not clipped to its range.

    Args:
        name: of the statistic.
        values: of the sample and then of resamples, `(1 + num_resamples,)`;
            those of `ScaledErrors` have more columns, see `ends_of_scaled`, and
            those of `TAKEN_OFF` have the log of the factor of the logits
            beside them, `(1 + num_resamples, 2)`.
        level: nominal coverage.
        basic: whether biased errors have the basic interval, debiased ones the
            centered one, slopes the symmetric one and `TAKEN_OFF` that of
            roots; else percentiles.

    Returns:
        low, high: floats.
    """
    if name in TAKEN_OFF:
        return _ends_of_square(values, level, of_root=basic)
    if values.ndim == 2:
        return ends_of_scaled(values, level)
    value, drawn = values[0], values[1:]
    low, high = _percentiles(drawn, level)
    if not basic or not np.isfinite(value):
        return float(low), float(high)
    if name in SYMMETRIC:
        half = (high - low) / 2
        if np.isfinite(half):
            low, high = value - half, value + half
        return float(low), float(high)
    if name not in DEBIASED:
        return float(2 * value - high), float(2 * value - low)
    power = DEBIASED[name]
    added = np.mean(drawn**power) - value**power
    ends = np.array([low, high]) ** power - added
    if power == 2:
        ends = np.sqrt(np.maximum(ends, 0.0))
    return tuple(map(float, ends))


def _percentiles(drawn, level):
    tail = (1 - level) / 2
    # Interpolation between infinities is not a number.
    method = "nearest" if np.isinf(drawn).any() else "linear"
    return np.quantile(drawn, [tail, 1 - tail], method=method)


def _ends_of_square(values, level, *, of_root):
    """Ends of the interval of one of `TAKEN_OFF`."""
    value, (drawn, log_factor) = values[0, 0], values[1:].T
    low, high = _percentiles(drawn, level)
    if of_root:
        below, above = _percentiles(log_factor, level)
        if below <= 0 <= above:
            # Order is what counts: no root has to be taken.
            ends = _percentiles(np.sign(log_factor) * drawn, level)
            low, high = min(low, 0.0), np.abs(ends).max()
        # The value is out of fold and may be below 0.
        low, high = np.fmin(low, value), np.fmax(high, value)
    return float(low), float(high)


def from_zero(ends, value, floors, name):
    """Ends of an interval, from 0 or less if chance explains the value."""
    # Without enough draws the end of the range is not known.
    high = floors.get(f"{name}_floor_high", -np.inf)
    explained = value <= high + ROUNDING
    return (min(ends[0], 0.0), ends[1]) if explained else ends
