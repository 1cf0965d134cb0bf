"""Means over all pairs of classes, in memory of one row per sample.

Shift by shift, so that nothing of size `num_classes^2` is held: shift `s` pairs
each class with the `s`-th after it, and half of the shifts meet every pair. The
value is the sum of `pairs` over the shifts; `slope` is only for the gradient,
`sum_k tanh((z_j - z_k) / 2)`, which is gathered on the way.
"""

import keras
from keras import ops

from keras_calib.ops.gradients import closed_gradient
from keras_calib.ops.uncompiled import uncompiled_on_torch


@closed_gradient
def mean_over_pairs_of_softplus(z):
    """The mean over ordered pairs `k != l` of `softplus(z_l - z_k)`, `(n,)`.

    The exclusion of CPC is half of it.

    Args:
        z: `(n, num_classes)`, at least two classes.
    """
    n = z.shape[-1]
    scale = 1.0 / (n * (n - 1))

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
        value, slope = _sum_over_pairs(pairs, z)
    else:
        value, slope = _sum_over_pairs(pairs, ops.stop_gradient(z))
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

        _, curved = _sum_over_pairs(pairs, z, upstream)
        return curved, ops.zeros_like(slope)

    return ops.copy(slope), gradient


def _sum_over_pairs(pair_terms, z, *others):
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
    return uncompiled_on_torch(ops.fori_loop)(lower, upper, body, start)
