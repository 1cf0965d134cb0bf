"""Calibration by pairwise constraints (CPC)."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import require
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.inputs.tensors import pick
from keras_calib.losses._base import PenalizedLoss
from keras_calib.ops.gradients import closed_gradient


def cpc(
    labels: ArrayLike,
    logits: ArrayLike,
    *,
    one_vs_one_weight: float = 0.1,
    exclusion_weight: float = 1.0,
) -> Tensor:
    """Pairwise constraints on the classes of each sample.

    With `r_jk = p_j / (p_j + p_k) = sigmoid(z_j - z_k)`:

        one versus one:   mean over k != y of -log r_yk
        exclusion:        mean over k != l, both != y, of -log r_kl, times
                          1/2, which is least where all of them are equal
        one_vs_one_weight * one versus one + exclusion_weight * exclusion

    Time is `O(C^2)` per sample, memory `O(C)`.

    Args:
        labels: class ids, shape `(...)`, or one-hot, `(..., num_classes)`.
            A soft label counts as its largest entry.
        logits: scores before softmax, shape `(..., num_classes)`.
        one_vs_one_weight: float, weight of the first term.
        exclusion_weight: float, weight of the second term; with two classes
            there is none.

    Returns:
        One penalty per sample, in nats, shape `(...)`.

    Raises:
        ValueError: if a weight is negative, or shapes do not fit.

    Example:
        >>> import keras_calib as kc
        >>> value = kc.losses.cpc([0], [[2.0, 0.5, -1.0]])
        >>> round(float(value[0]), 4)
        0.4882

    Reference:
        Cheng and Vasconcelos, "Calibrating Deep Neural Networks by Pairwise
        Constraints", CVPR 2022; gradients in the ACLS supplement, eqs. 5 and
        6. Both terms are means, as in public code, to which the default
        weights belong; the supplement writes sums.
    """
    _check(one_vs_one_weight, exclusion_weight)
    rows = as_rows(labels, logits)
    return rows.restore(_cpc(rows, one_vs_one_weight, exclusion_weight))


def _cpc(rows, one_vs_one_weight, exclusion_weight):
    z = rows.logits
    label = pick(z, rows.labels)[:, None]
    index = ops.arange(rows.num_classes - 1, dtype="int32")
    # All classes except the label; those after it move down by one.
    others = ops.where(index < rows.labels[:, None], z[:, :-1], z[:, 1:])
    one_vs_one = ops.sum(ops.softplus(others - label), axis=-1)
    one_vs_one = one_vs_one / (rows.num_classes - 1)
    value = one_vs_one_weight * one_vs_one
    if rows.num_classes > 2 and exclusion_weight:
        value = value + exclusion_weight * _exclusion(others)
    return value


@closed_gradient
def _exclusion(z):
    """Half the mean over ordered pairs `k != l` of `softplus(z_l - z_k)`.

    Shift by shift, so that nothing of size `C^2` is held: shift `s` pairs
    each class with the `s`-th after it, and half the shifts meet every pair.
    The value is the sum of `pairs` over the shifts; `slope` is only for its
    gradient, `sum_k tanh((z_j - z_k) / 2)`, which is gathered on the way.
    """
    n = z.shape[-1]
    scale = 1.0 / (2.0 * n * (n - 1))

    def pairs(weight, distance):
        # softplus(d) + softplus(-d), for both orders of the pair; its
        # derivative is tanh(d / 2).
        size = ops.abs(distance)
        e = ops.exp(-size)
        both_orders = size + 2.0 * ops.log1p(e)
        value = weight * ops.sum(both_orders, axis=-1)
        return value, weight * ops.sign(distance) * (1.0 - e) / (1.0 + e)

    if keras.backend.backend() == "jax":
        # Differentiated in both directions, and through the loop.
        value, slope = _over_pairs(pairs, z)
    else:
        value, slope = _over_pairs(pairs, ops.stop_gradient(z))
        slope = _slope(z, slope)

    def gradient(upstream):
        return scale * upstream[:, None] * slope

    return scale * value, gradient


@closed_gradient
def _slope(z, slope):
    """The `slope` that is known already, with its own derivative in `z`.

    The derivative along `v` is `sum_k sech((z_j - z_k) / 2)^2 (v_j - v_k) / 2`.
    """

    def gradient(upstream):
        def pairs(weight, distance, change):
            e = ops.exp(-ops.abs(distance))
            curve = 2.0 * e / ops.square(1.0 + e)
            return ops.zeros_like(z[:, 0]), weight * curve * change

        _, curved = _over_pairs(pairs, z, upstream)
        return curved, ops.zeros_like(slope)

    return ops.copy(slope), gradient


def _over_pairs(pair_terms, z, *others):
    """Sum a function of differences `z_j - z_k` over pairs of classes.

    Args:
        pair_terms: weight of the pair, difference of each tensor -> one value
            per row, and what class `j` gains and class `k` loses.
        z: `(n, num_classes)`.
        *others: tensors of the same shape.

    Returns:
        value: `(n,)`.
        gains: `(n, num_classes)`.
    """
    n = z.shape[-1]
    tensors = [(x, ops.concatenate([x, x], axis=-1)) for x in (z, *others)]

    def shifted(doubled, start):
        return ops.slice(doubled, (0, start), ops.shape(z))

    def body(shift, sums):
        value, gains = sums
        # With an even number of classes the last shift meets each pair twice.
        weight = ops.cast(ops.where(2 * shift == n, 0.5, 1.0), z.dtype)
        found, gain = pair_terms(
            weight, *(x - shifted(doubled, shift) for x, doubled in tensors)
        )
        doubled = ops.concatenate([gain, gain], axis=-1)
        return value + found, gains + gain - shifted(doubled, n - shift)

    start = ops.zeros_like(z[:, 0]), ops.zeros_like(z)
    return _loop(1, n // 2 + 1, body, start)


def _loop(lower, upper, body, start):
    """`ops.fori_loop`; on torch kept out of the compiled graph.

    `torch.compile` would unroll it: hundreds of copies of the body.
    """
    if keras.backend.backend() == "torch":
        import torch

        return torch.compiler.disable(ops.fori_loop)(lower, upper, body, start)
    return ops.fori_loop(lower, upper, body, start)


def _check(one_vs_one_weight, exclusion_weight):
    require(
        one_vs_one_weight >= 0 and exclusion_weight >= 0,
        "The weights of the pairwise constraints cannot be negative.",
        "Use 0 to leave a term out.",
        one_vs_one_weight=one_vs_one_weight,
        exclusion_weight=exclusion_weight,
    )


@keras.saving.register_keras_serializable(package="keras_calib")
class CPC(PenalizedLoss):
    """Primary loss plus `weight` times `cpc`.

    Args:
        one_vs_one_weight: float, weight of "one versus one".
        exclusion_weight: float, weight of "binary exclusion".
        primary: the loss to regularize; see `PenalizedLoss`.
        weight: float, multiplies both weights.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `reduction`, `name`,
            `dtype`, as in Keras.

    Raises:
        ValueError: if one of the first two weights is negative.

    Example:
        >>> import keras, keras_calib as kc
        >>> model = keras.Sequential([keras.layers.Dense(10)])
        >>> model.compile(loss=kc.losses.CPC(from_logits=True))

    Reference:
        Cheng and Vasconcelos, CVPR 2022.
    """

    def __init__(
        self,
        *,
        one_vs_one_weight: float = 0.1,
        exclusion_weight: float = 1.0,
        primary: keras.losses.Loss | str | None = "cross_entropy",
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(primary=primary, weight=weight, **kwargs)
        _check(one_vs_one_weight, exclusion_weight)
        self.keep(
            one_vs_one_weight=one_vs_one_weight,
            exclusion_weight=exclusion_weight,
        )

    def penalty(self, rows: Rows) -> Tensor:
        return _cpc(rows, **self.arguments)
