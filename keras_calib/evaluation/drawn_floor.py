"""Noise floors by drawn labels, of errors that have no closed form.

The labels decide the bins or the bandwidth of these errors, or the errors of
the classes depend on each other. So labels are drawn from the predictions, and
the whole error is computed for each set of labels.

For errors of the predicted class, above `LARGE` rows without weights, samples
are replaced by `CELLS` cells of equal numbers, and the hits of a cell are
`Binomial(n_j, C_j)`: the same number of samples, in less time. A part of the
samples would have another floor.
"""

import functools
import time

import numpy as np

from keras_calib.evaluation.calibrated_draws import CELLS
from keras_calib.evaluation.calibrated_draws import CalibratedDraws
from keras_calib.evaluation.calibrated_draws import CellDraws
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.floor import LEVEL
from keras_calib.evaluation.floor import Floor
from keras_calib.evaluation.floor import binned_floor
from keras_calib.evaluation.named_errors import CLASSWISE
from keras_calib.evaluation.named_errors import FLOORS
from keras_calib.evaluation.named_errors import NO_FLOOR
from keras_calib.evaluation.named_errors import TOP_LABEL
from keras_calib.evaluation.named_errors import BinsOfEvents
from keras_calib.evaluation.named_errors import confidence_and_correct

LARGE = 100_000
MOST_DRAWS = 1000
# Labels to draw if no time is given, a few seconds; and those that are drawn
# first otherwise, to see how long it takes.
ENOUGH = 30_000_000
FIRST = 1_000_000
# Means over classes, whose mean floor needs no draws: these are their bins.
EXACT_MEANS = {
    "classwise_calibration_error": "width",
    "classwise_adaptive_calibration_error": "mass",
}


def drawn_floors(
    data,
    wanted,
    bins,
    *,
    seed=0,
    max_seconds=None,
    max_draws=MOST_DRAWS,
    verbose=0,
    level=LEVEL,
):
    """Floors of the wanted errors that need drawn labels.

    Args:
        data: `Predictions`.
        wanted: keys of `calibration_errors`; those that `noise_floors` has,
            and those without a floor, are skipped.
        bins: pair of `num_bins` and `threshold`.
        seed: int.
        max_seconds: about how long this may take; or `None` for a number of
            draws that depends on the size of the data only.
        max_draws: int, the most sets of labels.
        verbose: see `calibration_errors`.
        level: share of the draws in the range.

    Returns:
        dict: `<name>_floor`, `<name>_floor_low`, `<name>_floor_high` and
        `<name>_floor_draws`, the number of drawn sets of labels. Both ends are
        NaN if there are fewer than 40. There is one at least, unless the mean
        has a formula.

    Reference:
        Broecker and Smith, "Increasing the Reliability of Reliability
        Diagrams", Weather and Forecasting, 2007, Section 3.
    """
    kinds = [
        [name for name in table if name in wanted and name not in NO_FLOOR]
        for table in (set(TOP_LABEL) - set(FLOORS), CLASSWISE)
    ]
    kinds = [sorted(names) for names in kinds if names]
    found = {}
    for number, names in enumerate(kinds):
        begin = time.monotonic()
        seconds = None
        if max_seconds is not None:
            seconds = max_seconds / (len(kinds) - number)
        exact = _exact_means(data, names, bins[0])
        taken = time.monotonic() - begin
        if seconds is not None:
            seconds -= taken
        if seconds is not None and len(exact) == len(names) and seconds < taken:
            # All means are exact, and less time is left than they took.
            values = dict.fromkeys(names, np.empty(0))
        else:
            values = _draw(data, names, bins, seed, seconds, max_draws, verbose)
        if max_seconds is not None:
            max_seconds -= time.monotonic() - begin
        for name in names:
            floor = Floor.from_draws(values[name], exact.get(name), level)
            found[f"{name}_floor"] = floor.mean
            found[f"{name}_floor_low"] = floor.low
            found[f"{name}_floor_high"] = floor.high
            found[f"{name}_floor_draws"] = len(values[name])
    return found


def _errors_of_draws(data, names, bins, kind, number, seed, verbose):
    """Errors of `number` sets of labels drawn from the predictions.

    Their means are the floors, `E error(labels drawn from the predictions)`.
    The labels are drawn by `kind`, `CalibratedDraws` or `CellDraws`.
    """
    passes = data.num_classes if names[0] in CLASSWISE else 1
    draws = kind(data, number, seed, passes, verbose)
    found = draws.statistics(names, *bins)
    # The first is the error of the sample itself.
    return {name: values[1:] for name, values in found.items()}


def _draw(data, names, bins, seed, seconds, max_draws, verbose):
    """`_errors_of_draws`, of as many sets of labels as there is time for."""
    large = len(data.labels) > LARGE and data.weights is None
    kind = CellDraws if large and names[0] in TOP_LABEL else CalibratedDraws
    draw = functools.partial(_errors_of_draws, data, names, bins, kind)
    labels = CELLS if kind is CellDraws else len(data.labels)
    labels *= data.num_classes if names[0] in CLASSWISE else 1
    if seconds is None:
        number = np.clip(ENOUGH // (labels + 1), 1, max_draws)
        return draw(int(number), seed, verbose)
    # More and more at a time, as long as there is time.
    parts, done, begin = [], 0, time.monotonic()
    size = int(np.clip(FIRST // (labels + 1), 1, 10))
    while size > 0:
        start = time.monotonic()
        state = np.random.SeedSequence([seed, done]).generate_state(1)
        parts.append(draw(size, int(state[0]), 0))
        done += size
        now = time.monotonic()
        affordable = int((seconds - (now - begin)) / (now - start) * size)
        size = min(affordable, done, max_draws - done)
    return {name: np.concatenate([p[name] for p in parts]) for name in names}


def _exact_means(data, names, num_bins):
    """Exact means of the floors of errors that are means over classes."""
    wanted = [name for name in names if name in EXACT_MEANS]
    sums = dict.fromkeys(wanted, 0.0)
    # The mean of weighted samples in small bins is drawn.
    num_draws = 1 if data.weights is None else MOST_DRAWS
    for k in range(data.num_classes if wanted else 0):
        events = sort_events(*confidence_and_correct(data, k), data.weights)
        binned = BinsOfEvents(events, num_bins)
        for name in wanted:
            bins = getattr(binned, EXACT_MEANS[name])
            sums[name] += binned_floor(bins, num_draws=num_draws).mean
    return {name: total / data.num_classes for name, total in sums.items()}
