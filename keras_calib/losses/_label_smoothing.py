"""Label smoothing: part of every label is spread over all classes."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import require
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.losses._base import ClassificationLoss
from keras_calib.losses._base import cross_entropy


def label_smoothing(
    labels: ArrayLike, logits: ArrayLike, *, smoothing: float = 0.05
) -> Tensor:
    """Cross-entropy with the label `(1 - smoothing) q + smoothing / C`.

    Args:
        labels: class ids, shape `(...)`, or one-hot or soft labels, shape
            `(..., num_classes)`, which are smoothed as they are.
        logits: scores before softmax, shape `(..., num_classes)`.
        smoothing: float in `[0, 1)`, the share spread over all classes, the
            label's own included, as in Keras and PyTorch. Code that puts
            `alpha / (C - 1)` on the other classes only means
            `smoothing = alpha C / (C - 1)`.

    Returns:
        One loss per sample, in nats, shape `(...)`.

    Raises:
        ValueError: if `smoothing` is out of range, or shapes do not fit.

    Example:
        >>> import keras_calib as kc
        >>> value = kc.losses.label_smoothing(
        ...     [0], [[2.0, 0.5, -1.0]], smoothing=0.1
        ... )
        >>> round(float(value[0]), 4)
        0.3913

    Reference:
        Szegedy et al., CVPR 2016, Section 7; for calibration Müller,
        Kornblith and Hinton, NeurIPS 2019; ACLS, eq. 4.
    """
    _check(smoothing)
    rows = as_rows(labels, logits)
    return rows.restore(_label_smoothing(rows, smoothing))


def _label_smoothing(rows, smoothing):
    """`-sum_k ((1 - smoothing) q_k + smoothing / C) log p_k` per row."""
    if smoothing == 0:  # 0 times infinity, where a class is ruled out
        return cross_entropy(rows)
    # -mean_k log p_k, where log p_k = gap_k - log_partition.
    mean_gap = ops.sum(rows.gaps, axis=-1) / rows.num_classes
    uniform = rows.log_partition - mean_gap
    return (1.0 - smoothing) * cross_entropy(rows) + smoothing * uniform


def _check(smoothing):
    require(
        is_number(smoothing) and 0 <= smoothing < 1,
        "`smoothing` is the share of a label that is spread over all classes.",
        "Use a number from 0 (plain cross-entropy) to below 1.",
        smoothing=smoothing,
    )


@keras.saving.register_keras_serializable(package="keras_calib")
class LabelSmoothing(ClassificationLoss):
    """`label_smoothing` for `compile`: integer, one-hot or soft labels.

    Args:
        smoothing: float in `[0, 1)`, the share spread over all classes.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `reduction`, `name`,
            `dtype`, as in Keras.

    Call arguments:
        y_true: class ids, `(...)` or `(..., 1)`, or one-hot rows, `(...,
            num_classes)`.
        y_pred: probabilities, or logits if `from_logits`, `(...,
            num_classes)`; `(..., 1)` for one sigmoid unit.

    Raises:
        ValueError: if `smoothing` is out of range.

    Example:
        >>> import keras, keras_calib as kc
        >>> model = keras.Sequential([keras.layers.Dense(10)])
        >>> model.compile(loss=kc.losses.LabelSmoothing(from_logits=True))

    Reference:
        Szegedy et al., CVPR 2016; Müller, Kornblith and Hinton, "When Does
        Label Smoothing Help?", NeurIPS 2019, arXiv:1906.02629.
    """

    def __init__(self, *, smoothing: float = 0.05, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _check(smoothing)
        self.keep(smoothing=smoothing)

    def terms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return _label_smoothing(rows, self.smoothing), 0.0
