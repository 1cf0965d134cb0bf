"""Inverse focal loss: more weight on what the network already gets right."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.losses._base import ClassificationLoss
from keras_calib.losses._focal import check_gamma


def inverse_focal_loss(
    labels: ArrayLike, logits: ArrayLike, *, gamma: float = 2.0
) -> Tensor:
    """`-(1 + p_y)^gamma log p_y` per sample.

    Args:
        labels: class ids, shape `(...)`, or one-hot or soft labels `t`, shape
            `(..., num_classes)`, which give `-sum_k t_k (1 + p_k)^gamma
            log p_k`.
        logits: scores before softmax, shape `(..., num_classes)`.
        gamma: float >= 0; 0 is cross-entropy.

    Returns:
        One loss per sample, in nats, shape `(...)`.

    Raises:
        ValueError: if `gamma` is negative, or shapes do not fit.

    Example:
        >>> import keras_calib as kc
        >>> value = kc.losses.inverse_focal_loss([0], [[2.0, 0.5, -1.0]])
        >>> round(float(value[0]), 4)
        0.7694

    Reference:
        Wang, Feng and Zhang, "Rethinking Calibration of Deep Neural Networks:
        Do Not Be Afraid of Overconfidence", NeurIPS 2021.
    """
    check_gamma(gamma)
    rows = as_rows(labels, logits)
    return rows.restore(_inverse_focal(rows, gamma))


def _inverse_focal(rows, gamma):
    if rows.targets is None:
        return _term(rows.log_probability(rows.labels), gamma)
    return ops.sum(rows.targets * _term(rows.log_probabilities, gamma), axis=-1)


def _term(log_p, gamma):
    return -ops.power(1.0 + ops.exp(log_p), gamma) * log_p


@keras.saving.register_keras_serializable(package="keras_calib")
class InverseFocalLoss(ClassificationLoss):
    """`inverse_focal_loss` for `compile`: integer, one-hot or soft labels.

    It makes a network more confident, for post-hoc scaling to undo.

    Args:
        gamma: float >= 0; 0 is cross-entropy. Published runs use 1 to 3.5.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `reduction`, `name`,
            `dtype`, as in Keras.

    Call arguments:
        y_true: class ids, `(...)` or `(..., 1)`, or one-hot rows, `(...,
            num_classes)`.
        y_pred: probabilities, or logits if `from_logits`, `(...,
            num_classes)`; `(..., 1)` for one sigmoid unit.

    Raises:
        ValueError: if `gamma` is negative.

    Example:
        >>> import keras, keras_calib as kc
        >>> model = keras.Sequential([keras.layers.Dense(10)])
        >>> model.compile(loss=kc.losses.InverseFocalLoss(from_logits=True))

    Reference:
        Wang, Feng and Zhang, NeurIPS 2021.
    """

    def __init__(self, *, gamma: float = 2.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_gamma(gamma)
        self.keep(gamma=gamma)

    def terms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return _inverse_focal(rows, self.gamma), 0.0
