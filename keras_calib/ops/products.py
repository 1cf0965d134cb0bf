"""Matrix products in the precision of their factors."""

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product of arrays or tensors, in the dtype of both.

    PyTorch's `autocast` computes products, and nothing else that we use, in
    half precision: sums over a batch would lose five digits, or overflow.
    """
    if isinstance(a, np.ndarray):
        return np.matmul(a, b)
    if keras.backend.backend() == "torch":
        import torch

        kind = a.device.type
        # Only where it is on: an exported graph would contain the block.
        if kind != "meta" and torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return ops.matmul(a, b)
    return ops.matmul(a, b)
