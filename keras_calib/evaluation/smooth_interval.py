"""The smooth error with its bootstrap interval, quickly."""

import dataclasses

import numpy as np

from keras_calib.evaluation.binless import smooth_error
from keras_calib.evaluation.calibrated_draws import CalibratedDraws
from keras_calib.evaluation.calibrated_draws import CellDraws
from keras_calib.evaluation.calibration_errors import Estimate
from keras_calib.evaluation.cell_resamples import CellResamples
from keras_calib.evaluation.grid_bootstrap import grid_ends
from keras_calib.evaluation.replicates import Resamples
from keras_calib.inputs.predictions import numbered_units

NUM_RESAMPLES, NUM_DRAWS = 200, 100
# More rows than these are resampled in cells.
LARGE = 20_000
# Of weighted or dependent rows, which no cells replace, there is no interval.
TOO_LARGE = 200_000
NAME = "smooth_calibration_error"


def smooth_error_with_interval(data, events, k=None, seed=0):
    """Smooth ECE, with a grid bootstrap interval (95 %) of 200 resamples.

    The error is biased upwards, the more the smaller it is: see
    `grid_bootstrap`. The interval begins at 0 if the value is within the range
    that 95 % of sets of labels drawn from the predictions have, of independent
    rows.

    Args:
        data: `Predictions`.
        events: `Events` of the same rows.
        k: int, the class whose probability is meant, or `None` for the
            predicted class of each row.
        seed: int.

    Returns:
        `Estimate`; its ends are NaN if there are too many rows, or one sample,
        image or text.
    """
    value = float(smooth_error(events))
    if data.unit is not None:
        # Rows that do not count are no units, and a row may be alone in its.
        unit, units = numbered_units(data.unit)
        data = dataclasses.replace(data, unit=unit, units=units)
    if data.units == 1:  # every resample is the sample
        return Estimate(value, np.nan, np.nan)
    number, kind = NUM_RESAMPLES, Resamples
    if len(events) > LARGE and data.weights is None and data.unit is None:
        kind = CellResamples
    elif len(events) > TOO_LARGE:
        return Estimate(value, np.nan, np.nan)
    draws = kind(data, number, seed, 1, 0, scales=True)
    drawn = draws.errors_of_class([NAME], (1, 0.0), k)[NAME]
    own = drawn[0, 0]  # of cells, if they are drawn
    ends = np.array(grid_ends(own, drawn[1:, 1:], 0.95))
    low, high = np.clip(np.where(ends > 0, ends + value - own, 0.0), 0.0, 1.0)
    if low > 0 and data.unit is None:
        kind = CellDraws if kind is CellResamples and k is None else None
        draws = (kind or CalibratedDraws)(data, NUM_DRAWS, seed, 1, 0)
        drawn = draws.errors_of_class([NAME], (1, 0.0), k)[NAME]
        low = 0.0 if value <= np.quantile(drawn[1:], 0.975) else low
    return Estimate(value, float(low), float(high))
