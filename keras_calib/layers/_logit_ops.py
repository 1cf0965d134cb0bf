"""Operations on logits that several calibration layers use.

`xp` is `keras.ops` for tensors, `numpy` for arrays.
"""

import numpy as np
from keras import ops

from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import TINY
from keras_calib.inputs.large import by_rows
from keras_calib.inputs.tensors import at_least_float32
from keras_calib.inputs.tensors import maximum
from keras_calib.inputs.tensors import row_max

# Twice the spacing of float32 numbers around 1.
STEP = 2.0**-22


def on_pairs(call, logits):
    """Apply a map of `num_classes >= 2` scores also to one sigmoid unit.

    Args:
        call: function of logits, `(..., num_classes)`.
        logits: `(..., num_classes)`; or `(..., 1)`, the log-odds.
    """
    logits = at_least_float32(logits)
    if logits.shape[-1] > 1:
        return call(logits)
    pair = call(ops.concatenate([ops.zeros_like(logits), logits], axis=-1))
    return pair[..., 1:] - pair[..., :1]


def log_softmax(logits, xp=ops):
    """`log softmax`, finite for any finite logits and for minus infinity."""
    logits = logits - row_max(logits, xp, keepdims=True)
    logits = maximum(logits, LOWEST, xp)
    return logits - xp.log(xp.sum(xp.exp(logits), axis=-1, keepdims=True))


def normalized(logits, how, xp):
    """Logits without a constant in each row; `how` is `normalize_logits`."""
    if how == "log_softmax":
        if xp is ops:
            return ops.log_softmax(logits, axis=-1)
        return log_softmax(logits, xp)
    if how == "mean":
        return logits - xp.mean(logits, axis=-1, keepdims=True)
    return logits


def log1pexp(x, xp=ops):
    """`log(1 + exp(x))`, for any `x`."""
    return ops.softplus(x) if xp is ops else xp.logaddexp(x, 0.0)


def logaddexp(a, b, xp=ops):
    """`log(exp(a) + exp(b))`, by operations that can be exported to ONNX.

    Those of `ops.logaddexp` cannot, on TensorFlow and PyTorch. At least one of
    both is finite.
    """
    if xp is not ops:
        return xp.logaddexp(a, b)
    return maximum(a, b) + log1pexp(-ops.abs(a - b))


def probabilities(logits, xp=ops):
    """`softmax`; probabilities below the smallest normal float32 are 0.

    Some devices flush such numbers to 0, others do not.
    """
    if xp is np:
        return probabilities_seen(logits)
    p = xp.exp(log_softmax(logits))
    return xp.where(p < TINY, 0.0, p)


def probabilities_seen(logits):
    """`probabilities` for a fit: NumPy, but float32 as in the layer.

    Scores that are equal in the layer must be equal in the fit. NumPy also
    gives equal rows equal scores, while the exponential of a backend can
    differ in the last digit from row to row.

    Args:
        logits: `(n, num_classes)`, at least two classes.

    Returns:
        float32, `(n, num_classes)`; in a file if they are large.
    """
    return by_rows(_probabilities_seen, logits)


def _probabilities_seen(logits):
    logits = np.asarray(logits, "float32")
    shifted = logits - logits.max(axis=-1, keepdims=True)
    np.maximum(shifted, np.float32(LOWEST), out=shifted)
    total = np.exp(shifted).sum(axis=-1, keepdims=True)
    p = np.exp(shifted - np.log(total))
    return np.where(p < np.float32(TINY), np.float32(0), p)


def keep_prediction(logits, calibrated, xp=ops):
    """Raise the score of the predicted class above all others.

    Rounding can map two different scores to the same number. Classes that tie
    for the prediction before, tie after.
    """
    chosen = logits >= row_max(logits, xp, keepdims=True)
    rest = xp.where(chosen, LOWEST, calibrated)
    others = row_max(rest, xp, keepdims=True)
    rest = xp.where(chosen, calibrated, LOWEST)
    largest = row_max(rest, xp, keepdims=True)
    above = others + STEP * maximum(xp.abs(others), 1e-6, xp)
    return xp.where(chosen, maximum(largest, above, xp), calibrated)
