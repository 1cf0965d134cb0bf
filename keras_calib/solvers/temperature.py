"""Temperature scaling: the least negative log-likelihood, in a few passes.

NLL is convex in `beta = 1 / T`. Newton's method in `u = log beta`, kept inside
a bracket, needs 4 to 6 evaluations from any start; from the temperature of the
last epoch 2 or 3, plus the one at T = 1. Each evaluation is one pass over the
logits in blocks that fit a processor's cache, spread over threads; no array of
the size of the logits is allocated, but for few of them (`by_class`).
"""

import dataclasses
from typing import Any

import numpy as np

from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import RULED_OUT
from keras_calib.inputs.arrays import by_class
from keras_calib.inputs.arrays import effective_num_samples
from keras_calib.inputs.arrays import largest_seen
from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import normalized_weights
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.blocks import sum_blocks
from keras_calib.solvers.blocks import threads

# A temperature outside is returned as the bound, with a stop reason.
BOUNDS = (0.01, 100.0)
# Why there is no minimizer where no prediction is wrong.
ALL_CORRECT = "all correct"
# The same as `log beta`.
LOW, HIGH = -np.log(BOUNDS[1]), -np.log(BOUNDS[0])
# Elements of the logits of a subsample that the first iterations use.
SUBSAMPLE = 1 << 20


@dataclasses.dataclass(frozen=True)
class TemperatureFit:
    """The result of `fit_temperature`.

    Attributes:
        temperature: the minimizer; or the bound at which the fit stopped; or
            1 or less, where all samples are right.
        nll_before: mean negative log-likelihood at temperature 1, in nats.
        nll_after: mean negative log-likelihood at `temperature`, in nats.
        stop_reason: `None`, or why it is not the minimizer:
            `"all correct"`, the NLL falls to 0 as T goes to 0; `"chance"`, it
            falls as T goes to infinity; `"limit"`, the minimizer lies outside
            the bounds; `"constant"`, every row of logits is constant.
    """

    temperature: float
    nll_before: float
    nll_after: float
    stop_reason: str | None = None


def fit_temperature(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    smoothing: float = 0.0,
    start: float | None = None,
    *,
    before: bool = True,
) -> TemperatureFit:
    """Minimize `mean(logsumexp(z / T) - z_y / T)` over T.

    Where every sample is predicted correctly, there is no minimum, and any
    wrong prediction on new data would be certain. Then a part `1 / (2 (n + 1))`
    of each label is spread over the classes: so often, by Jeffreys' prior, what
    has not happened in `n` samples happens in the next. The minimum is taken
    over T <= 1, since nothing in the samples speaks for softer predictions.

    Args:
        logits: float32 or float64, `(n, num_classes)`, an array or a memory
            map; finite or minus infinity. Sums over samples are float64; sums
            over classes have the dtype of the logits.
        labels: int class ids, `(n,)`.
        weights: `None`, or weights >= 0, `(n,)`; their sum is the number of
            samples `n` above.
        smoothing: weight of the uniform distribution in the labels:
            `(1 - smoothing) z_y + smoothing mean_k z_k` takes the place of
            `z_y`.
        start: `None`, or a temperature near the minimizer, within the bounds.
            It saves passes, and does not change the minimizer.
        before: whether to find `nll_before`, which takes a pass; else it is
            NaN.

    Returns:
        `TemperatureFit`.

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        Section 4.2.
    """
    whole = Likelihood(logits, labels, weights, smoothing)

    def first():
        if start is not None:
            return float(-np.log(start))
        step = logits.size // SUBSAMPLE
        if step <= 1:
            return 0.0
        part = None if weights is None else weights[::step]
        sample = Likelihood(logits[::step], labels[::step], part, smoothing)
        return _newton(sample, 0.0, None, LOW, HIGH, tolerance=1e-3)[0]

    tolerance = 1e-4 if logits.dtype == np.float32 else 1e-6
    return minimize(whole, first, tolerance, before=before)


def log_evidence(logits, labels, weights=None, *, start=1.0, width=0.5):
    """Log evidence of temperature scaling, against the logits as they are.

        log of  integral p(y | u) N(u; 0, width^2) du / p(y | 0),    u = -log T

    by Laplace's approximation. It is above 0 if the samples speak for a
    temperature. Weights are brought to the sum `(sum w)^2 / sum w^2`.

    Args:
        logits: see `fit_temperature`.
        labels: int class ids, `(n,)`.
        weights: `None`, or weights >= 0, `(n,)`.
        start: a temperature near the minimizer, within the bounds.
        width: standard deviation of the prior of `log T`.

    Returns:
        float, in nats.

    Reference:
        MacKay, "Information Theory, Inference, and Learning Algorithms", 2003,
        Chapter 27.
    """
    likelihood = Likelihood(logits, labels, weights, 0.0)
    count = effective_num_samples(likelihood.weights)
    likely = _WithPrior(likelihood, count, width)
    nll, *_ = likelihood.derivatives(0.0)
    u, _ = _newton(likely, -np.log(start), None, LOW, HIGH, tolerance=1e-3)
    least, _, curvature = likely.derivatives(u)
    # log E = n (NLL(0) - least) - log(width sqrt(n curvature))
    scale = width * np.sqrt(count * curvature)
    return float(count * (nll - least) - np.log(scale))


def minimize(likelihood, start, tolerance, *, before=True):
    """Minimize a likelihood from `log beta = start()`, or find no minimum.

    Args:
        likelihood: `Likelihood`, or what has its `derivatives` and, after the
            first pass, its other attributes.
        start: function without arguments, called after the first pass.
        tolerance: the largest step that is taken without another pass.
        before: see `fit_temperature`; a pass at `log beta = 0` comes first.

    Returns:
        `TemperatureFit`.
    """
    known = likelihood.derivatives(0.0) if before else None
    nll = known[0] if known else np.nan
    if likelihood.spread == 0.0:
        return TemperatureFit(1.0, nll, nll, "constant")
    if likelihood.shortfall == 0.0:
        score = unseen(likelihood.count) * likelihood.excess
        likely = _WithOtherLabels(likelihood, score)
        u, _ = _newton(likely, 0.0, None, 0.0, HIGH, tolerance=1e-6)
        return _stopped(likelihood, u, nll, ALL_CORRECT)
    if likelihood.excess >= 0.0:
        return _stopped(likelihood, LOW, nll, "chance")
    first = start()
    known = known if first == 0.0 else None
    u, after = _newton(likelihood, first, known, LOW, HIGH, tolerance)
    reason = "limit" if u in (LOW, HIGH) else None
    return TemperatureFit(float(np.exp(-u)), nll, after, reason)


def log_beta_of_score(likelihood, score, start):
    """`u = log beta` at which `mean_i E_q z_i` is that of labels, and `score`.

    It is the minimizer of the NLL of labels whose mean logit is higher by so
    much. One at an end of the bounds has no such mean.

    Args:
        likelihood: `Likelihood`.
        score: float.
        start: near `u`, within the bounds.
    """
    likely = _WithOtherLabels(likelihood, score)
    return _newton(likely, start, None, LOW, HIGH, tolerance=1e-5)[0]


def _stopped(likelihood, u, nll, reason):
    after, *_ = likelihood.derivatives(u)
    return TemperatureFit(float(np.exp(-u)), nll, after, reason)


def _newton(likelihood, u, known, low, high, tolerance):
    """Newton inside a bracket; returns the minimizer and the NLL there.

    The last step is taken without another pass: after a step `s` the error is
    of the order `s^2`, and the second-order value of NLL is exact to `s^3`.
    """
    lower, upper = low - 1.0, high + 1.0
    known = known or likelihood.derivatives(u)
    while True:
        nll, slope, curvature = known
        if (u == low and slope >= 0) or (u == high and slope <= 0):
            return u, nll
        lower, upper = (lower, u) if slope > 0 else (u, upper)
        target = None
        if curvature > 0:
            step = np.clip(slope / curvature, -1.5, 1.5)
            target = np.clip(u - step, low, high)
        if target is None or not lower < target < upper:
            target = np.clip((lower + upper) / 2, low, high)
        step = float(target - u)
        if abs(step) < tolerance:
            return u + step, nll + slope * step + curvature * step**2 / 2
        u = u + step
        known = likelihood.derivatives(u)


class Likelihood:
    """Passes over the logits; the first pass keeps three numbers per row.

    Attributes:
        largest: `max_k z_k` of each row.
        ruled_out: whether a logit is minus infinity.
        count: sum of the weights.
        shortfall: `mean(max_k z_k - z_y)`; 0 if every prediction is right.
        excess: `mean(mean_k z_k - z_y)`; >= 0 if no better than chance.
        spread: the largest `max_k z_k - min_k z_k`.
        label_gap: `z_y - max_k z_k` of each row; with label smoothing, that of
            the smoothed label.
        mean_gap: `mean_k z_k - max_k z_k` of each row, without smoothing over
            the classes that are not ruled out.
    """

    def __init__(self, logits, labels, weights, smoothing):
        n = len(logits)
        self.logits = by_class(logits)
        self.weights = normalized_weights(weights, n)
        self.count = float(n if weights is None else np.sum(weights))
        self.largest = np.empty(n, logits.dtype)
        self.label_gap = np.empty(n)
        self.mean_gap = np.empty(n)
        self.blocks = row_blocks(*logits.shape, IN_CACHE)
        self.spread = self._scan(labels, smoothing)
        self.ruled_out = not np.isfinite(self.spread)
        if smoothing:
            self.label_gap *= 1 - smoothing
            self.label_gap += smoothing * self.mean_gap
        self.shortfall = float(-self.weights @ self.label_gap)
        self.excess = float(self.weights @ (self.mean_gap - self.label_gap))

    def _scan(self, labels, smoothing):
        def scan(rows):
            z = self.logits[rows]
            largest = z.max(axis=1)
            self.largest[rows] = largest
            chosen = z[np.arange(len(z)), labels[rows]]
            self.label_gap[rows] = chosen.astype(float) - largest
            spread = float((largest - z.min(axis=1)).max())
            seen: Any = True
            if not smoothing and not spread < RULED_OUT:
                distances = largest[:, None].astype(float) - z
                seen = distances < largest_seen(distances)
            mean = z.mean(axis=1, dtype=float, where=seen)
            self.mean_gap[rows] = np.maximum(mean - largest, LOWEST)
            return spread

        if len(self.blocks) == 1:
            return scan(self.blocks[0])
        return max(threads().map(scan, self.blocks))

    def derivatives(self, u):
        """NLL and its first two derivatives in `u = log beta`.

        With d_k = z_k - max z, p = softmax(beta d), and weighted means:

            NLL = mean(log sum_k exp(beta d_k) - beta d_y)
            d NLL / d beta = mean(E_p d - d_y)
            d^2 NLL / d beta^2 = mean(Var_p d)
        """
        beta = np.exp(u)

        def sums(rows):
            log_sum, mean, variance = self.moments(u, rows)
            w, d_y = self.weights[rows], self.label_gap[rows]
            means = log_sum - beta * d_y, mean - d_y, variance
            return np.array([w @ values for values in means])

        nll, first, second = sum_blocks(sums, self.blocks)
        slope = beta * first
        return float(nll), float(slope), float(slope + beta**2 * second)

    def values(self, us):
        """NLL at each `u`, `(len(us),)`; of few rows, many in one call."""
        betas = np.exp(us)

        def sums(rows):
            d, w = self.gaps(rows), self.weights[rows]
            found = -betas * (w @ self.label_gap[rows])
            for part in row_blocks(len(us), d.size, IN_CACHE):
                e = d * betas[part, None, None].astype(d.dtype)
                np.exp(e, out=e)
                found[part] += np.log(e.sum(axis=2).astype(float)) @ w
            return found

        return sum_blocks(sums, self.blocks)

    def gaps(self, rows):
        """`z_k - max z` of some rows."""
        d = self.logits[rows] - self.largest[rows, None]
        if self.ruled_out:
            # Such a class adds exp(-inf) = 0, and not 0 * inf.
            np.maximum(d, LOWEST, out=d)
        return d

    def moments(self, u, rows):
        """`log sum_k exp(beta d_k)`, `E_p d` and `Var_p d` of some rows."""
        d = self.gaps(rows)
        e = np.multiply(d, d.dtype.type(np.exp(u)))
        np.exp(e, out=e)
        s0 = e.sum(axis=1).astype(float)
        m1 = np.einsum("ij,ij->i", e, d) / s0
        np.multiply(e, d, out=e)
        m2 = np.einsum("ij,ij->i", e, d) / s0
        return np.log(s0), m1, m2 - m1**2


def unseen(count):
    """The rate of what no sample of `count` has, by Jeffreys' prior."""
    return 0.5 / (count + 1)


class _WithOtherLabels:
    """The likelihood of labels whose mean logit is higher by `score`."""

    def __init__(self, likelihood, score):
        self.likelihood, self.score = likelihood, score

    def derivatives(self, u):
        """NLL and its first two derivatives in `u = log beta`."""
        nll, slope, curvature = self.likelihood.derivatives(u)
        # Linear in beta, and so its own derivative in u.
        added = -self.score * float(np.exp(u))
        return nll + added, slope + added, curvature + added


class _WithPrior:
    """The likelihood times a normal density of `u = -log T`."""

    def __init__(self, likelihood, count, width):
        self.likelihood, self.precision = likelihood, 1 / (count * width**2)

    def derivatives(self, u):
        """NLL minus the log prior over n, and its first two derivatives."""
        nll, slope, curvature = self.likelihood.derivatives(u)
        p = self.precision
        return nll + p * u**2 / 2, slope + p * u, curvature + p
