"""Noise floor: the binned error of a perfectly calibrated model.

Labels are drawn from the confidences, and everything else is kept. The residual
of a bin is then a sum of independent centered Bernoulli variables,

    S_b = sum_{i in b} w_i (c_i - a_i),   a_i ~ Bernoulli(c_i)
    V_b = Var S_b = sum_{i in b} w_i^2 c_i (1 - c_i)

and the error is a function of all `|S_b|`. If `V_b` is large, `S_b` is normal.
If it is small, as in the top bin of a saturated network, the exact distribution
is used, because the normal one is up to four times too large.
"""

import dataclasses

import numpy as np

from keras_calib.evaluation.events import between
from keras_calib.evaluation.events import running
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.named_errors import BINARY
from keras_calib.evaluation.named_errors import FLOORS
from keras_calib.evaluation.named_errors import BinsOfEvents
from keras_calib.evaluation.named_errors import confidence_and_correct
from keras_calib.inputs.arguments import generator
from keras_calib.ops.bin_errors import divide
from keras_calib.ops.binning import bin_index

# Fewer draws have no 2.5 % quantile.
LEAST_DRAWS = 40
# Share of the draws in the range of a floor.
LEVEL = 0.95
# Sums of Bernoulli variables with at least this variance are normal.
NORMAL_FROM = 25.0
# Of more weighted samples of a small bin, surprises are drawn as a Poisson
# process where they are as rare.
MOST_LABELS, RARE = 1000, 0.02
# Points of the discrete Fourier transform. The standard deviation is at most 5,
# so there are 12 standard deviations on each side of the mean.
POINTS = 128
# Half of its angles t, the other half being conjugate, and `exp(-i t) - 1`.
ANGLES = 2 * np.pi * np.arange(POINTS // 2 + 1) / POINTS
TURNS = np.exp(-1j * ANGLES) - 1
# `log(1 + c v)` of `c` up to `CERTAIN` is `sum_k c^k SERIES[k - 1]`, with what
# is left out below 1e-14 in sum.
CERTAIN = 1 / 32
_K = np.arange(1, 13)[:, None]
SERIES = -((-TURNS) ** _K) / _K


@dataclasses.dataclass(frozen=True)
class Floor:
    """Distribution of an error under perfect calibration.

    Attributes:
        mean: mean of the distribution.
        low: lower end of the range of the draws, by default of 95 % of them.
        high: upper end of the range.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def from_draws(cls, values, mean=None, level=LEVEL):
        """Mean and range of drawn values.

        Args:
            values: errors, `(num_draws,)`.
            mean: float, if the exact mean is known, or `None` for that of
                `values`. With fewer than `LEAST_DRAWS` the range is NaN.
            level: share of the draws in the range.
        """
        low = high = np.nan
        if len(values) >= LEAST_DRAWS:
            outside = (1 - level) / 2
            low, high = np.quantile(values, [outside, 1 - outside])
        mean = values.mean() if mean is None else mean
        return cls(float(mean), float(low), float(high))


def noise_floors(data, wanted, num_bins, seed, level=LEVEL):
    """Floors of the wanted errors: name to mean, and both ends of the range.

    Args:
        data: `Predictions`.
        wanted: keys of `calibration_errors`; those without a floor of this
            kind are skipped.
        num_bins: int.
        seed: int.
        level: share of the draws in the range.

    Returns:
        dict: `<name>_floor`, `<name>_floor_low` and `<name>_floor_high`.
    """
    found = {}
    # Top-label errors are of the predicted class, binary errors of class 1.
    for k in (None, 1):
        names = [name for name in FLOORS if name in wanted]
        names = [name for name in names if (name in BINARY) == (k == 1)]
        if not names:
            continue
        events = sort_events(*confidence_and_correct(data, k), data.weights)
        binned = BinsOfEvents(events, num_bins)
        for name in names:
            binning, norm = FLOORS[name]
            bins = getattr(binned, binning)
            floor = binned_floor(bins, norm, seed=seed, level=level)
            found[f"{name}_floor"] = floor.mean
            found[f"{name}_floor_low"] = floor.low
            found[f"{name}_floor_high"] = floor.high
    return found


def binned_floor(bins, norm=1, num_draws=10000, seed=0, level=LEVEL):
    """Noise floor of `calibration_error(bins, norm)`: its mean and range.

        norm 1:    sum_b |S_b| / W;  its mean is computed, not drawn
        norm 2:    sqrt(sum_b S_b^2 / (W_b W))
        norm inf:  max_b |S_b| / W_b

    `S_b = sum_{i in b} w_i (c_i - a_i)` has labels drawn from the confidences
    `c_i`; `W_b` is the weight of a bin, `W` that of all. See `residual_draws`.

    Args:
        bins: `SortedBins`.
        norm: 1, 2 or `inf`.
        num_draws: int, draws for the range.
        seed: int.
        level: share of the draws in the range.

    Returns:
        `Floor`.

    Example:
        >>> import numpy as np
        >>> from keras_calib.evaluation.events import sort_events
        >>> confidence = np.full(1000, 0.8)
        >>> events = sort_events(confidence, np.ones(1000))
        >>> floor = binned_floor(events.bins(events.width_cuts(15)))
        >>> round(floor.mean, 4)  # sqrt(2 / pi) sqrt(0.8 * 0.2 / 1000)
        0.0101

    Reference:
        Broecker and Smith, "Increasing the Reliability of Reliability
        Diagrams", Weather and Forecasting, 2007, Section 3.
    """
    rng = generator(seed)
    drawn, means, _ = residual_draws(bins, num_draws, rng)  # |S_b|, E|S_b|
    total, weight = bins.total, bins.weight
    if norm == 1:
        values = divide(drawn.sum(axis=1), total)
        return Floor.from_draws(
            values, float(divide(means.sum(), total)), level
        )
    if norm == 2:
        squares = divide(drawn**2, weight).sum(axis=1)
        return Floor.from_draws(np.sqrt(divide(squares, total)), level=level)
    largest = divide(drawn, weight).max(axis=1, initial=0.0)
    return Floor.from_draws(largest, level=level)


def residual_draws(bins, num_draws, rng):
    """Draws of `|S_b|` of each bin, for labels drawn from the confidences.

    `S_b` is normal, so that `E|S_b| = sqrt(2 V_b / pi)`, but for small bins,
    where the exact distribution is drawn from. There is one pass over the
    samples for any number of draws.

    Args:
        bins: `SortedBins`.
        num_draws: int.
        rng: NumPy's random generator.

    Returns:
        drawn: `(num_draws, num_bins)`.
        means: `E|S_b|`, `(num_bins,)`.
        variances: `V_b`, `(num_bins,)`.
    """
    variances = residual_variances(bins)
    means = normal_means(variances)
    drawn = np.abs(rng.standard_normal((num_draws, len(variances))))
    drawn *= np.sqrt(variances)
    # Relative to a typical squared weight, because weights have any scale.
    typical = divide(bins.square, bins.weight) ** 2
    small = (variances < NORMAL_FROM * typical) & (variances > 0)
    for b in np.flatnonzero(small):
        means[b], drawn[:, b] = _small_bin(bins, b, num_draws, rng)
    return drawn, means, variances


def normal_means(variances: np.ndarray) -> np.ndarray:
    """`E|S_b| = sqrt(2 V_b / pi)` of normal `S_b`."""
    return np.sqrt(2 / np.pi * variances)


def normal_floor(
    confidence: np.ndarray, weights: np.ndarray, num_bins: int
) -> float:
    """Mean floor of the ECE, norm 1, as if every bin were normal; no sorting.

    Args:
        confidence: in `[0, 1]`, `(n,)`.
        weights: sample weights, `(n,)`.
        num_bins: int, number of bins of equal width.
    """
    confidence = confidence.astype("float64")
    variance = weights**2 * confidence * (1 - confidence)
    index = bin_index(confidence, num_bins)
    variances = np.bincount(index, variance, num_bins)
    return float(normal_means(variances).sum() / weights.sum())


def residual_variances(bins):
    """`V_b = sum w^2 c (1 - c)` of each bin."""
    events = bins.events
    variance = events.confidence64 * (1 - events.confidence64)
    if events.weights is not None:
        variance = variance * events.weights**2
    return np.maximum(between(running(variance), bins.cuts), 0.0)


def _small_bin(bins, b, num_draws, rng):
    """Mean and draws of `|S_b|` of a bin with a small variance."""
    events = bins.events
    part = slice(bins.cuts[b], bins.cuts[b + 1])
    confidence = events.confidence64[part]
    if events.weights is None:
        return _by_transform(confidence, num_draws, rng)
    weights = events.weights[part]
    # Of many samples most are nearly certain, as the variance is small.
    rare = np.minimum(confidence, 1 - confidence) < RARE
    rare &= len(confidence) > MOST_LABELS
    gaps = _by_labels(confidence[~rare], weights[~rare], num_draws, rng)
    if rare.any():
        gaps += _by_surprises(confidence[rare], weights[rare], num_draws, rng)
    sizes = np.abs(gaps)
    return sizes.mean(), sizes


def _by_transform(confidence, num_draws, rng):
    """Mean and draws of `|sum (c - a)|`, see `law_of_gap`."""
    sizes, law = law_of_gap(confidence)
    drawn = np.searchsorted(np.cumsum(law), rng.random(num_draws))
    return law @ sizes, sizes[np.minimum(drawn, POINTS - 1)]


def law_of_gap(confidence):
    """The values of `|sum (c - a)|`, and their probabilities.

    By the characteristic function of the number of hits `sum a`,

        prod_n (1 + c_n v),    v = exp(-i t) - 1

    Of samples that are nearly certain, its logarithm is the series of
    `log(1 + c v)`, of which one pass for each term is enough.

    Args:
        confidence: float64, `(n,)`, with a variance below `NORMAL_FROM`, in any
            order.

    Returns:
        sizes: `(POINTS,)`.
        law: `(POINTS,)`, with the sum 1.
    """
    mean = confidence.sum()
    # The window of `POINTS` numbers of hits begins at `start`. The probability
    # outside of it is below 1e-20.
    start = int(np.floor(mean)) - POINTS // 2
    low, high = confidence <= CERTAIN, confidence >= 1 - CERTAIN
    logs = _series(confidence[low])
    certain = int(high.sum())
    if certain:
        # All are hits but for misses, whose `v` is the conjugate.
        logs = logs + np.conj(_series(1 - confidence[high]))
    logs = logs + 1j * ANGLES * (start - certain)
    others = confidence[~(low | high)]
    factors = np.multiply.reduce(1 + others[:, None] * TURNS, axis=0)
    law = np.fft.irfft(factors * np.exp(logs), POINTS)
    law = np.maximum(law, 0.0)
    law /= law.sum()
    return np.abs(start + np.arange(POINTS) - mean), law


def _series(rates):
    """`sum_n log(1 + c_n v)` of small `c`, at each angle."""
    sums, power = np.empty(len(SERIES)), np.ones(len(rates))
    for k in range(len(SERIES)):
        power *= rates
        sums[k] = power.sum()
    return sums @ SERIES


def _by_labels(confidence, weights, num_draws, rng, rows=1000):
    """Draws of `sum w (c - a)`: the label of each sample is drawn."""
    parts = []
    for start in range(0, num_draws, rows):
        size = min(rows, num_draws - start)
        drawn = rng.random((size, len(confidence))) < confidence
        parts.append(weights @ confidence - drawn @ weights)
    return np.concatenate(parts)


def _by_surprises(confidence, weights, num_draws, rng):
    """Draws of `sum w (c - a)` if surprises are rare: a Poisson number.

    A surprise is a miss if the confidence is above 1/2, else a hit.
    """
    sure = confidence > 0.5
    surprise = np.where(sure, 1 - confidence, confidence)
    # Change of sum w (c - a) by a surprise, and the sum without surprises.
    change = np.where(sure, weights, -weights)
    base = weights @ (confidence - sure)
    below = np.cumsum(surprise)
    counts = rng.poisson(below[-1], num_draws)
    drawn = rng.random(counts.sum()) * below[-1]
    index = np.searchsorted(below, drawn)
    owner = np.repeat(np.arange(num_draws), counts)
    changes = np.bincount(owner, change[index], minlength=num_draws)
    return base + changes
