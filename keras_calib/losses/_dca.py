"""Difference between confidence and accuracy (DCA)."""

from typing import Any

import keras

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.losses._base import PenalizedLoss
from keras_calib.ops.confidence import confidence_and_correct
from keras_calib.ops.subgradients import absolute


def dca(
    labels: ArrayLike, logits: ArrayLike, sample_weight: ArrayLike | None = None
) -> Tensor:
    """`| mean confidence - accuracy |`, one number for the batch.

    Args:
        labels: class ids, shape `(...)`, or one-hot, `(..., num_classes)`.
            A soft label counts as its largest entry.
        logits: scores before softmax, shape `(..., num_classes)`.
        sample_weight: `None`, or weights of both means, shape `(...)`.

    Returns:
        A scalar in `[0, 1]`.

    Raises:
        ValueError: if shapes do not fit, or labels are out of range.

    Example:
        >>> import keras_calib as kc
        >>> round(float(kc.losses.dca([0], [[2.0, 0.5, -1.0]])), 4)
        0.2144

    Reference:
        Liang et al., "Improved Trainable Calibration Method for Neural
        Networks on Medical Imaging Classification", BMVC 2020,
        arXiv:2009.04057, eq. 3.
    """
    rows = as_rows(labels, logits, sample_weight)
    return rows.seen(_dca(rows))


def _dca(rows):
    confidence, correct = confidence_and_correct(rows)
    return absolute(rows.mean(confidence - correct))


@keras.saving.register_keras_serializable(package="keras_calib")
class DCA(PenalizedLoss):
    """Primary loss plus `weight` times the `dca` of the batch.

    The default weight of the authors' code is 10, which cost small networks 8
    to 14 points of accuracy; the default here costs at most one there
    (`S-tuning.md` and `F-tuning.md` in `examples/results`).

    Args:
        weight: float, `beta` of the paper.
        primary: the loss to regularize; see `PenalizedLoss`.
        **kwargs: `across_replicas`, see `PenalizedLoss`; `from_logits`,
            `axis`, `ignore_class`, `reduction`, `name`, `dtype`, as in Keras.

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
        >>> model.compile(loss=kc.losses.DCA(from_logits=True))

    Reference:
        Liang et al., BMVC 2020, arXiv:2009.04057.
    """

    batch_statistic = True

    def __init__(
        self,
        *,
        weight: float = 3.0,
        primary: keras.losses.Loss | str | None = "cross_entropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(primary=primary, weight=weight, **kwargs)

    def penalty(self, rows: Rows) -> Tensor:
        return _dca(rows)
