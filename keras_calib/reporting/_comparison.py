"""Models of a report side by side, in words: which one predicts better."""

import math

import numpy as np

from keras_calib.evaluation.mean_interval import mean_interval
from keras_calib.evaluation.null_variance import difference_variance
from keras_calib.reporting._measure import LEVEL

# Of the normal distribution: what is exceeded in one of five cases.
POWER_QUANTILE = 0.8416
# NLL of float32 predictions, in nats.
SAME = 1e-5
# Nobody collects so many times as many samples.
MOST_TIMES = 100


def comparison(measured, predictions):
    """A sentence about each model and the one with the lowest NLL.

    That one is chosen on the same samples, so the intervals hold for all pairs
    of models together.

    Args:
        measured: list of `Measured`.
        predictions: list of `Predictions`, of the same rows.

    Returns:
        list of str; empty for one model.
    """
    if len(measured) < 2:
        return []
    losses = [each.negative_log_likelihood() for each in predictions]
    means = [m.metrics["negative_log_likelihood"]["value"] for m in measured]
    best = int(np.argmin(means))
    pairs = math.comb(int(np.isfinite(means).sum()), 2)
    sentences = []
    for i, other in enumerate(measured):
        if i == best:
            continue
        name = measured[best].name
        if not np.isfinite(means[i]):
            sentences.append(_of_infinite(name, means[best], other.name))
            continue
        difference = losses[i] - losses[best]
        if np.allclose(difference, 0, atol=SAME):
            sentences.append(
                f"{name} and {other.name} give all labels the same "
                "probability, but for rounding."
            )
            continue
        found = mean_interval(
            difference,
            predictions[best],
            1 - LEVEL / pairs,
            difference_variance(predictions[best], predictions[i]),
        )
        level = "95 %" if pairs == 1 else "95 % for all pairs"
        n = len(difference)
        sentences.append(_of_pair(name, other.name, found, n, level))
    return sentences


def _of_pair(best, other, found, n, level):
    if not np.isfinite(found.quantile):
        return (
            f"These samples cannot tell {best} from {other}: they are all of "
            "one unit, an image or a text, and nothing tells how much the "
            "difference varies."
        )
    mean, ends = found.mean, f"{found.low:.4f} to {found.high:.4f}"
    if found.low > 0:
        return (
            f"{best} predicts better than {other}: its NLL is lower by "
            f"{mean:.4f} ({level}: {ends})."
        )
    return (
        f"These samples cannot tell {best} from {other}: their NLL differs by "
        f"{mean:.4f}, with an interval ({level}) from {ends}. "
        + _samples_to_tell(mean, found.error, found.quantile, n)
    )


def _of_infinite(best, value, other):
    """Of two models, one or both of which rule out what then came."""
    if np.isfinite(value):
        return (
            f"{best} predicts better than {other}, whose NLL is infinite: it "
            "gives a label the probability 0."
        )
    return (
        f"The NLL cannot tell {best} from {other}: it is infinite for both, "
        "which give a label the probability 0."
    )


def _samples_to_tell(mean, error, quantile, n):
    """How many more samples would tell two models apart."""
    times = times_as_many(mean, error, quantile)
    if times > MOST_TIMES:
        return (
            "If the true difference is as small, not even "
            f"{MOST_TIMES} times as many samples would tell."
        )
    more = _two_digits(n * (times - 1))
    return (
        f"If the true difference is as large, {more:,} more samples would "
        "tell in four of five cases."
    )


def times_as_many(mean, error, quantile):
    """Samples with which four of five intervals leave out zero, as a factor.

    The standard error falls with the root of the number of samples. It must
    fall to mean / (quantile + z_.8), if the true difference is `mean`.

    Args:
        mean: difference that was found, at least 0.
        error: its standard error.
        quantile: standard errors from the middle of an interval to its ends.
    """
    if mean <= 0:
        return np.inf
    return ((quantile + POWER_QUANTILE) * error / mean) ** 2


def _two_digits(number):
    """A whole number of two significant digits."""
    return int(float(f"{number:.1e}"))
