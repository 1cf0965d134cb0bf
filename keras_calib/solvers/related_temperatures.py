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
    pooled = problem.minimize(np.zeros(logits.shape[1]), None, 1.0)
    if not LOW < pooled[0] < HIGH:
        return None
    free = problem.minimize(pooled, WIDTHS[-1], 1.0)
    dispersion = problem.dispersion(free, group)
    loss, _, information = problem.moments(pooled)
    total = information.sum() / dispersion
    if not total > 0:
        return None
    log_evidence, fits = [0.0], [pooled]
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
            s, y, w, p = self._of(rows, u)
            found[0] += (w * (np.logaddexp(0.0, s) - y * s)).sum(axis=0)
            found[1] += (w * (p - y) * s).sum(axis=0)
            found[2] += (w * p * (1 - p) * s * s).sum(axis=0)
        return found

    def minimize(self, u, width, dispersion):
        """The most likely `u` for a width; of equal ones with `None`."""
        value, slope, information = self._penalized(u, width, dispersion)
        for _ in range(MOST_STEPS):
            if width is None:
                total = max(information.sum(), TINY64)
                step = np.full(len(u), slope.sum() / total)
            else:
                # The penalty of the distance to the mean joins all labels.
                strength = dispersion / width**2
                diagonal = information + strength
                step, ones = slope / diagonal, 1 / diagonal
                joined = strength / len(u)
                left = max(1 - joined * ones.sum(), TINY64)
                step += ones * (joined * step.sum() / left)
            step *= min(1.0, LONGEST / max(np.abs(step).max(), TINY64))
            while True:
                new = np.clip(u - step, LOW, HIGH)
                found = self._penalized(new, width, dispersion)
                moved = np.abs(new - u).max()
                if found[0] <= value or moved < TOLERANCE:
                    break
                step = step / 2
            if found[0] > value:
                break
            u, (value, slope, information) = new, found
            if moved < TOLERANCE:
                break
        return u

    def _penalized(self, u, width, dispersion):
        loss, slope, information = self.moments(u)
        value = loss.sum()
        if width is not None:
            away = u - u.mean()
            strength = dispersion / width**2
            value += strength * (away @ away) / 2
            slope = slope + strength * away
        return value, slope, information

    def dispersion(self, u, group):
        """Squares of residuals over their variance, at least 1."""
        squares, sums = 0.0, None
        if group is not None:
            sums = np.zeros((int(group.max()) + 1, len(u)))
        for rows in self.blocks:
            s, y, w, p = self._of(rows, u)
            residuals = w * (p - y) * s
            if sums is None:
                squares += float(np.square(residuals).sum())
            else:
                np.add.at(sums, group[rows], residuals)
        if sums is not None:
            squares = float(np.square(sums).sum())
        variance = self.moments(u)[2].sum()
        return max(1.0, float(squares / max(variance, TINY64)))

    def _of(self, rows, u):
        logits, labels, weights = self.data
        w = np.asarray(weights[rows], "float64")
        z = np.where(w > 0, logits[rows], 0.0)
        s = z * np.exp(u)
        return s, np.where(w > 0, labels[rows], 0), w, sigmoid(s)
