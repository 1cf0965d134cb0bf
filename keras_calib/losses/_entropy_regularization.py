"""Entropy regularization (ER), also called confidence penalty (ECP).

It acts on every prediction. MEEP (Larrazabal et al., MICCAI 2023), the same for
wrong predictions only, is not in the package.
"""

from typing import Any

import keras

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.losses._base import PenalizedLoss
from keras_calib.ops.confidence import entropy


def entropy_regularization(labels: ArrayLike, logits: ArrayLike) -> Tensor:
    """`-H(p) = sum_k p_k log p_k` per sample: low where `p` is spread out.

    Args:
        labels: class ids, shape `(...)`, or one-hot, `(..., num_classes)`.
            Read for their shape only: the penalty does not depend on them.
        logits: scores before softmax, shape `(..., num_classes)`.

    Returns:
        One penalty per sample, in nats, in `[-log C, 0]`, shape `(...)`.

    Raises:
        ValueError: if shapes do not fit, or labels are out of range.

    Example:
        >>> import keras_calib as kc
        >>> value = kc.losses.entropy_regularization([0], [[2.0, 0.5, -1.0]])
        >>> round(float(value[0]), 4)
        -0.6216

    Reference:
        Pereyra et al., "Regularizing Neural Networks by Penalizing Confident
        Output Distributions", ICLR workshop 2017, arXiv:1701.06548, eq. 2.
    """
    rows = as_rows(labels, logits)
    return rows.restore(-entropy(rows))


@keras.saving.register_keras_serializable(package="keras_calib")
class EntropyRegularization(PenalizedLoss):
    """Primary loss minus `weight` times the entropy of the prediction.

    Args:
        weight: float, `beta` of the paper. The entropy is a sum over classes;
            code that takes their mean with weight `alpha` means
            `weight = alpha / num_classes`.
        primary: the loss to regularize; see `PenalizedLoss`.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `reduction`, `name`,
            `dtype`, as in Keras.

    Call arguments:
        y_true: class ids, `(...)` or `(..., 1)`, or one-hot rows, `(...,
            num_classes)`.
        y_pred: probabilities, or logits if `from_logits`, `(...,
            num_classes)`; `(..., 1)` for one sigmoid unit.

    Raises:
        ValueError: if `weight` is no number; when called, if shapes, labels or
            predictions do not fit.

    Example:
        >>> import keras, keras_calib as kc
        >>> model = keras.Sequential([keras.layers.Dense(10)])
        >>> loss = kc.losses.EntropyRegularization(from_logits=True)
        >>> model.compile(loss=loss)

    Reference:
        Pereyra et al., ICLR workshop 2017, arXiv:1701.06548.
    """

    def __init__(
        self,
        *,
        weight: float = 0.1,
        primary: keras.losses.Loss | str | None = "cross_entropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(primary=primary, weight=weight, **kwargs)

    def penalty(self, rows: Rows) -> Tensor:
        return -entropy(rows)
