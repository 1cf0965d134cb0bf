"""Class-wise loss scaling (SCTL): the weight of each class's loss.

The total `sum_k (1 + w_k) L_k` is a weighted sum of the samples' losses, and
the weights depend on the class losses `L_k` of the fitted map: a fixed point.

Reference:
    Jung et al., "Scaling of Class-wise Training Losses for Post-hoc
    Calibration", ICML 2023.
"""

import numpy as np

from keras_calib.solvers.blocks import TENSOR_BLOCK
from keras_calib.solvers.blocks import row_blocks

# Rounds of mixing, then rounds of averaging.
ROUNDS = (16, 24)
# The box of B in the authors' code.
SPANS = (1.5, 2.0)


def class_weights(losses, slope, span, normalization):
    """`w_k = B / (1 + exp(-n_k / A)) - B / 2`, equation 5 of the paper.

    `n_k` are the normalized class losses.

    Args:
        losses: one per class, NaN for a class without samples.
        slope: `A`.
        span: `B`; weights lie between `-B / 2` and `B / 2`.
        normalization: see `normalize`.

    Returns:
        One weight per class; 0 for a class without samples.
    """
    scaled = normalize(losses, normalization)
    weights = span / (1 + np.exp(-scaled / slope)) - span / 2
    return np.where(np.isnan(losses), 0.0, weights)


def normalize(losses, normalization):
    """Class losses relative to each other; a class without samples is NaN.

        "normal":    (L - mean) / std           equation 4
        "min_max":   (L - min) / (max - min)    equation 10
        "centered":  (L - mean) / (max - min)   equation 11

    Equal losses give 0. `std` divides by the number of losses minus 1, as in
    the authors' code; that of equation 4 divides by their number.
    """
    present = losses[~np.isnan(losses)]
    if len(present) < 2:
        return losses * 0.0
    spread = present.max() - present.min()
    if normalization == "normal":
        spread = present.std(ddof=1)
    if spread <= 1e-12 * np.abs(present).max():
        return losses * 0.0
    start = present.min() if normalization == "min_max" else present.mean()
    return (losses - start) / spread


def fit_slope_and_span(before, after, normalization, num_classes):
    """`A` and `B` from the class losses before and after a first step.

    Equation 6 of the paper, over the box of the authors' code: the least of

        sum_k (before_k - mean(after) - w_k (after_k - before_k))^2
        w_k = B (1 / (1 + exp(-n_k / A)) - 1 / 2)

    where `n_k` are the normalized losses `after`. For a given A it is a
    least-squares problem in B, so a fine grid of A is exact.

    Args:
        before: losses before the step, one per class; NaN without samples.
        after: losses after it.
        normalization: see `normalize`.
        num_classes: int; A is at most `log(num_classes) / 2`.

    Returns:
        `A` and `B`.
    """
    used = ~(np.isnan(before) | np.isnan(after))
    before, after = before[used], after[used]
    scaled = normalize(after, normalization)
    target = before - after.mean()
    slopes = np.linspace(0.1, max(0.1, np.log(num_classes) / 2), 2001)
    # Of each A the terms of the sum, but for B.
    terms = 1 / (1 + np.exp(-scaled / slopes[:, None])) - 0.5
    terms *= after - before
    square = (terms**2).sum(axis=1)
    spans = (terms @ target) / np.where(square > 0, square, 1.0)
    spans = np.clip(spans, *SPANS)
    errors = ((target - spans[:, None] * terms) ** 2).sum(axis=1)
    best = int(errors.argmin())
    return float(slopes[best]), float(spans[best])


def first_slope_and_span(losses, logits, before, normalization):
    """A and B from the authors' first iteration: a short step of T from 1.

    Args:
        losses: `ClassLosses`.
        logits: `(n, num_classes)`.
        before: the class losses of `logits`.
        normalization: see `normalize`.

    Returns:
        `A` and `B`.
    """

    def at(temperature):
        return losses.of(lambda rows: logits[rows] / temperature)

    h = 1e-4
    slopes = (at(1 + h) - at(1 - h)) / (2 * h)
    w = class_weights(before, 1.0, SPANS[0], normalization)
    step = 0.02 * np.clip(float(np.nansum((1 + w) * slopes)), -1.0, 1.0)
    return fit_slope_and_span(before, at(1 - step), normalization, len(before))


class Mixing:
    """The next guess at a fixed point: Anderson's mixing, then averaging.

    A class with a larger weight gets a smaller loss, and so less weight in the
    next round: plain repetition oscillates. A map with a bias per class can
    even make all class losses equal, where their order, and so the weights,
    jump: no fixed point exists then, and weights averaged over the rounds keep
    the losses equal.
    """

    def __init__(self, step_size=0.5, memory=6):
        self.step_size = step_size
        self.memory = memory
        self.round = 0
        self.points = []
        self.residuals = []

    def next(self, point, residual):
        """The next guess.

        Args:
            point: the last guess `x`.
            residual: `f(x) - x`, which is 0 at a fixed point.
        """
        self.round += 1
        late = self.round - ROUNDS[0]
        if late >= 0:
            return point + residual / (late + 3)
        self.points = [*self.points, point][-self.memory :]
        self.residuals = [*self.residuals, residual][-self.memory :]
        new = point + self.step_size * residual
        if len(self.points) > 1:
            points = np.diff(self.points, axis=0).T
            residuals = np.diff(self.residuals, axis=0).T
            factors = np.linalg.lstsq(residuals, residual, rcond=1e-8)[0]
            new = new - (points + self.step_size * residuals) @ factors
        # Within the range of `class_weights`.
        return np.clip(new, -0.99, 0.99)


class ClassLosses:
    """Class losses of a map's scores, in blocks, as float64.

    Args:
        labels: int class ids, `(n,)`.
        weights: sample weights, `(n,)`.
        num_classes: int.
        objective: `Objective` with one loss per sample.
        reduction: `"mean"` or `"sum"` over the samples of a class.
    """

    def __init__(self, labels, weights, num_classes, objective, reduction):
        self.labels = labels
        self.objective = objective
        self.num_classes = num_classes
        # Rounds without a fixed point amplify rounding errors; in float32 a
        # constant factor changes nothing.
        self.weights = weights.astype("float32").astype("float64")
        mass = np.bincount(labels, self.weights, num_classes)
        # The mean over all samples is sum_k fraction_k L_k.
        self.fraction = mass / mass.sum()
        if reduction == "sum":
            self.fraction = np.full(num_classes, 1 / mass.sum())
            mass = (mass > 0).astype(float)
        self.mass = np.where(mass > 0, mass, np.nan)
        self.blocks = row_blocks(len(labels), num_classes, TENSOR_BLOCK)

    def of(self, scores):
        """`L_k = sum_(i in k) w_i loss_i / mass_k`, equation 3 of the paper.

        `mass_k` is `sum_(i in k) w_i` for a mean over the class, and 1 for a
        sum; without samples it is NaN, and so is the loss.

        Args:
            scores: `scores(rows)` returns the scores of a slice of rows.
        """
        total = np.zeros(self.num_classes)
        for rows in self.blocks:
            labels = self.labels[rows]
            block = np.asarray(scores(rows), "float64")
            values = self.objective.losses(block, labels) * self.weights[rows]
            total += np.bincount(labels, values, self.num_classes)
        return total / self.mass

    def mean(self, losses):
        """The mean over samples, from class losses."""
        return float(np.nansum(self.fraction * losses))

    def sample_weight(self, w):
        """Sample weights whose mean loss is, but for a factor, the total.

        The total is `sum_k (1 + w_k) L_k`, equation 8 of the paper.
        """
        weights = self.weights * ((1 + w) / self.mass)[self.labels]
        return weights * (self.weights.sum() / weights.sum())
