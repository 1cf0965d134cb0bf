"""Calibration by pairwise constraints (CPC)."""

import keras
from keras import ops

from keras_calib.inputs.rows import as_rows
from keras_calib.inputs.rows import pick
from keras_calib.losses.arguments import require
from keras_calib.losses.base import PenalizedLoss


def cpc(labels, logits, one_vs_one_weight=0.1, exclusion_weight=1.0):
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
    # The classes but the label: what comes after it moves up by one.
    others = ops.where(index < rows.labels[:, None], z[:, :-1], z[:, 1:])
    one_vs_one = ops.sum(ops.softplus(others - label), axis=-1)
    one_vs_one = one_vs_one / (rows.num_classes - 1)
    value = one_vs_one_weight * one_vs_one
    if rows.num_classes > 2 and exclusion_weight:
        value = value + exclusion_weight * _exclusion(others)
    return value


def _exclusion(z):
    """Half the mean over ordered pairs `k != l` of `softplus(z_l - z_k)`.

    Shift by shift, so that nothing of size `C^2` is held: shift `s` pairs
    each class with the `s`-th after it, and half the shifts meet every pair.
    The gradient, `sum_k tanh((z_j - z_k) / 2)`, is gathered on the way.
    """
    constant = ops.stop_gradient(z)
    value, slope = _pair_sums(constant)
    value, slope = ops.stop_gradient(value), ops.stop_gradient(slope)
    n = z.shape[-1]
    linear = ops.sum(slope * (z - constant), axis=-1)
    return (value + linear) / (2.0 * n * (n - 1))


def _pair_sums(z):
    n = z.shape[-1]
    twice = ops.concatenate([z, z], axis=-1)

    def shifted(doubled, start):
        return ops.slice(doubled, (0, start), ops.shape(z))

    def body(shift, sums):
        value, slope = sums
        # With an even number of classes the last shift meets each pair twice.
        weight = ops.where(2 * shift == n, 0.5, 1.0)
        weight = ops.cast(weight, z.dtype)
        distance = z - shifted(twice, shift)
        e = ops.exp(-ops.abs(distance))
        value = value + weight * ops.sum(
            ops.abs(distance) + 2.0 * ops.log1p(e), axis=-1
        )
        tanh = weight * ops.sign(distance) * (1.0 - e) / (1.0 + e)
        back = shifted(ops.concatenate([tanh, tanh], axis=-1), n - shift)
        return value, slope + tanh - back

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
        primary: the loss to regularise; see `PenalizedLoss`.
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
        one_vs_one_weight=0.1,
        exclusion_weight=1.0,
        primary="cross_entropy",
        weight=1.0,
        **kwargs,
    ):
        super().__init__(primary=primary, weight=weight, **kwargs)
        _check(one_vs_one_weight, exclusion_weight)
        self.one_vs_one_weight = one_vs_one_weight
        self.exclusion_weight = exclusion_weight

    def penalty(self, rows):
        return _cpc(rows, self.one_vs_one_weight, self.exclusion_weight)

    def get_config(self):
        return {
            **super().get_config(),
            "one_vs_one_weight": self.one_vs_one_weight,
            "exclusion_weight": self.exclusion_weight,
        }
