"""The divergence of networks that learn from each other."""

from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs import rules
from keras_calib.inputs.arguments import require
from keras_calib.inputs.tensors import as_tensor
from keras_calib.inputs.tensors import from_the_left
from keras_calib.ops.replicas import num_replicas


def kl_divergence(peer: Tensor, own: Tensor) -> Tensor:
    """`KL(p || q) = sum_k p_k (log p_k - log q_k)`; `p` is held constant.

    Args:
        peer: `log p`, shape `(..., num_classes)`; no gradient flows into it.
        own: `log q`, of the same shape.

    Returns:
        One value per row, in nats, shape `(...)`.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> peer, own = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
        >>> round(float(kc.models.kl_divergence(peer, own)[0]), 4)
        0.5108

    Reference:
        Zhang et al., "Deep Mutual Learning", CVPR 2018, eq. 4.
    """
    peer = as_tensor(peer, "Log-probabilities")
    own = as_tensor(own, "Log-probabilities")
    shapes = tuple(peer.shape), tuple(own.shape)
    require(
        len(shapes[0]) > 0 and rules.fits(*shapes),
        "Log-probabilities must have equal shapes, `(..., num_classes)`.",
        peer=shapes[0],
        own=shapes[1],
    )
    peer = ops.stop_gradient(peer)
    # Not by operators: on TensorFlow these refuse two kinds of floats.
    gap = ops.subtract(peer, own)
    # What has no probability adds nothing, whatever its own one is.
    p = ops.exp(peer)
    gap = ops.where(p > 0, gap, ops.zeros_like(gap))
    return ops.sum(ops.multiply(p, gap), axis=-1)


def reduced_divergence(peer, own, sample_weight, masks, reduction):
    """`kl_divergence`, weighted and reduced as Keras reduces a loss.

    Args:
        peer: `log p`, `(..., num_classes)`.
        own: `log q`, of the same shape.
        sample_weight: `None`, or one weight for each row, `(...)`.
        masks: masks of the outputs, each boolean or `None`.
        reduction: that of the loss of `compile`.

    Returns:
        A scalar.
    """
    values = kl_divergence(peer, own)
    counts = ops.ones_like(values)
    for mask in masks:
        if mask is not None:
            mask = from_the_left(mask, ops.shape(values), values.shape, "Masks")
            counts = counts * ops.cast(mask, values.dtype)
    weights = counts
    if sample_weight is not None:
        weights = counts * ops.cast(sample_weight, values.dtype)
    # Rows of weight 0 may be NaN.
    total = ops.sum(ops.where(weights == 0, 0.0, values * weights))
    # Values that Keras does not reduce are added up where the loss is computed.
    if reduction in ("sum", "none", None):
        return total
    if reduction == "mean_with_sample_weight":
        counts = weights
    mean = ops.divide_no_nan(total, ops.sum(counts))
    # As Keras does: the losses of the replicas are added.
    return mean / num_replicas()
