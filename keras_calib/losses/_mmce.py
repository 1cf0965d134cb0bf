"""Maximum mean calibration error (MMCE), plain and weighted."""

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
from keras_calib.inputs.tensors import running_sum
from keras_calib.losses._base import PenalizedLoss
from keras_calib.ops.confidence import confidence_and_correct
from keras_calib.ops.gradients import closed_gradient
from keras_calib.ops.subgradients import absolute
from keras_calib.ops.subgradients import root

# Up to here a matrix of all pairs is faster than a sort.
DENSE_ROWS = 128


def mmce(
    labels: ArrayLike,
    logits: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    weighted: bool = False,
    kernel_width: float = 0.4,
    squared: bool = False,
    double_normalized: bool = False,
) -> Tensor:
    """Maximum mean calibration error, one number for the batch.

    With confidence `c`, correctness `a` and the kernel
    `K_ij = exp(-|c_i - c_j| / kernel_width)` it is `sqrt(s^T K s)`, where

        plain:     s_i = (a_i - c_i) / n
        weighted:  s_i = (1 - c_i) / n_correct  or  -c_i / n_wrong

    Small batches use the matrix of all pairs; others an exact form that sorts
    the confidences, in `O(n log n)` time and `O(n)` memory.

    Args:
        labels: class ids, shape `(...)`, or one-hot, `(..., num_classes)`.
            A soft label counts as its largest entry.
        logits: scores before softmax, shape `(..., num_classes)`.
        sample_weight: `None`, or one weight per sample, shape `(...)`.
        weighted: normalize correct and wrong samples separately; 0 where one of
            the two is missing.
        kernel_width: float >= 0.01.
        squared: no root, as in the authors' code of the plain form.
        double_normalized: divide the weighted form by the numbers of pairs
            twice, as the authors' code does.

    Returns:
        A scalar in `[0, 2]`.

    Raises:
        ValueError: if an argument is out of range, or shapes do not fit.

    Example:
        >>> import keras_calib as kc
        >>> value = kc.losses.mmce([0, 0], [[2.0, 0.5], [0.3, 1.2]])
        >>> round(float(value), 4)
        0.2916

    Reference:
        Kumar, Sarawagi and Jain, "Trainable Calibration Measures for Neural
        Networks from Kernel Mean Embeddings", ICML 2018, eqs. 6 and 10.
    """
    _check(weighted, kernel_width, squared, double_normalized)
    rows = as_rows(labels, logits, sample_weight)
    return rows.seen(
        _mmce(rows, weighted, kernel_width, squared, double_normalized)
    )


def _mmce(rows, weighted, kernel_width, squared, double_normalized):
    """`sqrt(s^T K s)`, `K_ij = exp(-|c_i - c_j| / width)`; eq. 6 if plain."""
    c, a = confidence_and_correct(rows)
    if weighted:
        value = _weighted_square(rows, c, a, kernel_width, double_normalized)
    else:
        s = rows.weights * (a - c) / rows.total_weight
        value = quadratic_form(s, c, kernel_width)
    return value if squared else root(value)


def _weighted_square(rows, c, a, width, double_normalized):
    """Eq. 10, squared: `s^T K s`, `K_ij = exp(-|c_i - c_j| / width)`.

    s_i = w_i (1 - c_i) / sum of w over correct samples    if i is correct
    s_i = -w_i c_i / sum of w over wrong samples           if i is wrong
    """
    w = rows.relative_weights
    right, wrong = w * a, w * (1.0 - a)
    n_right, n_wrong = ops.sum(right), ops.sum(wrong)
    both = ops.logical_and(n_right > 0, n_wrong > 0)
    n_right, n_wrong = (ops.where(both, n, 1.0) for n in (n_right, n_wrong))
    s_right = right * (1.0 - c) / n_right
    s_wrong = -wrong * c / n_wrong
    value = quadratic_form(s_right + s_wrong, c, width)
    if double_normalized:
        of_right = quadratic_form(s_right, c, width)
        of_wrong = quadratic_form(s_wrong, c, width)
        between = value - of_right - of_wrong
        value = (
            of_right / (n_right**2 + 1e-5)
            + of_wrong / (n_wrong**2 + 1e-5)
            + between / (n_right * n_wrong + 1e-5)
        )
    return ops.where(both, value, 0.0)


def quadratic_form(s, c, width) -> Tensor:
    """`sum_ij s_i s_j exp(-|c_i - c_j| / width)` for `c` in `[0, 1]`."""
    n = s.shape[0]
    if n is not None and n <= DENSE_ROWS:
        kernel = ops.exp(-absolute(c[:, None] - c[None, :]) / width)
        return ops.sum(s * ops.sum(kernel * s[None, :], axis=1))
    return _sorted_form(s, c, width)


def _sorted_form(s, c, width):
    """`quadratic_form` by running sums over the sorted confidences.

    For `c_j < c_i` the kernel is `exp(c_j / width) exp(-c_i / width)`, so one
    running sum serves every `i`. Equal confidences are one group. The gradient
    in closed form contains the same sums:

        dF/ds_i = 2 (at + below + above)
        dF/dc_i = 2 s_i (above - below) / width
    """
    order = ops.stop_gradient(ops.argsort(c))
    s, c = ops.unstack(ops.take(ops.stack([s, c]), order, axis=1), 2)

    @closed_gradient
    def form(s, c):
        # Centered, which lets the width be small before `exp` overflows.
        up = ops.exp((c - 0.5) / width)
        down = ops.exp((0.5 - c) / width)
        first = ops.zeros_like(c[:1], dtype="int32")  # none of no rows
        new = ops.cast(c[1:] > c[:-1], "int32")
        group = ops.concatenate([first, ops.cumsum(new)])
        columns = ops.stack([s, s * up, s * down], axis=1)
        # Keras' `segment_sum` fails where torch's default dtype has 64 bits.
        nothing = ops.zeros_like(columns)
        sums = ops.scatter_update(nothing, group[:, None], columns, "add")
        at, ups, downs = ops.unstack(sums, 3, axis=1)
        below = running_sum(ups) - ups
        # From the other end: a total minus a running sum would cancel.
        above = ops.flip(running_sum(ops.flip(downs))) - downs
        sums = ops.take(ops.stack([at, below, above], axis=1), group, axis=0)
        at, below, above = ops.unstack(sums, 3, axis=1)
        below, above = below * down, above * up
        ks = at + below + above

        def gradient(upstream):
            slope = s * (above - below) / width
            return 2.0 * upstream * ks, 2.0 * upstream * slope

        return ops.sum(s * ks), gradient

    return form(s, c)


def _check(weighted, kernel_width, squared, double_normalized):
    require(
        is_number(kernel_width) and kernel_width >= 0.01,
        "`kernel_width` is a distance between confidences, at least 0.01.",
        "The authors use 0.4.",
        kernel_width=kernel_width,
    )
    require_flags(
        weighted=weighted, squared=squared, double_normalized=double_normalized
    )
    require(
        weighted or not double_normalized,
        "`double_normalized` belongs to the weighted form.",
        "Pass `weighted=True` with it.",
        weighted=weighted,
        double_normalized=double_normalized,
    )


@keras.saving.register_keras_serializable(package="keras_calib")
class MMCE(PenalizedLoss):
    """Primary loss plus `weight` times the `mmce` of the batch.

    Args:
        weighted: normalize correct and wrong samples separately.
        kernel_width: float >= 0.01.
        weight: float, `lambda` of the paper. Published runs use 1 to 10.
        primary: the loss to regularize; see `PenalizedLoss`.
        squared: no root, as in the authors' code of the plain form.
        double_normalized: the authors' code of the weighted form.
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
        >>> loss = kc.losses.MMCE(weighted=True, from_logits=True)
        >>> model.compile(loss=loss)

    Reference:
        Kumar, Sarawagi and Jain, ICML 2018.
    """

    batch_statistic = True

    def __init__(
        self,
        *,
        weighted: bool = False,
        kernel_width: float = 0.4,
        weight: float = 2.0,
        primary: keras.losses.Loss | str | None = "cross_entropy",
        squared: bool = False,
        double_normalized: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(primary=primary, weight=weight, **kwargs)
        _check(weighted, kernel_width, squared, double_normalized)
        self.keep(
            weighted=weighted,
            kernel_width=kernel_width,
            squared=squared,
            double_normalized=double_normalized,
        )

    def penalty(self, rows: Rows) -> Tensor:
        return _mmce(rows, **self.arguments)
