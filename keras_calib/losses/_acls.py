"""Adaptive and conditional label smoothing (ACLS)."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import is_one_of
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_number
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.inputs.tensors import pick
from keras_calib.inputs.tensors import row_min
from keras_calib.losses._base import PenalizedLoss
from keras_calib.losses._margin_label_smoothing import check_margin


def acls(
    labels: ArrayLike,
    logits: ArrayLike,
    *,
    margin: float = 10.0,
    positive_weight: float = 0.1,
    negative_weight: float = 0.01,
    reference: str = "zero",
    negatives: str = "mean",
    adaptive: bool = True,
    conditional: bool = True,
    stop_gradient: bool | None = None,
) -> Tensor:
    """The ACLS regularizer, one value per sample.

    With the predicted class `y`, and constants marked by `sg`:

        positive = relu(z_y - r - margin)^2,  r = 0 or sg(min_k z_k)
        negative = mean over j != y of relu(sg(z_y) - z_j - margin)^2
        positive_weight * positive + negative_weight * negative

    With `r = min_k z_k` and a sum for the mean this is eq. 13 of the paper. Its
    relu is the condition of eq. 11 (smooth only beyond the margin), its square
    the adaptive smoothing of eq. 10, and eq. 12 is half of its gradient, with
    the constants of `sg`.

    Paper and released code differ in `r`. The paper measures from the smallest
    logit, and its gradient (eq. 12) holds that logit constant: nothing then
    keeps all logits from falling together, and training diverges, as
    `examples/acls_stability.py` shows. The released code measures from zero,
    which anchors the logits; the published results presumably come from it, so
    it is the default. With the paper's `r`, the default is the gradient of eq.
    13 itself, `stop_gradient=False`, which trains. What is measured from zero
    is the positive term alone: without it (`positive_weight=0`) the negative
    term lifts all logits together until training diverges (Table A of the paper
    has such a case, too). With `stop_gradient=False` nothing lifts them.

    Args:
        labels: class ids, shape `(...)`, or one-hot, `(..., num_classes)`.
            Read for their shape only: the regularizer acts on the prediction.
        logits: scores before softmax, shape `(..., num_classes)`.
        margin: float >= 0, the distance between logits that costs nothing.
        positive_weight: float, `lambda_1` of the paper.
        negative_weight: float, `lambda_2` of the paper.
        reference: what `r` is: `"zero"` (the released code; the value depends
            on a constant added to all logits) or `"min"`, the smallest logit
            (the paper).
        negatives: `"mean"` over the other classes (the released code, to which
            the published `lambda_2` belongs) or `"sum"` (eq. 13 to the
            letter).
        adaptive: square the distances, so that the smoothing grows with them.
            `False` is the paper's ablation "CR only".
        conditional: smooth only beyond the margin. `False` is "AR only": every
            distance is pulled to the margin.
        stop_gradient: bool, whether to hold constant what `sg` marks.
            Defaults to `True` for `reference="zero"` (the released code) and
            to `False` for `"min"`; `True` with `"min"` is eq. 12.

    Returns:
        One value per sample, shape `(...)`.

    Raises:
        ValueError: if an argument is out of its range, or shapes do not fit.

    Example:
        >>> import keras_calib as kc
        >>> value = kc.losses.acls([0], [[3.0, 0.0, 1.0]], margin=1.0)
        >>> round(float(value[0]), 4)
        0.425

    Reference:
        Park et al., "ACLS: Adaptive and Conditional Label Smoothing for
        Network Calibration", ICCV 2023, eqs. 10 to 13; Tables 5 and 6 for the
        ablations.
    """
    _check(margin, reference, negatives, adaptive, conditional, stop_gradient)
    require_number(
        positive_weight=positive_weight, negative_weight=negative_weight
    )
    rows = as_rows(labels, logits)
    value = _acls(
        rows,
        margin=margin,
        positive_weight=positive_weight,
        negative_weight=negative_weight,
        reference=reference,
        negatives=negatives,
        adaptive=adaptive,
        conditional=conditional,
        stop_gradient=stop_gradient,
    )
    return rows.restore(value)


def _acls(
    rows,
    *,
    margin,
    positive_weight,
    negative_weight,
    reference,
    negatives,
    adaptive,
    conditional,
    stop_gradient,
):
    """Eq. 13 per row; `y` is the predicted class, and `sg` holds constant.

    positive_weight * smooth(z_y - r - margin)
    + negative_weight * mean_(j != y) smooth(sg(z_y) - z_j - margin)
    """
    if stop_gradient is None:
        stop_gradient = reference == "zero"
    sg = ops.stop_gradient if stop_gradient else ops.convert_to_tensor

    def smooth(distance):
        if conditional:  # eq. 11; without it the ablation "AR only"
            distance = ops.relu(distance)
        # The slope of the square is eq. 10; without it "CR only".
        return ops.square(distance) if adaptive else distance

    z, y = rows.logits, rows.predicted
    z_y = pick(z, y)
    r = sg(row_min(z)) if reference == "min" else 0.0
    positive = smooth(z_y - r - margin)
    distances = smooth(sg(z_y)[:, None] - z - margin)
    if not conditional:
        # The prediction's distance to itself, which the condition makes 0.
        itself = ops.one_hot(y, rows.num_classes, dtype="bool")
        distances = ops.where(itself, 0.0, distances)
    negative = ops.sum(distances, axis=-1)
    if negatives == "mean":
        negative = negative / (rows.num_classes - 1)
    return positive_weight * positive + negative_weight * negative


def _check(margin, reference, negatives, adaptive, conditional, stop_gradient):
    check_margin(margin)
    require(
        is_one_of(reference, ("min", "zero")),
        '`reference` must be "min" (the paper) or "zero" (the released code).',
        'The default is "zero".',
        reference=reference,
    )
    require(
        is_one_of(negatives, ("mean", "sum")),
        '`negatives` must be "mean" or "sum" over the other classes.',
        'The default is "mean".',
        negatives=negatives,
    )
    require_flags(adaptive=adaptive, conditional=conditional)
    require_flags(none=True, stop_gradient=stop_gradient)
    require(
        adaptive or conditional,
        "`adaptive=False, conditional=False` is neither of the two ideas of "
        "ACLS.",
        "Switch off one of them, or use `LabelSmoothing`.",
        adaptive=adaptive,
        conditional=conditional,
    )


@keras.saving.register_keras_serializable(package="keras_calib")
class ACLS(PenalizedLoss):
    """Primary loss plus `weight` times the ACLS regularizer (see `acls`).

    Args:
        margin: float >= 0. The authors use 10, and 6 for CIFAR-10.
        positive_weight: float, `lambda_1` of the paper; with 0 see `acls`.
        negative_weight: float, `lambda_2` of the paper.
        reference: `"zero"` (the released code) or `"min"` (the paper). See
            `acls`.
        negatives: `"mean"` (the released code) or `"sum"` (eq. 13).
        adaptive: `False` for the ablation "CR only".
        conditional: `False` for the ablation "AR only".
        stop_gradient: whether the smallest logit and, in the negative term,
            the largest are constants in the gradient. Defaults to `True` for
            `reference="zero"` and to `False` for `"min"`.
        primary: the loss to regularize; see `PenalizedLoss`.
        weight: float, multiplies both weights.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `reduction`, `name`,
            `dtype`, as in Keras.

    Call arguments:
        y_true: class ids, `(...)` or `(..., 1)`, or one-hot rows, `(...,
            num_classes)`.
        y_pred: probabilities, or logits if `from_logits`, `(...,
            num_classes)`; `(..., 1)` for one sigmoid unit.

    Raises:
        ValueError: if an argument is out of its range; when called, if the
            reference is `"zero"` and the logits are out of reach.

    Example:
        >>> import keras, keras_calib as kc
        >>> model = keras.Sequential([keras.layers.Dense(10)])
        >>> model.compile(loss=kc.losses.ACLS(margin=6.0, from_logits=True))

    Reference:
        Park et al., "ACLS: Adaptive and Conditional Label Smoothing for
        Network Calibration", ICCV 2023, eqs. 10 to 13.
    """

    def __init__(
        self,
        *,
        margin: float = 10.0,
        positive_weight: float = 0.1,
        negative_weight: float = 0.01,
        reference: str = "zero",
        negatives: str = "mean",
        adaptive: bool = True,
        conditional: bool = True,
        stop_gradient: bool | None = None,
        primary: keras.losses.Loss | str | None = "cross_entropy",
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(primary=primary, weight=weight, **kwargs)
        _check(
            margin, reference, negatives, adaptive, conditional, stop_gradient
        )
        require_number(
            positive_weight=positive_weight, negative_weight=negative_weight
        )
        self.keep(
            margin=margin,
            positive_weight=positive_weight,
            negative_weight=negative_weight,
            reference=reference,
            negatives=negatives,
            adaptive=adaptive,
            conditional=conditional,
            stop_gradient=stop_gradient,
        )

    def penalty(self, rows: Rows) -> Tensor:
        require(
            self.reference == "min" or rows.own_logits,
            '`ACLS(reference="zero")` measures from a logit of zero, and '
            "probabilities do not tell where zero was.",
            "End the model without softmax and pass `from_logits=True`, or "
            'use `reference="min"`.',
            from_logits=self.from_logits,
        )
        return _acls(rows, **self.arguments)
