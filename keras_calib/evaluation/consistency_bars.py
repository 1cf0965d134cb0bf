"""Consistency bars: where the accuracy of each bin lies under calibration.

Labels are drawn from the confidences, as for the noise floor. Simultaneous bars
hold all together with the stated probability, so that they answer the question
whether a model leaves them; pointwise bars hold one by one, and of 15 some are
left by chance in about half of all data sets.
"""

import numpy as np

from keras_calib.evaluation.floor import residual_draws
from keras_calib.inputs.arguments import generator
from keras_calib.ops.bin_errors import divide

# Standard deviations on both sides of the mean of a binomial law that are
# computed, and the least number of hits. The probability outside is below
# 1e-15.
REACH = 9.0
LEAST_REACH = 40


def consistency_bars(bins, *, level=0.95, simultaneous=True, seed=0):
    """Lower and upper end of each bin's accuracy if the model is calibrated.

    With equal weights, by quantiles `q` of Binomial(n_b, C_b), for `M` bins
    that are not empty:

        gamma = 1 - level^(1 / M), or 1 - level if pointwise
        low = min(q_(gamma / 2), floor(n_b C_b)) / n_b
        high = max(q_(1 - gamma / 2), ceil(n_b C_b)) / n_b

    Confidences in a bin differ, which makes its hits less variable than
    binomial: the bars then hold with more than `level`, for every number of
    samples. With other weights, by the quantile of the studentized maximum
    `max_b |S_b| / sqrt(V_b)` over draws of the labels (see `floor`):

        C_b -+ quantile sqrt(V_b) / W_b

    or, pointwise, of `|S_b|` itself: `C_b -+ quantile / W_b`.

    Args:
        bins: `SortedBins`.
        level: float in (0, 1), the probability.
        simultaneous: whether it is that of all bars together, or of each.
        seed: int, for weights that are not equal.

    Returns:
        low, high: `(num_bins,)`; NaN for an empty bin.

    Example:
        >>> import numpy as np
        >>> from keras_calib.evaluation.events import sort_events
        >>> events = sort_events(np.full(100, 0.8), np.ones(100))
        >>> low, high = consistency_bars(events.bins(events.width_cuts(5)))
        >>> print(low[3], high[3])
        0.72 0.88

    Reference:
        Broecker and Smith, "Increasing the Reliability of Reliability
        Diagrams", Weather and Forecasting, 2007, Section 3; for the binomial
        bound Hoeffding, "On the distribution of the number of successes in
        independent trials", 1956, Theorem 5.
    """
    used = np.asarray(bins.weight) > 0
    ends = np.full((2, len(used)), np.nan)
    weights = bins.events.weights
    if weights is not None and np.ptp(weights) > 1e-9 * weights.max():
        ends[:, used] = _weighted(bins, level, simultaneous, seed)[:, used]
        return ends
    gamma = 1 - level ** (1 / max(used.sum(), 1)) if simultaneous else 1 - level
    numbers = np.diff(bins.cuts)
    confidence = np.clip(bins.confidence, 0.0, 1.0)
    for b in np.flatnonzero(used):
        mean = numbers[b] * confidence[b]
        tails = _binomial_quantiles(
            numbers[b], confidence[b], [gamma / 2, 1 - gamma / 2]
        )
        # Half a millionth of a hit is rounding.
        low, high = np.floor(mean + 5e-7), np.ceil(mean - 5e-7)
        ends[:, b] = min(tails[0], low), max(tails[1], high)
        ends[:, b] /= numbers[b]
    return ends


def _weighted(bins, level, simultaneous, seed):
    rng = generator(seed)
    sizes, _, variances = residual_draws(bins, 2000, rng)
    # A new draw is at most the ceil(level (m + 1))-th of m with a probability
    # of at least `level`.
    rank = min(int(np.ceil(level * (len(sizes) + 1))), len(sizes)) - 1
    if simultaneous:
        sizes = divide(sizes, np.sqrt(variances)).max(axis=1)
        reach = np.sort(sizes)[rank] * np.sqrt(variances)
    else:
        reach = np.sort(sizes, axis=0)[rank]
    reach = divide(reach, bins.weight)
    return np.clip(bins.confidence + [[-1], [1]] * reach, 0.0, 1.0)


def _binomial_quantiles(number, p, probabilities):
    """Least `k` with `P(K <= k) >= probability`, of Binomial(number, p)."""
    mean = number * p
    if p in (0.0, 1.0):
        return np.full(len(probabilities), mean)
    reach = max(REACH * np.sqrt(mean * (1 - p)), LEAST_REACH)
    first = max(0, int(mean - reach))
    k = np.arange(first + 1, min(number, int(mean + reach) + 1) + 1)
    # P(K = k) / P(K = k - 1) = (n - k + 1) / k p / (1 - p)
    ratios = np.log((number - k + 1) / k) + np.log(p) - np.log1p(-p)
    logs = np.concatenate([[0.0], np.cumsum(ratios)])
    law = np.exp(logs - logs.max())
    below = np.cumsum(law) / law.sum()
    return first + np.searchsorted(below, probabilities)
