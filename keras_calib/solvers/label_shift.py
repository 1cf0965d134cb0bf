"""Label shift: the class frequencies of new data, by maximum likelihood.

Under label shift the distribution of the inputs of a class, p(x | y), stays as
it was, and the class frequencies move from the source prior s to a target
prior q. With calibrated probabilities p_ik of the new rows

    L(q) = mean_i log sum_k p_ik q_k / s_k

is their log-likelihood up to a constant. It is concave, and EM climbs it:

    r_ik = p_ik q_k / s_k,    q_k <- mean_i r_ik / sum_l r_il
"""

import dataclasses
import math

import numpy as np

from keras_calib.inputs import arrays
from keras_calib.solvers.blocks import TINY64
from keras_calib.solvers.blocks import normalized_weights
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.blocks import sum_blocks

# EM stops when no class frequency changes by more.
TOLERANCE = 1e-10
MAX_STEPS = 10_000
# Elements above which ratios are kept in the dtype of the scores.
SMALL = 1 << 23


@dataclasses.dataclass(frozen=True)
class PriorEstimate:
    """The class frequencies that EM found.

    Attributes:
        prior: q, `(num_classes,)`, sums to one.
        iterations: number of EM steps.
        converged: whether the last step was below the tolerance.
        log_likelihood: L(q), in nats per row.
        ratios: `mean_i (p_ik / s_k) / sum_l (p_il q_l / s_l)`,
            `(num_classes,)`. At the optimum it is 1 where `q_k > 0`, and at
            most 1 elsewhere.
    """

    prior: np.ndarray
    iterations: int
    converged: bool
    log_likelihood: float
    ratios: np.ndarray


def likelihood_ratios(scores, source):
    """`p_ik / s_k`, and 0 for a class with `s_k = 0`.

    Args:
        scores: logits or log-probabilities, `(n, num_classes)`; overwritten if
            there are many.
        source: s, float64, `(num_classes,)`.
    """
    with np.errstate(divide="ignore"):
        inverse = np.where(source > 0, 1 / source, 0.0)
    out = scores if scores.size > SMALL else np.empty(scores.shape)
    for rows in row_blocks(*scores.shape):
        log_p = arrays.log_softmax(scores[rows], "float64")
        out[rows] = np.exp(log_p) * inverse
    return out


def estimate_prior(
    ratios,
    source,
    weights=None,
    *,
    tolerance=TOLERANCE,
    max_steps=MAX_STEPS,
):
    """The target prior q by EM, from the source prior.

    Args:
        ratios: what `likelihood_ratios` returned, `(n, num_classes)`.
        source: s, float64, `(num_classes,)`.
        weights: `None`, or `(n,)`.
        tolerance: stop when no entry of q changes by more.
        max_steps: int.

    Returns:
        `PriorEstimate`. A class that the rows lack decays geometrically, and
        is never exactly 0; a class with `s_k = 0` stays 0.

    Reference:
        Saerens et al., "Adjusting the Outputs of a Classifier to New a Priori
        Probabilities", Neural Computation 14, 2002.
    """
    weights = normalized_weights(weights, len(ratios))
    prior, converged, step = source, False, 0
    while not converged and step < max_steps:
        _, factors = _log_likelihood(ratios, weights, prior)
        change = prior * factors - prior
        converged = bool(np.abs(change).max() < tolerance)
        prior, step = prior + change, step + 1
    value, factors = _log_likelihood(ratios, weights, prior)
    return PriorEstimate(prior / prior.sum(), step, converged, value, factors)


def _log_likelihood(ratios, weights, prior):
    """L(q) and its gradient in q."""

    def part(rows):
        block = ratios[rows].astype("float64", copy=False)
        total = np.maximum(block @ prior, TINY64)
        weight = weights[rows]
        value = weight @ np.log(total)
        return np.concatenate([[value], (weight / total) @ block])

    value, *gradient = sum_blocks(part, row_blocks(*ratios.shape))
    return float(value), np.array(gradient)


def chi_square_tail(statistic, degrees):
    """P(chi-square with so many degrees of freedom > statistic).

    By `Q(a + 1, x) = Q(a, x) + x^a exp(-x) / Gamma(a + 1)`, where `Q` is the
    regularized upper incomplete gamma function, from `Q(1/2, x)` or `Q(1, x)`.
    """
    x = max(statistic, 0.0) / 2
    if x == 0 or degrees == 0:
        return 1.0
    odd = degrees % 2
    tail = math.erfc(math.sqrt(x)) if odd else math.exp(-x)
    for twice in range(1 if odd else 2, degrees, 2):
        a = twice / 2
        tail += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
    return min(tail, 1.0)
