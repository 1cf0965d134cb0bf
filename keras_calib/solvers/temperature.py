"""The temperature with the smallest negative log-likelihood, in a few passes.

NLL is convex in `beta = 1 / T`. Newton's method in `u = log beta`, kept inside
a bracket, needs 4 to 6 evaluations from anywhere. Each evaluation is one pass
over the logits in blocks that fit a processor's cache, spread over threads;
nothing of the size of the logits is allocated.
"""

import concurrent.futures
import dataclasses
import functools
import os

import numpy as np

from keras_calib.inputs.arrays import LOWEST

# Temperatures outside are returned as the bound, with a flag.
BOUNDS = (0.01, 100.0)
# Elements of one block: two work arrays of this size stay in a level-2 cache.
BLOCK = 1 << 16
# Elements below which no subsample is worth its own iterations.
SMALL = 1 << 20


@dataclasses.dataclass(frozen=True)
class TemperatureFit:
    """What a fit found.

    Attributes:
        temperature: the minimiser, or the bound it was stopped at.
        nll_before: mean negative log-likelihood at temperature 1, in nats.
        nll_after: the same at `temperature`.
        stop_reason: `None`, or why the temperature is at a bound:
            `"all correct"`, the likelihood grows without end as T goes to 0;
            `"chance"`, it does as T goes to infinity; `"limit"`, the minimiser
            lies outside the bounds; `"constant"`, every row of logits is
            constant.
    """

    temperature: float
    nll_before: float
    nll_after: float
    stop_reason: str | None = None


def fit_temperature(logits, labels, weight=None, smoothing=0.0):
    """Minimise `mean(logsumexp(z / T) - z_y / T)` over T.

    Args:
        logits: float32 or float64, `(n, num_classes)`, an array or a memory
            map; finite or minus infinity. Sums over samples are float64; what
            is summed over classes has the dtype of the logits.
        labels: int class ids, `(n,)`.
        weight: `None`, or weights >= 0, `(n,)`.
        smoothing: share of the uniform distribution in the labels:
            `(1 - smoothing) z_y + smoothing mean_k z_k` takes the place of
            `z_y`.

    Returns:
        `TemperatureFit`.

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        Section 4.2.
    """
    whole = _Passes(logits, labels, weight, smoothing)
    nll, slope, curvature = whole.likelihood(0.0)
    if whole.spread == 0.0:
        return TemperatureFit(1.0, nll, nll, "constant")
    low, high = -np.log(BOUNDS[1]), -np.log(BOUNDS[0])
    if whole.shortfall == 0.0:
        return _at_bound(whole, nll, high, "all correct")
    if whole.excess >= 0.0:
        return _at_bound(whole, nll, low, "chance")

    start, known = 0.0, (nll, slope, curvature)
    step = logits.size // SMALL
    if step > 1:
        part = None if weight is None else weight[::step]
        sample = _Passes(logits[::step], labels[::step], part, smoothing)
        start, _ = _newton(sample, 0.0, None, low, high, tolerance=1e-3)
        known = None
    tolerance = 1e-4 if logits.dtype == np.float32 else 1e-6
    u, after = _newton(whole, start, known, low, high, tolerance)
    stop_reason = "limit" if u in (low, high) else None
    return TemperatureFit(float(np.exp(-u)), nll, after, stop_reason)


def _at_bound(passes, nll, u, name):
    return TemperatureFit(float(np.exp(-u)), nll, passes.likelihood(u)[0], name)


def _newton(passes, u, known, low, high, tolerance):
    """Newton in `u = log beta`; returns the minimiser and the NLL there.

    The last step is taken without another pass: at a step `s` the error left
    is of the order `s^2`, and the second-order value of NLL is exact to
    `s^3`.
    """
    lower, upper = low - 1.0, high + 1.0
    while True:
        nll, slope, curvature = known or passes.likelihood(u)
        known = None
        if (u == low and slope >= 0) or (u == high and slope <= 0):
            return u, nll
        if slope > 0:
            upper = u
        else:
            lower = u
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


class _Passes:
    """Passes over the logits; remembers what the first one found.

    Attributes:
        shortfall: `mean(max_k z_k - z_y)`; 0 if every prediction is right.
        excess: `mean(mean_k z_k - z_y)`; >= 0 if no better than chance.
        spread: the largest `max_k z_k - min_k z_k`.
    """

    def __init__(self, logits, labels, weight, smoothing=0.0):
        n, num_classes = logits.shape
        self.logits = logits
        weight = np.ones(n) if weight is None else np.asarray(weight, float)
        self.weight = weight / weight.sum()
        self.largest = np.empty(n, logits.dtype)
        self.margin = np.empty(n)  # z_y - max_k z_k
        self.below = np.empty(n)  # mean_k z_k - max_k z_k
        self.spread = 0.0
        rows = max(1, BLOCK // num_classes)
        self.slices = [slice(i, i + rows) for i in range(0, n, rows)]
        self._scan(labels)
        if smoothing:
            self.margin *= 1 - smoothing
            self.margin += smoothing * self.below
        self.shortfall = float(-self.weight @ self.margin)
        self.excess = float(self.weight @ (self.below - self.margin))

    def _scan(self, labels):
        def scan(rows):
            z = self.logits[rows]
            largest = z.max(axis=1)
            if not np.isfinite(largest).all():
                raise ValueError(
                    "Logits must be finite, or minus infinity for a class "
                    "that is ruled out. Received: NaN or infinity in rows "
                    f"{rows.start} to {rows.start + len(z) - 1}. Look for "
                    "overflow in the network, or leave these samples out."
                )
            self.largest[rows] = largest
            chosen = z[np.arange(len(z)), labels[rows]]
            self.margin[rows] = chosen.astype(float) - largest
            mean = z.mean(axis=1, dtype=float)
            self.below[rows] = np.maximum(mean - largest, LOWEST)
            return float((largest - z.min(axis=1)).max())

        self.spread = max(threads().map(scan, self.slices))
        self.ruled_out = not np.isfinite(self.spread)

    def likelihood(self, u):
        """NLL and its first two derivatives in `u = log beta`."""
        beta = np.exp(u)

        def moments(rows):
            d = self.logits[rows] - self.largest[rows, None]
            if self.ruled_out:
                # Such a class adds exp(-inf) = 0, and not 0 * inf.
                np.maximum(d, LOWEST, out=d)
            e = np.multiply(d, d.dtype.type(beta))
            np.exp(e, out=e)
            s0 = e.sum(axis=1).astype(float)
            m1 = np.einsum("ij,ij->i", e, d) / s0
            np.multiply(e, d, out=e)
            m2 = np.einsum("ij,ij->i", e, d) / s0
            w, margin = self.weight[rows], self.margin[rows]
            return np.array(
                [
                    w @ (np.log(s0) - beta * margin),
                    w @ (m1 - margin),
                    w @ (m2 - m1**2),
                ]
            )

        nll, first, second = sum(threads().map(moments, self.slices))
        slope = beta * first
        return float(nll), float(slope), float(slope + beta**2 * second)


@functools.cache
def threads():
    """The pool that passes over logits share."""
    # NumPy releases the interpreter lock inside its loops.
    return concurrent.futures.ThreadPoolExecutor(
        max_workers=min(8, os.cpu_count() or 1)
    )
