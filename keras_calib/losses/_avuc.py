"""Accuracy versus uncertainty calibration (AvUC), and AvUC-GS."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.losses._base import PenalizedLoss
from keras_calib.ops.confidence import confidence_and_correct
from keras_calib.ops.confidence import entropy


def avuc(
    labels: ArrayLike,
    logits: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    threshold: float = 1.0,
    stop_gradient: bool = False,
) -> Tensor:
    """Accuracy versus uncertainty, one number for the batch.

    A sample is certain where its entropy `H` is at most `threshold`. Accurate
    samples should be certain (AC), inaccurate ones uncertain (IU):

        AC = sum over accurate, certain samples of c (1 - tanh H)
        AU = sum over accurate, uncertain samples of c tanh H
        IC = sum over inaccurate, certain samples of (1 - c) (1 - tanh H)
        IU = sum over inaccurate, uncertain samples of (1 - c) tanh H
        log(1 + (AU + IC) / (AC + IU))

    The denominator is at least 1e-5, so that a batch without a sample as it
    should be has a finite value.

    Args:
        labels: class ids, shape `(...)`, or one-hot, `(..., num_classes)`.
            A soft label counts as its largest entry.
        logits: scores before softmax, shape `(..., num_classes)`.
        sample_weight: `None`, or one weight per sample, shape `(...)`.
        threshold: float >= 0, in nats. The authors take it from validation
            data: halfway between the mean entropy of correct and of wrong
            samples.
        stop_gradient: hold the confidence `c` constant: AvUC-GS.

    Returns:
        A scalar >= 0.

    Raises:
        ValueError: if `threshold` is negative, or shapes do not fit.

    Example:
        >>> import keras_calib as kc
        >>> logits = [[2.0, 0.5, -1.0], [0.3, 1.2, -0.7]]
        >>> round(float(kc.losses.avuc([0, 0], logits, threshold=0.5)), 4)
        1.0092

    Reference:
        Krishnan and Tickoo, "Improving Model Calibration with Accuracy versus
        Uncertainty Optimization", NeurIPS 2020, arXiv:2012.07923, eqs. 2 to 4;
        AvUC-GS: Karandikar et al., NeurIPS 2021, Appendix F.
    """
    _check(threshold, stop_gradient)
    rows = as_rows(labels, logits, sample_weight)
    return rows.seen(_avuc(rows, threshold, stop_gradient))


def _avuc(rows, threshold, stop_gradient):
    """`avu_loss`; a sample counts `w c` if it is correct, else `w (1 - c)`."""
    c, correct = confidence_and_correct(rows)
    c = ops.stop_gradient(c) if stop_gradient else c
    h = entropy(rows)
    uncertain = ops.cast(h > threshold, h.dtype)
    importance = correct * c + (1.0 - correct) * (1.0 - c)
    importance = importance * rows.relative_weights  # w, 1 on average
    return avu_loss(importance, correct, uncertain, 1.0 - uncertain, h)


def avu_loss(importance, correct, uncertain, certain, h) -> Tensor:
    """`log(1 + (AU + IC) / (AC + IU))`, sums of `importance` times these.

        AC: certain (1 - tanh h)    AU: uncertain tanh h    if correct
        IC: certain (1 - tanh h)    IU: uncertain tanh h    if wrong

    Args:
        importance: what each sample counts, `(n,)`, as all that follow.
        correct: 0 or 1.
        uncertain: how uncertain it is, in `[0, 1]`.
        certain: `1 - uncertain`.
        h: its entropy, in nats.

    Returns:
        A scalar >= 0.
    """
    # tanh h and 1 - tanh h; the difference would lose the digits of a large h.
    e = ops.exp(-2.0 * h)
    unsure = uncertain * -ops.expm1(-2.0 * h) / (1.0 + e)
    sure = certain * 2.0 * e / (1.0 + e)
    ac, au = correct * sure, correct * unsure
    ic, iu = (1.0 - correct) * sure, (1.0 - correct) * unsure
    desired = ops.sum(importance * (ac + iu))
    # Finite also where no sample is as desired.
    desired = ops.where(desired > 1e-5, desired, 1e-5)
    return ops.log1p(ops.sum(importance * (au + ic)) / desired)


def _check(threshold, stop_gradient):
    require_flags(stop_gradient=stop_gradient)
    require(
        is_number(threshold) and threshold >= 0,
        "`threshold` is an entropy in nats and cannot be negative.",
        "The authors start at 1.0.",
        threshold=threshold,
    )


@keras.saving.register_keras_serializable(package="keras_calib")
class AvUC(PenalizedLoss):
    """Primary loss plus `weight` times the `avuc` of the batch.

    Args:
        threshold: float >= 0, entropy in nats above which a sample counts as
            uncertain.
        stop_gradient: hold the confidence constant: AvUC-GS, the better choice
            for networks that are not Bayesian.
        weight: float, `beta` of the authors' code, which has 3. With 3 and
            without `stop_gradient` it cost 18 points of accuracy on 5,000
            images of CIFAR-10, where validation images chose 1.
        primary: the loss to regularize; see `PenalizedLoss`.
        **kwargs: `across_replicas`, see `PenalizedLoss`; `from_logits`,
            `axis`, `ignore_class`, `reduction`, `name`, `dtype`, as in Keras.

    Call arguments:
        y_true: class ids, `(...)` or `(..., 1)`, or one-hot rows, `(...,
            num_classes)`.
        y_pred: probabilities, or logits if `from_logits`, `(...,
            num_classes)`; `(..., 1)` for one sigmoid unit.

    Raises:
        ValueError: if `threshold` is negative.

    Example:
        >>> import keras, keras_calib as kc
        >>> model = keras.Sequential([keras.layers.Dense(10)])
        >>> loss = kc.losses.AvUC(stop_gradient=True, from_logits=True)
        >>> model.compile(loss=loss)

    Reference:
        Krishnan and Tickoo, NeurIPS 2020, arXiv:2012.07923; AvUC-GS:
        Karandikar et al., NeurIPS 2021, arXiv:2108.00106, Appendix F.
    """

    batch_statistic = True

    def __init__(
        self,
        *,
        threshold: float = 1.0,
        stop_gradient: bool = False,
        weight: float = 1.0,
        primary: keras.losses.Loss | str | None = "cross_entropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(primary=primary, weight=weight, **kwargs)
        _check(threshold, stop_gradient)
        self.keep(threshold=threshold, stop_gradient=stop_gradient)

    def penalty(self, rows: Rows) -> Tensor:
        return _avuc(rows, **self.arguments)
