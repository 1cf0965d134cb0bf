"""Class-wise loss scaling (SCTL): each class's loss weighted by its size.

The total `sum_k (1 + w_k) L_k` is a weighted mean of the samples' losses, so a
map is fitted with sample weights: fit with the weights of the current class
losses, compute the class losses again, until the weights stay.
"""

import dataclasses
import warnings

import numpy as np

from keras_calib._warning import warn
from keras_calib._warning import warn_again
from keras_calib.inputs.arguments import require_one_of
from keras_calib.solvers.class_weights import ROUNDS
from keras_calib.solvers.class_weights import SPANS
from keras_calib.solvers.class_weights import ClassLosses
from keras_calib.solvers.class_weights import Mixing
from keras_calib.solvers.class_weights import class_weights
from keras_calib.solvers.class_weights import first_slope_and_span

NORMALIZATIONS = ("normal", "min_max", "centered")
# Class losses come from float32 scores.
TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassLossScaling:
    """How the losses of classes are weighted in `adapt`.

    Attributes:
        normalization: `"normal"`, `"min_max"` or `"centered"`.
        reduction: a class loss is the `"mean"` over the class's samples, as in
            the authors' code, or the `"sum"`, as in the paper's equation 3.
            With the mean, a rare class has the same weight as a frequent one,
            so that it also balances classes.

    Raises:
        ValueError: if `normalization` or `reduction` is unknown.

    Warns:
        UserWarning: in `adapt`, if the fitted B is above 1.5.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> logits = 3 * rng.normal(size=(500, 3))
        >>> labels = (logits / 2 + rng.gumbel(size=(500, 3))).argmax(axis=1)
        >>> scaling = kc.layers.ClassLossScaling(reduction="sum")
        >>> layer = kc.layers.TemperatureScaling()
        >>> layer = layer.adapt(logits, labels, class_loss_scaling=scaling)
        >>> len(layer.record["class_weights"])
        3

    Reference:
        Jung et al., "Scaling of Class-wise Training Losses for Post-hoc
        Calibration", ICML 2023, equations 3 to 8.
    """

    normalization: str = "normal"
    reduction: str = "mean"

    def __post_init__(self) -> None:
        require_one_of(NORMALIZATIONS, normalization=self.normalization)
        require_one_of(("mean", "sum"), reduction=self.reduction)


def resolve_scaling(scaling, layer, objective):
    """The argument `class_loss_scaling` of `adapt` as an object or `None`.

    Raises:
        ValueError: if the scaling is unknown, or the layer or its objective
            has no class losses.
    """
    if scaling is None:
        return None
    if not isinstance(scaling, ClassLossScaling):
        require_one_of((*NORMALIZATIONS, None), class_loss_scaling=scaling)
        scaling = ClassLossScaling(normalization=scaling)
    if layer.fitted_by != "likelihood":
        raise ValueError(
            "Class-wise loss scaling is for layers that minimize a mean of "
            f"losses, and {type(layer).__name__} does not. Received: "
            f"class_loss_scaling={scaling.normalization!r}."
        )
    if not objective.per_sample:
        raise ValueError(
            "Class-wise loss scaling needs an objective with one loss per "
            f'sample. Received: objective="{objective.name}".'
        )
    return scaling


def solve_with_scaling(
    layer, logits, labels, weights, objective, scaling, scores
):
    """`layer.solve` under class-wise loss scaling.

    Args:
        layer: `CalibrationLayer`.
        logits: `(n, num_classes)`.
        labels: int class ids, `(n,)`.
        weights: sample weights, `(n,)`.
        objective: `Objective` with one loss per sample.
        scaling: `ClassLossScaling`.
        scores: `scores(found, rows)` returns the layer's output on a slice of
            rows, with the weights `found` that `solve` returned.

    Returns:
        weights, record: as `solve` returns them. The record contains the
            change of the class weights from the last round to the next: 0,
            unless the layer makes all class losses equal.

    Reference:
        Jung et al., "Scaling of Class-wise Training Losses for Post-hoc
        Calibration", ICML 2023, equations 3 to 8.
    """
    losses = ClassLosses(
        labels, weights, logits.shape[1], objective, scaling.reduction
    )
    before = losses.of(lambda rows: logits[rows])
    slope, span = first_slope_and_span(
        losses, logits, before, scaling.normalization
    )
    w = class_weights(before, slope, span, scaling.normalization)
    mixing = Mixing()
    for _ in range(sum(ROUNDS)):
        used = w
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            found, record = layer.solve(
                logits, labels, losses.sample_weight(w), objective
            )
        current = losses.of(lambda rows, found=found: scores(found, rows))
        new = class_weights(current, slope, span, scaling.normalization)
        change = float(np.abs(new - w).max())
        if change < TOLERANCE:
            break
        w = mixing.next(w, new - w)
    if span > SPANS[0]:
        warn(
            f"Class-wise loss scaling found B = {span:.3g}. Accurate networks "
            f"have {SPANS[0]}, and on networks that lie above it the ECE can "
            "rise. Compare it on held-out data with `class_loss_scaling=None`."
        )
    warn_again(raised)
    if objective.is_plain_nll:
        # `solve` returned the NLL under the class weights.
        record = {
            **record,
            "nll_before": losses.mean(before),
            "nll_after": losses.mean(current),
        }
    if scaling.reduction != "mean":
        record = {**record, "class_loss_reduction": scaling.reduction}
    return found, {
        **record,
        "scaling_slope": slope,
        "scaling_span": span,
        "class_weights": [1 + float(value) for value in used],
        "class_weights_change": change,
    }
