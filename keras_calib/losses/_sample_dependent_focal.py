"""Focal loss whose gamma depends on the probability of the label (FLSD)."""

import itertools
from collections.abc import Sequence
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
from keras_calib.losses._focal import focal_terms


def sample_dependent_focal_loss(
    labels: ArrayLike,
    logits: ArrayLike,
    *,
    thresholds: Sequence[float] = (0.2,),
    gammas: Sequence[float] = (5.0, 3.0),
) -> Tensor:
    """`-(1 - p_y)^gamma(p_y) log p_y` per sample, gamma a step function.

    Args:
        labels: class ids, shape `(...)`, or one-hot or soft labels `t`, shape
            `(..., num_classes)`, which give `-sum_k t_k (1 - p_k)^gamma(p_k)
            log p_k`.
        logits: scores before softmax, shape `(..., num_classes)`.
        thresholds: probabilities at which gamma changes, increasing, in
            `(0, 1)`. A probability at the threshold belongs above it.
        gammas: floats >= 0, one more than thresholds. The defaults are
            FLSD-53; the authors' code calls `(0.2, 0.5)` with `(5, 3, 2)`
            FLSD-52.

    Returns:
        One loss per sample, in nats, shape `(...)`. Gamma is a constant in its
        gradient.

    Raises:
        ValueError: if thresholds or gammas are out of range or do not fit.

    Example:
        >>> import keras_calib as kc
        >>> value = kc.losses.sample_dependent_focal_loss(
        ...     [2], [[2.0, 0.5, -1.0]]
        ... )
        >>> round(float(value[0]), 4)
        2.6551

    Reference:
        Mukhoti et al., NeurIPS 2020, arXiv:2002.09437, Section 4. The step is
        at the probability of the label; the ACLS supplement (eq. 1) writes
        that of the prediction.
    """
    _check(thresholds, gammas)
    rows = as_rows(labels, logits)
    return rows.restore(_sample_dependent_focal(rows, thresholds, gammas))


def _sample_dependent_focal(rows, thresholds, gammas):
    def gamma(log_p):
        p = ops.exp(log_p)
        value = ops.full_like(p, gammas[-1])
        for threshold, below in reversed(
            list(zip(thresholds, gammas[:-1], strict=True))
        ):
            value = ops.where(p < threshold, below, value)
        return value

    return focal_terms(rows, gamma)


def _check(thresholds, gammas):
    require(
        are_numbers(thresholds)
        and all(a < b for a, b in itertools.pairwise([0.0, *thresholds, 1.0])),
        "`thresholds` are probabilities between 0 and 1, each above the last.",
        "The default is (0.2,).",
        thresholds=thresholds,
    )
    require(
        are_numbers(gammas)
        and len(gammas) == len(thresholds) + 1
        and min(gammas) >= 0,
        "`gammas` are powers >= 0, one for each side of each threshold: one "
        "more than `thresholds`.",
        "The default is thresholds=(0.2,), gammas=(5.0, 3.0).",
        thresholds=thresholds,
        gammas=gammas,
    )


@keras.saving.register_keras_serializable(package="keras_calib")
class SampleDependentFocalLoss(ClassificationLoss):
    """`sample_dependent_focal_loss` for `compile` (FLSD-53 by default).

    Args:
        thresholds: probabilities of the label at which gamma changes.
        gammas: floats >= 0, one more than thresholds.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `reduction`, `name`,
            `dtype`, as in Keras.

    Call arguments:
        y_true: class ids, `(...)` or `(..., 1)`, or one-hot rows, `(...,
            num_classes)`.
        y_pred: probabilities, or logits if `from_logits`, `(...,
            num_classes)`; `(..., 1)` for one sigmoid unit.

    Raises:
        ValueError: if thresholds or gammas are out of range or do not fit.

    Example:
        >>> import keras, keras_calib as kc
        >>> model = keras.Sequential([keras.layers.Dense(10)])
        >>> loss = kc.losses.SampleDependentFocalLoss(from_logits=True)
        >>> model.compile(loss=loss)

    Reference:
        Mukhoti et al., "Calibrating Deep Neural Networks using Focal Loss",
        NeurIPS 2020, arXiv:2002.09437.
    """

    def __init__(
        self,
        *,
        thresholds: Sequence[float] = (0.2,),
        gammas: Sequence[float] = (5.0, 3.0),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check(thresholds, gammas)
        self.keep(thresholds=tuple(thresholds), gammas=tuple(gammas))

    def terms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return _sample_dependent_focal(rows, **self.arguments), 0.0
