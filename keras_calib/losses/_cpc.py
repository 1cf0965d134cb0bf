"""Calibration by pairwise constraints (CPC)."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import are_numbers
from keras_calib.inputs.arguments import require
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.inputs.tensors import pick
from keras_calib.losses._base import PenalizedLoss
from keras_calib.ops.class_pairs import mean_over_pairs_of_softplus


def cpc(
    labels: ArrayLike,
    logits: ArrayLike,
    *,
    one_vs_one_weight: float = 0.1,
    exclusion_weight: float = 1.0,
) -> Tensor:
    """Pairwise constraints on the classes of each sample.

    With `r_jk = p_j / (p_j + p_k) = sigmoid(z_j - z_k)`:

        one versus one:   mean over k != y of -log r_yk
        exclusion:        mean over k != l, both != y, of -log r_kl, times
                          1/2, which is least where all of them are equal
        one_vs_one_weight * one versus one + exclusion_weight * exclusion

    Time is `O(C^2)` per sample, memory `O(C)`.

    Args:
        labels: class ids, shape `(...)`, or one-hot, `(..., num_classes)`.
            A soft label counts as its largest entry.
        logits: scores before softmax, shape `(..., num_classes)`.
        one_vs_one_weight: float, weight of the first term.
        exclusion_weight: float, weight of the second term; with two classes
            there is none.

    Returns:
        One penalty per sample, in nats, shape `(...)`.

    Raises:
        ValueError: if a weight is negative, or shapes do not fit.

    Example:
        >>> import keras_calib as kc
        >>> value = kc.losses.cpc([0], [[2.0, 0.5, -1.0]])
        >>> round(float(value[0]), 4)
        0.4882

    Reference:
        Cheng and Vasconcelos, "Calibrating Deep Neural Networks by Pairwise
        Constraints", CVPR 2022; gradients in the ACLS supplement, eqs. 5 and
        6. Both terms are means, as in public code, to which the default
        weights belong; the supplement writes sums.
    """
    _check(one_vs_one_weight, exclusion_weight)
    rows = as_rows(labels, logits)
    return rows.restore(_cpc(rows, one_vs_one_weight, exclusion_weight))


def _cpc(rows, one_vs_one_weight, exclusion_weight):
    """`-log r_jk = softplus(z_k - z_j)`, where `r_jk = p_j / (p_j + p_k)`.

    one_vs_one_weight * mean_(k != y) -log r_yk
    + exclusion_weight / 2 * mean_(k != l, both != y) -log r_kl
    """
    z = rows.logits
    label = pick(z, rows.labels)[:, None]
    index = ops.arange(rows.num_classes - 1, dtype="int32")
    # All classes except the label; those after it move down by one.
    others = ops.where(index < rows.labels[:, None], z[:, :-1], z[:, 1:])
    one_vs_one = ops.sum(ops.softplus(others - label), axis=-1)
    one_vs_one = one_vs_one / (rows.num_classes - 1)
    value = one_vs_one_weight * one_vs_one
    if rows.num_classes > 2 and exclusion_weight:
        exclusion = mean_over_pairs_of_softplus(others) / 2
        value = value + exclusion_weight * exclusion
    return value


def _check(one_vs_one_weight, exclusion_weight):
    require(
        are_numbers([one_vs_one_weight, exclusion_weight])
        and one_vs_one_weight >= 0
        and exclusion_weight >= 0,
        "The weights of the pairwise constraints cannot be negative.",
        "Use 0 to leave a term out.",
        one_vs_one_weight=one_vs_one_weight,
        exclusion_weight=exclusion_weight,
    )


@keras.saving.register_keras_serializable(package="keras_calib")
class CPC(PenalizedLoss):
    """Primary loss plus `weight` times `cpc`.

    Args:
        one_vs_one_weight: float, weight of "one versus one".
        exclusion_weight: float, weight of "binary exclusion".
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
        ValueError: if one of the first two weights is negative.

    Example:
        >>> import keras, keras_calib as kc
        >>> model = keras.Sequential([keras.layers.Dense(10)])
        >>> model.compile(loss=kc.losses.CPC(from_logits=True))

    Reference:
        Cheng and Vasconcelos, CVPR 2022.
    """

    def __init__(
        self,
        *,
        one_vs_one_weight: float = 0.1,
        exclusion_weight: float = 1.0,
        primary: keras.losses.Loss | str | None = "cross_entropy",
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(primary=primary, weight=weight, **kwargs)
        _check(one_vs_one_weight, exclusion_weight)
        self.keep(
            one_vs_one_weight=one_vs_one_weight,
            exclusion_weight=exclusion_weight,
        )

    def penalty(self, rows: Rows) -> Tensor:
        return _cpc(rows, **self.arguments)
