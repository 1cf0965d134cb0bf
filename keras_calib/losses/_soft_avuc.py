"""Soft AvUC (S-AvUC): accuracy versus uncertainty without a hard threshold."""

import math
from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import require
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.losses._avuc import avu_loss
from keras_calib.losses._base import PenalizedLoss
from keras_calib.ops.confidence import confidence_and_correct
from keras_calib.ops.confidence import entropy

# Entropies this close to 0 and to log C count as there: a finite logit.
CLIP = 1e-6


def soft_avuc(
    labels: ArrayLike,
    logits: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    kappa: float = 0.3,
    temperature: float = 0.1,
) -> Tensor:
    """Soft accuracy versus uncertainty, one number for the batch.

    How uncertain a sample is, is a number in `[0, 1]`:

        t = sigmoid((logit(H / log C) - logit(kappa)) / temperature)
        AC = sum of (1 - t) (1 - tanh H)   AU = sum of t tanh H   (correct)
        IC = sum of (1 - t) (1 - tanh H)   IU = sum of t tanh H   (wrong)
        log(1 + (AU + IC) / (AC + IU))

    The denominator is at least 1e-5; see `avuc`.

    Args:
        labels: class ids, shape `(...)`, or one-hot, `(..., num_classes)`.
            A soft label counts as its largest entry.
        logits: scores before softmax, shape `(..., num_classes)`.
        sample_weight: `None`, or one weight per sample, shape `(...)`.
        kappa: float in `(0, 1)`, the uncertainty at the middle, as a share of
            `log C` (the `threshold` of `avuc` is in nats).
        temperature: float > 0, how soft the step is.

    Returns:
        A scalar >= 0.

    Raises:
        ValueError: if an argument is out of range, or shapes do not fit.

    Example:
        >>> import keras_calib as kc
        >>> logits = [[2.0, 0.5, -1.0], [0.3, 1.2, -0.7]]
        >>> round(float(kc.losses.soft_avuc([0, 0], logits)), 4)
        0.584

    Reference:
        Karandikar et al., "Soft Calibration Objectives for Neural Networks",
        NeurIPS 2021, arXiv:2108.00106, eqs. 15 and 16.
    """
    _check(kappa, temperature)
    rows = as_rows(labels, logits, sample_weight)
    return rows.seen(_soft_avuc(rows, kappa, temperature))


def _soft_avuc(rows, kappa, temperature):
    """`avu_loss` with the uncertainty `t` of a row, from its entropy `h`.

    t = sigmoid((logit(h / log C) - logit(kappa)) / temperature)
    """
    _, correct = confidence_and_correct(rows)
    h = entropy(rows)
    uncertainty = ops.clip(h / math.log(rows.num_classes), CLIP, 1.0 - CLIP)
    logit = ops.log(uncertainty) - ops.log1p(-uncertainty)
    step = (logit - math.log(kappa / (1.0 - kappa))) / temperature
    t, one_minus_t = ops.sigmoid(step), ops.sigmoid(-step)
    return avu_loss(rows.relative_weights, correct, t, one_minus_t, h)


def _check(kappa, temperature):
    require(
        is_number(kappa) and 0 < kappa < 1,
        "`kappa` is a share of the largest entropy, between 0 and 1.",
        "The default is 0.3; tune it first.",
        kappa=kappa,
    )
    require(
        is_number(temperature) and temperature > 0,
        "`temperature` must be positive.",
        "The default is 0.1; larger is softer.",
        temperature=temperature,
    )


@keras.saving.register_keras_serializable(package="keras_calib")
class SoftAvUC(PenalizedLoss):
    """Primary loss plus `weight` times the `soft_avuc` of the batch.

    The paper tunes `kappa`, `temperature` and `weight`, in this order, and
    prints no values: take the defaults as a start.

    Args:
        kappa: float in `(0, 1)`, share of `log C` at which a sample is half
            uncertain.
        temperature: float > 0, how soft the step is.
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
        ValueError: if an argument is out of range.

    Example:
        >>> import keras, keras_calib as kc
        >>> model = keras.Sequential([keras.layers.Dense(10)])
        >>> model.compile(loss=kc.losses.SoftAvUC(from_logits=True))

    Reference:
        Karandikar et al., NeurIPS 2021, arXiv:2108.00106.
    """

    batch_statistic = True

    def __init__(
        self,
        *,
        kappa: float = 0.3,
        temperature: float = 0.1,
        weight: float = 1.0,
        primary: keras.losses.Loss | str | None = "cross_entropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(primary=primary, weight=weight, **kwargs)
        _check(kappa, temperature)
        self.keep(kappa=kappa, temperature=temperature)

    def penalty(self, rows: Rows) -> Tensor:
        return _soft_avuc(rows, **self.arguments)
