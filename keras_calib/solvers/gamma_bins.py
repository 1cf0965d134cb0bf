"""Histogram binning by factors of probabilities with a Gamma prior.

In each bin, of each class, the number of events is

    events ~ Poisson(r expected),    r ~ Gamma(k, k)

with the sum of probabilities as the expected number. The posterior mean of the
factor `r` is `(events + k) / (expected + k)`. It is averaged over the strength
`k` of the prior by the evidence, which is a formula, with a prior probability
of 1/2 on `r = 1` everywhere.
"""

import dataclasses
import math

import numpy as np

# Strengths of the prior, in events.
STRENGTHS = 2.0 ** np.arange(-1, 11)
# Prior probability of r = 1.
PLAIN = 0.5

_log_gamma = np.vectorize(math.lgamma, otypes=["float64"])


@dataclasses.dataclass(frozen=True)
class Factors:
    """The result of `average_factors`.

    Attributes:
        factors: the shape of the events.
        plain: posterior probability of `r = 1` everywhere.
    """

    factors: np.ndarray
    plain: float


def average_factors(events, expected, dispersion=1.0):
    """Posterior means of the factors, averaged over the prior's strength.

    Args:
        events: weighted numbers of events, any shape.
        expected: the sums of their probabilities, the same shape.
        dispersion: how much larger the variance of the events is than that of
            independent samples; both numbers are divided by it.

    Returns:
        `Factors`.
    """
    events, expected = events / dispersion, expected / dispersion
    posterior = [
        log_evidence_of_factors(events, expected, k) for k in STRENGTHS
    ]
    posterior = np.array(posterior) + np.log((1 - PLAIN) / len(STRENGTHS))
    posterior = np.append(posterior, np.log(PLAIN))
    posterior = np.exp(posterior - posterior.max())
    posterior /= posterior.sum()
    factors = np.full(events.shape, posterior[-1])
    for share, k in zip(posterior, STRENGTHS, strict=False):
        factors += share * (events + k) / (expected + k)
    return Factors(factors, float(posterior[-1]))


def log_evidence_of_factors(events, expected, k):
    """Log of the likelihood under the prior, relative to that of `r = 1`.

    sum log Gamma(N + k) - log Gamma(k) + k log k
        - (N + k) log(E + k) + E,    N events, E expected
    """
    return float(
        np.sum(
            _log_gamma(events + k)
            - math.lgamma(k)
            + k * math.log(k)
            - (events + k) * np.log(expected + k)
            + expected
        )
    )
