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
from keras_calib.solvers.temperature import HIGH
from keras_calib.solvers.temperature import LOW

WIDTHS = 0.025 * 2.0 ** np.arange(7)
# Scale of the half-normal prior of the width, and the prior of a width of 0.
SCALE, PLAIN = 0.5, 0.5
MOST_STEPS = 50
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
    pooled, moments = problem.minimize(np.zeros(logits.shape[1]), None, 1.0)
    loss, _, information = moments
    if not (LOW < pooled[0] < HIGH and information.sum() > 0):
        return None
    u, free = problem.minimize(pooled, WIDTHS[-1], 1.0, moments)
    dispersion = problem.dispersion(u, free, group)
    total = information.sum() / dispersion
    log_evidence, fits = [0.0], [pooled]
    for width in WIDTHS:
        u, moments = problem.minimize(fits[-1], width, dispersion, moments)
        at_u, _, information = moments
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
    prior = np.exp(-((WIDTHS / SCALE) ** 2) / 2)
    prior = np.append(PLAIN, (1 - PLAIN) * prior / prior.sum())
    share = np.array(log_evidence) + np.log(prior)
    share = np.exp(share - share.max())
    share /= share.sum()
    return RelatedTemperatures(
        np.exp(-(share @ np.array(fits))),
        float(np.exp(-pooled[0])),
        float(share[0]),
        float(share[1:] @ WIDTHS),
        dispersion,
    )


class _Problem:
    """The summed losses of all labels, by `u`."""

    def __init__(self, logits, labels, weights):
        self.data = logits, labels, weights
        self.blocks = row_blocks(*logits.shape)

    def moments(self, u):
        """Loss, slope and information of each label, `(3, num_labels)`.

        sum w (log(1 + exp(s)) - y s),  sum w (p - y) s,
        sum w p (1 - p) s^2,    s = exp(u) z
        """
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
        return found

    def minimize(self, u, width, dispersion, moments=None):
        """The most likely `u` for a width; of equal ones with `None`.

        Returns:
            u: `(num_labels,)`.
            moments: there.
        """
        moments = self.moments(u) if moments is None else moments
        value, slope = penalized(u, moments, width, dispersion)
        for _ in range(MOST_STEPS):
            step = _newton_step(slope, moments[2], width, dispersion)
            step *= min(1.0, LONGEST / max(np.abs(step).max(), TINY64))
            while True:
                new = np.clip(u - step, LOW, HIGH)
                at_new = self.moments(new)
                found = penalized(new, at_new, width, dispersion)
                moved = np.abs(new - u).max()
                if found[0] <= value or moved < TOLERANCE:
                    break
                step = step / 2
            if found[0] > value:
                break
            u, moments, (value, slope) = new, at_new, found
            if moved < TOLERANCE:
                break
        return u, moments

    def dispersion(self, u, moments, group):
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
                np.add.at(sums, group[rows], residuals)
        if sums is not None:
            squares = float(np.square(sums).sum())
        return max(1.0, float(squares / max(moments[2].sum(), TINY64)))

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
