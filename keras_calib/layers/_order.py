"""Order of the classes of each row, by operations that can be exported.

`xp` is `keras.ops` for tensors, `numpy` for arrays.
"""

import keras
from keras import ops


def descending_order(scores, xp=ops):
    """Index of each row's scores from the largest to the smallest.

    Of equal scores the first class comes first.

    Args:
        scores: `(..., num_classes)`.
        xp: `keras.ops` or NumPy.

    Returns:
        int, `(..., num_classes)`.
    """
    if xp is ops and _is_traced(onnx=True):
        # Torch has no stable sort for ONNX. TopK of ONNX is stable.
        return ops.top_k(scores, scores.shape[-1])[1]
    if xp is not ops:
        return xp.argsort(-scores, axis=-1, kind="stable")
    return ops.argsort(-scores, axis=-1)


def ranks_of(order, xp=ops):
    """Rank of each class, from 0, in an order: the inverse permutation."""
    if xp is ops and _is_traced(onnx=True):
        return ops.top_k(-order, order.shape[-1])[1]
    return xp.argsort(order, axis=-1)


def take(values, index, xp=ops):
    """`take_along_axis` of the last axis.

    Torch's `gather` is the same, and can be converted to ONNX and OpenVINO,
    where Keras' `take_along_dim` cannot.
    """
    if xp is ops and _is_traced():
        return values.gather(-1, index.long())
    return xp.take_along_axis(values, index, axis=-1)


def _is_traced(onnx=False):
    """Whether torch traces now, as for ONNX and OpenVINO; or for ONNX only."""
    if keras.backend.backend() != "torch":
        return False
    import torch

    return torch.onnx.is_in_onnx_export() if onnx else torch.jit.is_tracing()
