"""Focal loss: less weight on what the network already gets right."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arrays import TINY
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.losses._base import ClassificationLoss


def focal_loss(
    labels: ArrayLike, logits: ArrayLike, *, gamma: float = 3.0
) -> Tensor:
    """`-(1 - p_y)^gamma log p_y` per sample.

    Args:
        labels: class ids, shape `(...)`, or one-hot or soft labels `t`, shape
            `(..., num_classes)`, which give `-sum_k t_k (1 - p_k)^gamma
            log p_k`.
        logits: scores before softmax, shape `(..., num_classes)`.
        gamma: float >= 0; 0 is cross-entropy.

    Returns:
        One loss per sample, in nats, shape `(...)`.

    Raises:
        ValueError: if `gamma` is negative, or shapes do not fit.

    Example:
        >>> import keras_calib as kc
        >>> value = kc.losses.focal_loss([0], [[2.0, 0.5, -1.0]], gamma=2.0)
        >>> round(float(value[0]), 4)
        0.0111

    Reference:
        Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017, eq. 4;
        for calibration Mukhoti et al., NeurIPS 2020, arXiv:2002.09437.
    """
    check_gamma(gamma)
    rows = as_rows(labels, logits)
    return rows.restore(focal_terms(rows, lambda log_p: gamma))


def focal_terms(rows: Rows, gamma) -> Tensor:
    """`-(1 - p_y)^gamma log p_y` per row, `gamma` a function of `log p_y`.

    Soft labels give `-sum_k t_k (1 - p_k)^gamma log p_k`.
    """
    if rows.targets is None:
        log_p = rows.log_probability(rows.labels)
        factor = ops.exp(gamma(log_p) * log_one_minus_p(rows, rows.labels))
        return -factor * log_p
    log_p = rows.log_probabilities
    factor = ops.exp(gamma(log_p) * log_one_minus_p_of_all(rows))
    return -ops.sum(rows.targets * factor * log_p, axis=-1)


def log_one_minus_p(rows: Rows, index) -> Tensor:
    """`log(1 - p_index)` per row, exact also where `p_index` rounds to 1."""
    return log_of_share(rows, exponentials_of_others(rows, index))


def exponentials_of_others(rows: Rows, index) -> Tensor:
    """Sum of `rows.exponentials` but for that of `index`, `(n,)`."""
    chosen = ops.one_hot(index, rows.num_classes, dtype="bool")
    return ops.sum(ops.where(chosen, 0.0, rows.exponentials), axis=-1)


def log_of_share(rows: Rows, part: Tensor) -> Tensor:
    """`log(part / sum of rows.exponentials)`; never -inf."""
    return ops.log(ops.where(part > TINY, part, TINY)) - rows.log_partition


def log_one_minus_p_of_all(rows: Rows) -> Tensor:
    """`log(1 - p_k)` for every class, exact also where `p_k` rounds to 1."""
    top = rows.predicted
    chosen = ops.one_hot(top, rows.num_classes, dtype="bool")
    # Only the largest probability can exceed 1/2.
    p = ops.exp(rows.log_probabilities)
    others = ops.log1p(-ops.where(chosen, 0.0, p))
    return ops.where(chosen, log_one_minus_p(rows, top)[:, None], others)


def check_gamma(gamma: float) -> None:
    """Refuse a negative `gamma`."""
    require(
        is_number(gamma) and gamma >= 0,
        "`gamma` is the power of a probability and cannot be negative.",
        "Use 0 for cross-entropy.",
        gamma=gamma,
    )


@keras.saving.register_keras_serializable(package="keras_calib")
class FocalLoss(ClassificationLoss):
    """`focal_loss` for `compile`: integer, one-hot or soft labels.

    Args:
        gamma: float >= 0; 0 is cross-entropy. 3 calibrates best on average in
            Mukhoti et al. (2020).
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
        >>> model.compile(loss=kc.losses.FocalLoss(gamma=3.0, from_logits=True))

    Reference:
        Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017, eq. 4;
        Mukhoti et al., NeurIPS 2020, arXiv:2002.09437.
    """

    def __init__(self, *, gamma: float = 3.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_gamma(gamma)
        self.keep(gamma=gamma)

    def terms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return focal_terms(rows, lambda log_p: self.gamma), 0.0
