"""Confidence and correctness of each prediction; entropy.

The prediction is gathered, not reduced: the derivative of a maximum at a tie
differs between backends, the entry at the first largest index does not.
"""

from keras import ops

from keras_calib.inputs.tensors import row_max
from keras_calib.ops.gradients import closed_gradient


def top_label(rows):
    """Confidence and correctness of each row's prediction.

    Args:
        rows: `Rows`.

    Returns:
        confidence: probability of the predicted class, in `[0, 1]`, `(n,)`.
        correct: 1.0 where that class is the label, a constant, `(n,)`.
    """
    confidence = rows.probability(rows.predicted)
    correct = ops.cast(ops.equal(rows.predicted, rows.labels), confidence.dtype)
    return confidence, ops.stop_gradient(correct)


def confidence_and_correct(rows):
    """`top_label` for a loss: equal up to rounding, without a second softmax.

    It is computed from `log p`, which the primary loss needs anyway.
    """
    confidence = ops.exp(rows.log_probability(rows.predicted))
    correct = ops.cast(ops.equal(rows.predicted, rows.labels), confidence.dtype)
    return confidence, ops.stop_gradient(correct)


def first_largest(scores, xp=ops):
    """Index of the first largest score along the last axis.

    On TensorFlow `ops.argmax` of floats reads their sign bits, by an operation
    that ONNX Runtime does not have; of integers it does not.

    Args:
        scores: `(..., num_classes)`.
        xp: `keras.ops` or NumPy.
    """
    if xp is not ops:
        return xp.argmax(scores, axis=-1)
    largest = ops.equal(scores, row_max(scores, keepdims=True))
    return ops.argmax(ops.cast(largest, "int32"), axis=-1)


def is_first_largest(scores, xp=ops):
    """Whether each score is the one of `first_largest`, like `scores`."""
    index = xp.expand_dims(first_largest(scores, xp), -1)
    return xp.equal(index, xp.arange(0, scores.shape[-1]))


def entropy(rows):
    """Entropy of each row's probabilities in nats, `(n,)`.

    The logarithm comes from the logits, so p = 0 gives 0. The gradient has its
    closed form, `-p (log p + H)`: in that of the chain rule, where one class
    has it all, what is left would be lost to rounding.
    """
    return _entropy(rows.shifted)


@closed_gradient
def _entropy(shifted):
    """`entropy`, from `Rows.shifted`."""
    exponentials = ops.exp(shifted)
    total = ops.sum(exponentials, axis=-1)
    mean = ops.sum(exponentials * shifted, axis=-1) / total

    def gradient(upstream):
        scale = (upstream / total)[:, None]
        return -scale * exponentials * (shifted - mean[:, None])

    return ops.log(total) - mean, gradient
