"""Squared errors as losses: on probabilities (Brier), and on logits."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import are_numbers
from keras_calib.inputs.arguments import require
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.losses._base import ClassificationLoss


def brier_loss(labels: ArrayLike, logits: ArrayLike) -> Tensor:
    """`sum_k (p_k - q_k)^2` per sample, `q` the one-hot label.

    Args:
        labels: class ids, shape `(...)`, or one-hot or soft labels, shape
            `(..., num_classes)`.
        logits: scores before softmax, shape `(..., num_classes)`.

    Returns:
        One loss per sample, in `[0, 2]`, shape `(...)`.

    Raises:
        ValueError: if shapes do not fit.

    Example:
        >>> import keras_calib as kc
        >>> value = kc.losses.brier_loss([0], [[2.0, 0.5, -1.0]])
        >>> round(float(value[0]), 4)
        0.0782

    Reference:
        Brier, 1950; as a training loss Mukhoti et al., NeurIPS 2020. Karandikar
        et al., NeurIPS 2021, have an MSE that they do not define: this, or
        `squared_logit_loss`.
    """
    rows = as_rows(labels, logits)
    return rows.restore(_brier(rows))


def _brier(rows):
    return ops.sum(ops.square(rows.probabilities - rows.soft_labels), axis=-1)


@keras.saving.register_keras_serializable(package="keras_calib")
class BrierLoss(ClassificationLoss):
    """`brier_loss` for `compile`: the sum over classes, not their mean.

    Args:
        **kwargs: `from_logits`, `axis`, `ignore_class`, `reduction`, `name`,
            `dtype`, as in Keras.

    Call arguments:
        y_true: class ids, `(...)` or `(..., 1)`, or one-hot rows, `(...,
            num_classes)`.
        y_pred: probabilities, or logits if `from_logits`, `(...,
            num_classes)`; `(..., 1)` for one sigmoid unit.

    Raises:
        ValueError: when called, if shapes, labels or predictions do not fit.

    Example:
        >>> import keras, keras_calib as kc
        >>> model = keras.Sequential([keras.layers.Dense(10)])
        >>> model.compile(loss=kc.losses.BrierLoss(from_logits=True))

    Reference:
        Brier, 1950; Mukhoti et al., NeurIPS 2020, arXiv:2002.09437.
    """

    def terms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return _brier(rows), 0.0


def squared_logit_loss(
    labels: ArrayLike,
    logits: ArrayLike,
    *,
    label_weight: float = 1.0,
    label_value: float = 1.0,
) -> Tensor:
    """`(label_weight (z_y - label_value)^2 + sum_j z_j^2) / C`, `j != y`.

    Args:
        labels: class ids, shape `(...)`, or one-hot, `(..., num_classes)`.
            A soft label counts as its largest entry.
        logits: outputs of the network, shape `(..., num_classes)`; no softmax
            is taken.
        label_weight: float > 0, weight of the label's own output.
        label_value: float > 0, where that output should be.

    Returns:
        One loss per sample, shape `(...)`.

    Raises:
        ValueError: if an argument is not positive, or shapes do not fit.

    Example:
        >>> import keras_calib as kc
        >>> value = kc.losses.squared_logit_loss([0], [[2.0, 0.5, -1.0]])
        >>> round(float(value[0]), 4)
        0.75

    Reference:
        Hui and Belkin, "Evaluation of Neural Architectures Trained with Square
        Loss vs Cross-Entropy", ICLR 2021.
    """
    _check(label_weight, label_value)
    rows = as_rows(labels, logits)
    return rows.restore(_squared_logits(rows, label_weight, label_value))


def _squared_logits(rows, label_weight, label_value):
    is_label = rows.one_hot
    weights = 1.0 + (label_weight - 1.0) * is_label
    errors = ops.square(rows.logits - label_value * is_label)
    return ops.sum(weights * errors, axis=-1) / rows.num_classes


def _check(label_weight, label_value):
    require(
        are_numbers([label_weight, label_value])
        and label_weight > 0
        and label_value > 0,
        "`label_weight` and `label_value` must be positive.",
        "Both are 1 for few classes and grow with their number.",
        label_weight=label_weight,
        label_value=label_value,
    )


@keras.saving.register_keras_serializable(package="keras_calib")
class SquaredLogitLoss(ClassificationLoss):
    """`squared_logit_loss` for `compile`: the square loss without softmax.

    **Outputs are no logits of a softmax.** With `label_weight` and
    `label_value` of 1 the loss is least where output `k` is the probability of
    class `k`, so that outputs lie near 0 and 1. A softmax of them is far
    underconfident: with outputs in [0, 1] no confidence is above
    `e / (e + C - 1)`, 0.23 for ten classes, however well the network is
    trained. Predicted classes are right as they are. For probabilities,
    calibrate (`kc.calibrate`: the temperature is far below 1), or divide the
    outputs, cut at 0, by their sum. A calibration error of the softmax says
    nothing. The mean over `C` classes makes gradients small, a fifth of those
    of cross-entropy for ten classes: tune the learning rate.

    Args:
        label_weight: float > 0, `k` of the paper: weight of the label's own
            output.
        label_value: float > 0, `M` of the paper: where it should be.
        **kwargs: `from_logits`, which must be `True` here, `axis`,
            `ignore_class`, `reduction`, `name`, `dtype`, as in Keras.

    Call arguments:
        y_true: class ids, `(...)` or `(..., 1)`, or one-hot rows, `(...,
            num_classes)`.
        y_pred: outputs without an activation, `(..., num_classes)`.

    Raises:
        ValueError: if an argument is not positive; when called, if the logits
            are out of reach.

    Example:
        >>> import keras, keras_calib as kc
        >>> model = keras.Sequential([keras.layers.Dense(10)])
        >>> model.compile(loss=kc.losses.SquaredLogitLoss(from_logits=True))

    Reference:
        Hui and Belkin, ICLR 2021, arXiv:2006.07322.
    """

    def __init__(
        self,
        *,
        label_weight: float = 1.0,
        label_value: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check(label_weight, label_value)
        self.keep(label_weight=label_weight, label_value=label_value)

    def terms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        require(
            rows.own_logits,
            "`SquaredLogitLoss` acts on logits, and probabilities do not tell "
            "where zero was.",
            "End the model without softmax and pass `from_logits=True`, or "
            "use `BrierLoss`.",
            from_logits=self.from_logits,
        )
        return _squared_logits(rows, **self.arguments), 0.0
