"""Class-wise loss scaling (SCTL): every class's loss weighed by its size.

The total `sum_k (1 + w_k) L_k` is a weighted mean of the samples' losses. So a
map needs to know nothing of it: fit with the weights of the current class
losses, compute the class losses again, until the weights stay.
"""

import dataclasses
import warnings

import numpy as np

NORMALIZATIONS = ("normal", "min_max", "centered")
# Elements of one block of scores, as float64.
BLOCK = 1 << 20
# Class losses come from float32 scores.
TOLERANCE = 1e-6
# Rounds of mixing, then rounds of averaging.
ROUNDS = (16, 24)


@dataclasses.dataclass(frozen=True)
class ClassLossScaling:
    """How classes are weighed.

    Attributes:
        normalization: `"normal"`, `"min_max"` or `"centered"`.
        reduction: a class loss is the `"mean"` over the class's samples, as in
            the authors' code, or the `"sum"`, as in the paper's equation 3.
            With the mean, classes count equally however rare they are.
    """

    normalization: str = "normal"
    reduction: str = "mean"

    def __post_init__(self):
        if self.normalization not in NORMALIZATIONS:
            raise ValueError(
                f"`class_loss_scaling` must be one of {NORMALIZATIONS} or "
                f"None. Received: {self.normalization!r}."
            )
        if self.reduction not in ("mean", "sum"):
            raise ValueError(
                '`reduction` must be "mean" or "sum". '
                f"Received: reduction={self.reduction!r}."
            )


def resolve_scaling(scaling, layer, objective):
    """The scaling that `adapt` was given, as an object or `None`.

    Raises:
        ValueError: if there is no such scaling, or the map or its objective
            has no class losses.
    """
    if scaling is None:
        return None
    if not isinstance(scaling, ClassLossScaling):
        scaling = ClassLossScaling(scaling)
    if not layer.parametric:
        raise ValueError(
            "Class-wise loss scaling is for maps that minimise a mean of "
            f"losses, and {type(layer).__name__} does not. Received: "
            f"class_loss_scaling={scaling.normalization!r}."
        )
    if not objective.per_sample:
        raise ValueError(
            "Class-wise loss scaling needs an objective with one loss per "
            f'sample. Received: objective="{objective.name}".'
        )
    return scaling


def fit_with_scaling(layer, logits, labels, weight, objective, scaling, scores):
    """Fit a map under class-wise loss scaling.

    Args:
        layer: the `CalibrationLayer`; its `fit` is called with weights.
        logits: `(n, num_classes)`.
        labels: int class ids, `(n,)`.
        weight: `None` or sample weights, `(n,)`.
        objective: an `Objective` with one loss per sample.
        scaling: `ClassLossScaling`.
        scores: `scores(weights, rows)`, the map's output on a slice of rows.

    Returns:
        weights, record: as `fit` returns them.

    The record tells by how much the class weights still change from the last
    round to the next: 0, unless the map makes all class losses equal.

    Reference:
        Jung et al., "Scaling of Class-wise Training Losses for Post-hoc
        Calibration", ICML 2023, equations 3 to 8.
    """
    losses = _ClassLosses(labels, weight, logits.shape[1], objective, scaling)
    before = losses.of(lambda rows: logits[rows])
    slope, span = _slope_and_span(losses, logits, before, scaling)
    factor = class_weights(before, slope, span, scaling.normalization)
    mixing = _Mixing()
    for _ in range(sum(ROUNDS)):
        used = factor
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            weights, record = layer.fit(
                logits, labels, losses.sample_weight(factor), objective
            )
        current = losses.of(lambda rows, weights=weights: scores(weights, rows))
        new = class_weights(current, slope, span, scaling.normalization)
        change = float(np.abs(new - factor).max())
        if change < TOLERANCE:
            break
        factor = mixing.next(factor, new - factor)
    for found in raised:
        warnings.warn_explicit(
            found.message, found.category, found.filename, found.lineno
        )
    if objective.is_plain_nll:
        # The fit knows the NLL under its weights only.
        record = {
            **record,
            "nll_before": losses.mean(before),
            "nll_after": losses.mean(current),
        }
    if scaling.reduction != "mean":
        record = {**record, "class_loss_reduction": scaling.reduction}
    return weights, {
        **record,
        "scaling_slope": slope,
        "scaling_span": span,
        "class_weights": [1 + float(value) for value in used],
        "class_weights_change": change,
    }


def class_weights(losses, slope, span, normalization):
    """`w_k = B / (1 + exp(-n_k / A)) - B / 2` of normalised class losses.

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

    `"normal"` is `(L - mean) / std` (sample deviation, as in the authors'
    code), `"min_max"` is `(L - min) / (max - min)`, and `"centered"` is
    `(L - mean) / (max - min)`. Equal losses give 0.
    """
    seen = losses[~np.isnan(losses)]
    if len(seen) < 2:
        return losses * 0.0
    spread = seen.max() - seen.min()
    if normalization == "normal":
        spread = seen.std(ddof=1)
    if spread <= 1e-12 * np.abs(seen).max():
        return losses * 0.0
    start = seen.min() if normalization == "min_max" else seen.mean()
    return (losses - start) / spread


def fit_slope_and_span(before, after, normalization, num_classes):
    """`A` and `B` from the class losses before and after a first step.

    Equation 6 of the paper, over the box of the authors' code. For a given A
    it is a least-squares problem in B, so a fine grid of A is exact.
    """
    used = ~(np.isnan(before) | np.isnan(after))
    before, after = before[used], after[used]
    scaled = normalize(after, normalization)
    target = before - after.mean()
    slopes = np.linspace(0.1, max(0.1, np.log(num_classes) / 2), 2001)
    u = 1 / (1 + np.exp(-scaled / slopes[:, None])) - 0.5
    u *= after - before
    square = (u**2).sum(axis=1)
    spans = (u @ target) / np.where(square > 0, square, 1.0)
    spans = np.clip(spans, 1.5, 2.0)
    errors = ((target - spans[:, None] * u) ** 2).sum(axis=1)
    best = int(errors.argmin())
    return float(slopes[best]), float(spans[best])


def _slope_and_span(losses, logits, before, scaling):
    """A and B from the authors' first iteration: a short step of T from 1."""

    def at(temperature):
        return losses.of(lambda rows: logits[rows] / temperature)

    h = 1e-4
    slopes = (at(1 + h) - at(1 - h)) / (2 * h)
    factor = 1 + class_weights(before, 1.0, 1.5, scaling.normalization)
    slope = float(np.nansum(factor * slopes))
    step = 0.02 * np.clip(slope, -1.0, 1.0)
    return fit_slope_and_span(
        before, at(1 - step), scaling.normalization, len(before)
    )


class _Mixing:
    """The next guess at a fixed point: Anderson's mixing, then averaging.

    A class that weighs more has a smaller loss, and so less weight in the next
    round: plain repetition swings. A map with a bias per class can even make
    all class losses equal, where their order, and so the weights, jump: there
    is no fixed point then, and weights averaged over the rounds hold the
    losses equal.
    """

    def __init__(self, rate=0.5, memory=6):
        self.rate = rate
        self.memory = memory
        self.round = 0
        self.points = []
        self.residuals = []

    def next(self, point, residual):
        self.round += 1
        late = self.round - ROUNDS[0]
        if late >= 0:
            return point + residual / (late + 3)
        self.points = [*self.points, point][-self.memory :]
        self.residuals = [*self.residuals, residual][-self.memory :]
        new = point + self.rate * residual
        if len(self.points) > 1:
            points = np.diff(self.points, axis=0).T
            residuals = np.diff(self.residuals, axis=0).T
            shares = np.linalg.lstsq(residuals, residual, rcond=1e-8)[0]
            new = new - (points + self.rate * residuals) @ shares
        # Within what the formula can give.
        return np.clip(new, -0.99, 0.99)


class _ClassLosses:
    """Class losses of a map's scores, in blocks, as float64."""

    def __init__(self, labels, weight, num_classes, objective, scaling):
        self.labels = labels
        self.objective = objective
        self.num_classes = num_classes
        count = len(labels)
        self.weight = np.ones(count)
        if weight is not None:
            # Rounds without a fixed point multiply rounding errors; to these
            # digits a constant factor changes nothing.
            self.weight = weight.astype("float32").astype("float64")
        mass = np.bincount(labels, self.weight, num_classes)
        # A class loss divided by `mass` is what the reduction says; one
        # multiplied by `share` is a part of the mean over samples.
        self.share = mass / mass.sum()
        if scaling.reduction == "sum":
            self.share = np.full(num_classes, 1 / mass.sum())
            mass = (mass > 0).astype(float)
        self.mass = np.where(mass > 0, mass, np.nan)
        rows = max(1, BLOCK // num_classes)
        self.slices = [slice(i, i + rows) for i in range(0, count, rows)]

    def of(self, scores):
        """One loss per class; NaN for a class without samples."""
        total = np.zeros(self.num_classes)
        for rows in self.slices:
            labels = self.labels[rows]
            block = np.asarray(scores(rows), "float64")
            values = self.objective.losses(block, labels)
            values = values * self.weight[rows]
            total += np.bincount(labels, values, self.num_classes)
        return total / self.mass

    def mean(self, losses):
        """The mean over samples, from class losses."""
        return float(np.nansum(self.share * losses))

    def sample_weight(self, factor):
        weight = self.weight * ((1 + factor) / self.mass)[self.labels]
        return weight * (self.weight.sum() / weight.sum())
