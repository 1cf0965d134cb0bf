"""Margin-based label smoothing (MbLS): no logit far below the largest one."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.inputs.tensors import pick
from keras_calib.losses._base import PenalizedLoss


def margin_label_smoothing(
    labels: ArrayLike,
    logits: ArrayLike,
    *,
    margin: float = 10.0,
    stop_gradient_max: bool = False,
) -> Tensor:
    """`mean_k relu(max_j z_j - z_k - margin)` per sample.

    Args:
        labels: class ids, shape `(...)`, or one-hot, `(..., num_classes)`.
            Read for their shape only: the penalty does not depend on them.
        logits: scores before softmax, shape `(..., num_classes)`.
        margin: float >= 0, the distance between logits that costs nothing.
        stop_gradient_max: hold the largest logit constant, as the analysis of
            Park et al. (2023), supplement eq. 15, assumes. The authors' code
            of MbLS does not.

    Returns:
        One penalty per sample, shape `(...)`, in units of a logit.

    Raises:
        ValueError: if `margin` is negative, shapes do not fit, or labels are
            out of range.

    Example:
        >>> import keras_calib as kc
        >>> value = kc.losses.margin_label_smoothing(
        ...     [0], [[3.0, 0.0, 1.0]], margin=1.0
        ... )
        >>> round(float(value[0]), 4)
        1.0

    Reference:
        Liu et al., "The Devil is in the Margin", CVPR 2022, arXiv:2111.15430,
        eq. 4, with the mean over classes of the authors' code: the published
        weight 0.1 belongs to a mean.
    """
    check_margin(margin)
    require_flags(stop_gradient_max=stop_gradient_max)
    rows = as_rows(labels, logits)
    return rows.restore(
        _margin_label_smoothing(rows, margin, stop_gradient_max)
    )


def _margin_label_smoothing(rows, margin, stop_gradient_max):
    """Eq. 4 as a mean: `mean_k relu(max_j z_j - z_k - margin)` per row."""
    excess = ops.relu(-rows.gaps - margin)  # max_j z_j - z_k - margin
    penalty = ops.sum(excess, axis=-1)
    if not stop_gradient_max:
        # `gaps` hold the largest logit constant.
        penalty = penalty + _zero_with_slope_in_largest(rows, excess)
    return penalty / rows.num_classes


def _zero_with_slope_in_largest(rows, excess):
    """0 per row, with the derivative of the penalty in the largest logit.

    The derivative is how many gaps exceed the margin; through every gap it
    would cost another pass over the classes.
    """
    number = ops.sum(ops.sign(ops.stop_gradient(excess)), axis=-1)
    largest = pick(rows.logits, rows.predicted)
    return number * (largest - ops.stop_gradient(largest))


@keras.saving.register_keras_serializable(package="keras_calib")
class MarginLabelSmoothing(PenalizedLoss):
    """Primary loss plus `weight` times `margin_label_smoothing`.

    Args:
        margin: float >= 0, the distance between logits that costs nothing. The
            authors use 10, and 6 for CIFAR-10.
        weight: float, `alpha` in the authors' code.
        primary: the loss to regularize; see `PenalizedLoss`.
        stop_gradient_max: see `margin_label_smoothing`.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `reduction`, `name`,
            `dtype`, as in Keras.

    Call arguments:
        y_true: class ids, `(...)` or `(..., 1)`, or one-hot rows, `(...,
            num_classes)`.
        y_pred: probabilities, or logits if `from_logits`, `(...,
            num_classes)`; `(..., 1)` for one sigmoid unit.

    Raises:
        ValueError: if `margin` is negative.

    Example:
        >>> import keras, keras_calib as kc
        >>> model = keras.Sequential([keras.layers.Dense(10)])
        >>> model.compile(loss=kc.losses.MarginLabelSmoothing(from_logits=True))

    Reference:
        Liu et al., "The Devil is in the Margin", CVPR 2022, arXiv:2111.15430.
    """

    def __init__(
        self,
        *,
        margin: float = 10.0,
        weight: float = 0.1,
        primary: keras.losses.Loss | str | None = "cross_entropy",
        stop_gradient_max: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(primary=primary, weight=weight, **kwargs)
        check_margin(margin)
        require_flags(stop_gradient_max=stop_gradient_max)
        self.keep(margin=margin, stop_gradient_max=stop_gradient_max)

    def penalty(self, rows: Rows) -> Tensor:
        return _margin_label_smoothing(rows, **self.arguments)


def check_margin(margin: float) -> None:
    """Refuse a negative `margin`, and `True`, which no tensor subtracts."""
    require(
        is_number(margin) and margin >= 0 and not isinstance(margin, bool),
        "`margin` is a distance between logits and cannot be negative.",
        "Use 0 to penalize every gap.",
        margin=margin,
    )
