"""Dual focal loss: the gap to the next class sets the weight of a sample."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.inputs.tensors import pick
from keras_calib.inputs.tensors import predicted_class
from keras_calib.losses._base import ClassificationLoss
from keras_calib.losses._focal import check_gamma
from keras_calib.losses._focal import exponentials_of_others
from keras_calib.losses._focal import log_of_share


def dual_focal_loss(
    labels: ArrayLike, logits: ArrayLike, *, gamma: float = 5.0
) -> Tensor:
    """`-(1 - p_y + p_m)^gamma log p_y` per sample.

    `p_m` is the largest probability strictly below that of the label, 0 if
    there is none. Gradients flow through `p_m`; the choice of `m` is held
    constant.

    Args:
        labels: class ids, shape `(...)`, or one-hot, `(..., num_classes)`.
            A soft label counts as its largest entry.
        logits: scores before softmax, shape `(..., num_classes)`.
        gamma: float >= 0; 0 is cross-entropy.

    Returns:
        One loss per sample, in nats, shape `(...)`.

    Raises:
        ValueError: if `gamma` is negative, or shapes do not fit.

    Example:
        >>> import keras_calib as kc
        >>> logits = [[2.0, 0.5, -1.0]]
        >>> value = kc.losses.dual_focal_loss([0], logits, gamma=2.0)
        >>> round(float(value[0]), 4)
        0.0366

    Reference:
        Tao, Dong and Xu, "Dual Focal Loss for Calibration", ICML 2023,
        arXiv:2305.13665, eq. 5.
    """
    check_gamma(gamma)
    rows = as_rows(labels, logits)
    return rows.restore(_dual_focal(rows, gamma))


def _dual_focal(rows, gamma):
    log_p = rows.log_probability(rows.labels)
    return -ops.exp(gamma * _log_gap(rows)) * log_p


def _log_gap(rows):
    """`log(1 - p_y + p_m)` per row, exact also where `p_y` rounds to 1.

    The exponentials of all classes are summed with that of `m` in the place
    of the label's, so that nothing is subtracted.
    """
    z = rows.gaps
    label = pick(z, rows.labels)[:, None]
    below = ops.where(z < label, ops.stop_gradient(z), LOWEST)
    m = predicted_class(below)
    following = ops.where(pick(below, m) > LOWEST, pick(z, m), LOWEST)
    others = exponentials_of_others(rows, rows.labels)
    return log_of_share(rows, others + ops.exp(following))


@keras.saving.register_keras_serializable(package="keras_calib")
class DualFocalLoss(ClassificationLoss):
    """`dual_focal_loss` for `compile`.

    Args:
        gamma: float >= 0; 0 is cross-entropy. The authors choose it for each
            network by validation; 5 is a common choice for CIFAR.
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
        >>> model.compile(loss=kc.losses.DualFocalLoss(from_logits=True))

    Reference:
        Tao, Dong and Xu, ICML 2023, arXiv:2305.13665.
    """

    def __init__(self, *, gamma: float = 5.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_gamma(gamma)
        self.keep(gamma=gamma)

    def terms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return _dual_focal(rows, self.gamma), 0.0
