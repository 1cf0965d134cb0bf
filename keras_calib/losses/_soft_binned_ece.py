"""Soft-binned ECE (SB-ECE): an ECE whose bins overlap, so it has a slope."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import are_numbers
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import is_one_of
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.inputs.tensors import sum_or_one
from keras_calib.losses._base import PenalizedLoss
from keras_calib.ops.binning import centers
from keras_calib.ops.binning import interior_edges
from keras_calib.ops.confidence import confidence_and_correct
from keras_calib.ops.soft_bins import bin_error
from keras_calib.ops.soft_bins import bin_mean
from keras_calib.ops.soft_bins import label_error
from keras_calib.ops.soft_bins import memberships
from keras_calib.ops.soft_bins import soft_bin_sums
from keras_calib.ops.subgradients import root


def soft_binned_ece(
    labels: ArrayLike,
    logits: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    num_bins: int = 15,
    temperature: float = 1e-3,
    norm: float = 2.0,
    form: str = "label",
    squared: bool = False,
    bin_range: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """Soft-binned expected calibration error, one number for the batch.

    Each sample belongs to each bin, with center `x_j`, by a share
    `u_ij = softmax_j(-(c_i - x_j)^2 / temperature)`. With the size `S_j`, the
    mean confidence `C_j` and the accuracy `A_j` of bin `j`:

        label:  (1/n sum_i sum_j u_ij |A_j - c_i|^norm)^(1/norm)
        bin:    (sum_j S_j/n |A_j - C_j|^norm)^(1/norm)

    Args:
        labels: class ids, shape `(...)`, or one-hot, `(..., num_classes)`.
            A soft label counts as its largest entry.
        logits: scores before softmax, shape `(..., num_classes)`.
        sample_weight: `None`, or one weight per sample, shape `(...)`.
        num_bins: int >= 1.
        temperature: float > 0, how much bins overlap. `1 / (log(f)
            num_bins^2)` gives a sample at the center of a bin the share `1/f`
            of it in the next one.
        norm: float >= 1.
        form: `"label"` (SB-ECE_lb, which the paper trains with) or `"bin"`.
        squared: no root, as in the authors' code of the label form.
        bin_range: two floats, where the bins start and end; `(1 / C, 1)` in
            the authors' code of the label form.

    Returns:
        A scalar in `[0, 1]`.

    Raises:
        ValueError: if an argument is out of range, or shapes do not fit.

    Example:
        >>> import keras_calib as kc
        >>> logits = [[2.0, 0.5, -1.0], [0.3, 1.2, -0.7]]
        >>> round(float(kc.losses.soft_binned_ece([0, 0], logits)), 4)
        0.4787

    Reference:
        Karandikar et al., "Soft Calibration Objectives for Neural Networks",
        NeurIPS 2021, arXiv:2108.00106, eqs. 11 and 12.
    """
    _check(num_bins, temperature, norm, form, bin_range, squared)
    rows = as_rows(labels, logits, sample_weight)
    value = _soft_binned_ece(
        rows,
        num_bins=num_bins,
        temperature=temperature,
        norm=norm,
        form=form,
        squared=squared,
        bin_range=tuple(bin_range),
    )
    return rows.seen(value)


def _soft_binned_ece(
    rows, *, num_bins, temperature, norm, form, squared, bin_range
):
    c, a = confidence_and_correct(rows)
    low, high = bin_range
    edges = low + (high - low) * interior_edges(num_bins)
    x = ops.cast(centers(edges, low, high), c.dtype)
    u = memberships(c, x, temperature)  # softmax_j(-(c_i - x_j)^2 / T)
    w = rows.relative_weights
    if form == "bin":  # eq. 11: sum_j S_j |A_j - C_j|^norm
        size, *sums = soft_bin_sums(u, w, a, c)  # sum_i w_i u_ij (1, a_i, c_i)
        accuracy, mean = (bin_mean(total, size) for total in sums)
        error = bin_error(size, mean, accuracy, norm)
    else:  # eq. 12: sum_i w_i sum_j u_ij |A_j - c_i|^norm
        size, hits = soft_bin_sums(u, w, a)
        accuracy = bin_mean(hits, size)
        error = label_error(u, w, c, accuracy, norm)
    error = error / sum_or_one(w)
    return error if squared else root(error, norm)


def _check(num_bins, temperature, norm, form, bin_range, squared):
    require_flags(squared=squared)
    require_integer(1, num_bins=num_bins)
    require(
        is_number(temperature) and temperature > 0,
        "`temperature` must be positive.",
        "The default is 1e-3; larger is softer.",
        temperature=temperature,
    )
    require(
        is_number(norm) and 1 <= norm < float("inf"),
        "`norm` is the order of a norm, a finite number of at least 1.",
        "The default is 2.",
        norm=norm,
    )
    require(
        is_one_of(form, ("label", "bin")),
        '`form` must be "label" (eq. 12) or "bin" (eq. 11).',
        'The paper trains with "label".',
        form=form,
    )
    require(
        are_numbers(bin_range)
        and len(bin_range) == 2
        and 0 <= bin_range[0] < bin_range[1] <= 1,
        "`bin_range` is where the bins start and end, within 0 and 1.",
        "The default is (0.0, 1.0).",
        bin_range=bin_range,
    )


@keras.saving.register_keras_serializable(package="keras_calib")
class SoftBinnedECE(PenalizedLoss):
    """Primary loss plus `weight` times the `soft_binned_ece` of the batch.

    The paper tunes `temperature` and `weight` and prints no values: take the
    defaults as a start. Where a trained network was fine-tuned, a weight of 1
    cost 17.5 points of accuracy and a weight of 0.1 cost 0.8
    (`examples/results/F-tuning.md`). A temperature of 1e-4 was better than the
    default for a network trained from scratch, and worse in fine-tuning.

    Args:
        num_bins: int >= 1.
        temperature: float > 0, how much bins overlap.
        norm: float >= 1.
        form: `"label"` (SB-ECE_lb, which the paper trains with) or `"bin"`.
        weight: float, `beta` of the paper.
        primary: the loss to regularize; see `PenalizedLoss`.
        squared: no root, as in the authors' code of the label form.
        bin_range: two floats, where the bins start and end.
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
        >>> model.compile(loss=kc.losses.SoftBinnedECE(from_logits=True))

    Reference:
        Karandikar et al., NeurIPS 2021, arXiv:2108.00106, eqs. 11 and 12.
    """

    batch_statistic = True

    def __init__(
        self,
        *,
        num_bins: int = 15,
        temperature: float = 1e-3,
        norm: float = 2.0,
        form: str = "label",
        weight: float = 0.1,
        primary: keras.losses.Loss | str | None = "cross_entropy",
        squared: bool = False,
        bin_range: tuple[float, float] = (0.0, 1.0),
        **kwargs: Any,
    ) -> None:
        super().__init__(primary=primary, weight=weight, **kwargs)
        _check(num_bins, temperature, norm, form, bin_range, squared)
        self.keep(
            num_bins=num_bins,
            temperature=temperature,
            norm=norm,
            form=form,
            squared=squared,
            bin_range=tuple(bin_range),
        )

    def penalty(self, rows: Rows) -> Tensor:
        return _soft_binned_ece(rows, **self.arguments)
