"""Temperatures of several sigmoid units, near each other where samples are few.

The probability of label `k` is `sigmoid(exp(u_k) z_k)`, with `u = -log T`, and

    u_k ~ N(m, t^2)

around an `m` of which nothing is known before. With `t = 0` all labels share
one temperature. For each width `t` the most likely `u` is found; the result is
their mean, by the evidence of each width. A prior of 1/2 is on `t = 0`, and the
rest half-normal over the widths, as for the scales of classes
(`layers/SHRINKING.md`).
"""

import dataclasses

import numpy as np

from keras_calib.inputs.arrays import sigmoid
from keras_calib.solvers.blocks import TINY64
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.deviations import WIDTHS
from keras_calib.solvers.dispersion import add_by_group
from keras_calib.solvers.evidence import PLAIN
from keras_calib.solvers.evidence import SCALE_WIDTH
from keras_calib.solvers.laplace import mix
from keras_calib.solvers.newton import newton
from keras_calib.solvers.temperature import HIGH
from keras_calib.solvers.temperature import LOW

# Of `u`, where a fit ends, and at most in one step.
TOLERANCE, LONGEST = 1e-6, 1.0


@dataclasses.dataclass(frozen=True)
class RelatedTemperatures:
    """What `fit_related` found.

    Attributes:
        temperatures: `(num_labels,)`.
        shared: the temperature of all labels together.
        probability: posterior probability that it is that of each.
        width: posterior mean of `t`.
        dispersion: see `fit_related`.
    """

    temperatures: np.ndarray
    shared: float
    probability: float
    width: float
    dispersion: float

    def to_dict(self):
        """What a record holds beside the temperatures."""
        return {
            "shared_temperature": self.shared,
            "shared_temperature_probability": self.probability,
            "temperature_width": self.width,
            "dispersion": self.dispersion,
        }


def fit_related(logits, labels, weights, group=None):
    """Temperatures of labels, averaged over how far they differ.

    Rows of a group may be wrong together, and unequal weights leave fewer that
    count: the loss is divided by the dispersion, the squares of the residuals,
    added up in each group first, over their variance.

    Args:
        logits: `(n, num_labels)`; any value where the weight is 0.
        labels: 0 or 1, `(n, num_labels)`.
        weights: `(n, num_labels)`. Those of each label above 0 have their
            number as their sum.
        group: `None`, or numbers from 0, `(n,)`.

    Returns:
        `RelatedTemperatures`, or `None` where one temperature for all labels
        has no optimum.
    """
    problem = _Problem(logits, labels, weights)
    pooled = problem.minimize(np.zeros(logits.shape[1]))
    loss, _, information = problem.moments(pooled)
    if not (LOW < pooled[0] < HIGH and information.sum() > 0):
        return None
    free = problem.minimize(pooled, WIDTHS[-1])
    dispersion = problem.dispersion(free, group)
    total = information.sum() / dispersion
    log_evidence, fits = [], [pooled]
    for width in WIDTHS:
        u = problem.minimize(fits[-1], width, dispersion)
        at_u, _, information = problem.moments(u)
        # I_k and I_k / (1 + t^2 I_k), in nats of what samples are worth.
        information = information / dispersion
        shrunk = information / (1 + width**2 * information)
        log_evidence.append(
            (loss.sum() - at_u.sum()) / dispersion
            - np.square(u - u.mean()).sum() / (2 * width**2)
            - np.log1p(width**2 * information).sum() / 2
            - np.log(max(shrunk.sum(), TINY64) / total) / 2
        )
        fits.append(u)
    log_prior = -0.5 * (WIDTHS / SCALE_WIDTH) ** 2
    share, _ = mix(np.array(log_evidence), log_prior, 0.0, PLAIN)
    return RelatedTemperatures(
        np.exp(-(share @ np.array([*fits[1:], pooled]))),
        float(np.exp(-pooled[0])),
        float(share[-1]),
        float(share[:-1] @ WIDTHS),
        dispersion,
    )


class _Problem:
    """The summed losses of all labels, by `u`."""

    def __init__(self, logits, labels, weights):
        self.data = logits, labels, weights
        self.blocks = row_blocks(*logits.shape)
        self._last = None, None

    def moments(self, u):
        """Loss, slope and information of each label, `(3, num_labels)`.

        sum w (log(1 + exp(s)) - y s),  sum w (p - y) s,
        sum w p (1 - p) s^2,    s = exp(u) z

        Those of the last `u` are kept.
        """
        if self._last[0] is not None and np.array_equal(u, self._last[0]):
            return self._last[1]
        found = np.zeros((3, len(u)))
        for rows in self.blocks:
            s, y, w = self._of(rows, u)
            # One exponential for the loss and for p.
            e = np.exp(-np.abs(s))
            p = np.where(s >= 0, 1.0, e) / (1 + e)
            found[0] += (w * (np.log1p(e) + np.maximum(s, 0) - y * s)).sum(0)
            w *= s
            found[1] += (w * (p - y)).sum(axis=0)
            found[2] += (w * s * (p * (1 - p))).sum(axis=0)
        self._last = u, found
        return found

    def minimize(self, start, width=None, dispersion=1.0):
        """The most likely `u` for a width; of equal ones with `None`."""

        def evaluate(u):
            return penalized(u, self.moments(u), width, dispersion)

        def find_step(u, slope):
            information = self.moments(u)[2]
            step = _newton_step(slope, information, width, dispersion)
            step *= min(1.0, LONGEST / max(np.abs(step).max(), TINY64))
            step = np.clip(u - step, LOW, HIGH) - u
            return None if np.abs(step).max() < TOLERANCE else step

        return newton(evaluate, find_step, start).parameters

    def dispersion(self, u, group):
        """Squares of residuals over their variance, at least 1."""
        squares, sums = 0.0, None
        if group is not None:
            sums = np.zeros((int(group.max()) + 1, len(u)))
        for rows in self.blocks:
            s, y, w = self._of(rows, u)
            residuals = w * (sigmoid(s) - y) * s
            if sums is None:
                squares += float(np.square(residuals).sum())
            else:
                add_by_group(sums, group[rows], residuals)
        if sums is not None:
            squares = float(np.square(sums).sum())
        variance = self.moments(u)[2].sum()
        return max(1.0, float(squares / max(variance, TINY64)))

    def _of(self, rows, u):
        logits, labels, weights = self.data
        w = np.array(weights[rows], "float64")
        s = np.where(w > 0, logits[rows], 0.0) * np.exp(u)
        return s, np.where(w > 0, labels[rows], 0), w


def penalized(u, moments, width, dispersion):
    """The loss with the prior of `u`, and its slope."""
    loss, slope, _ = moments
    if width is None:
        return loss.sum(), slope
    away, strength = u - u.mean(), dispersion / width**2
    return loss.sum() + strength * (away @ away) / 2, slope + strength * away


def _newton_step(slope, information, width, dispersion):
    if width is None:
        total = max(information.sum(), TINY64)
        return np.full(len(slope), slope.sum() / total)
    # The penalty of the distance to the mean joins all labels.
    strength = dispersion / width**2
    ones = 1 / (information + strength)
    joined = strength / len(slope)
    step = slope * ones
    return step + ones * (
        joined * step.sum() / max(1 - joined * ones.sum(), TINY64)
    )
