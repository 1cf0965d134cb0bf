"""Rows of class scores -> the confidence of the prediction, and if it is right.

The prediction is gathered, not reduced: the derivative of a maximum at a tie
differs between backends, the entry at the first largest index does not.
"""

from keras import ops

from keras_calib.ops.rows import LOWEST
from keras_calib.ops.rows import pick


def top_label(rows):
    """Confidence and correctness of each row's prediction.

    Args:
        rows: `Rows`.

    Returns:
        confidence: probability of the predicted class, in `[0, 1]`, `(n,)`.
        correct: 1.0 where that class is the label, a constant, `(n,)`.
    """
    confidence = pick(rows.probabilities, rows.predicted)
    correct = ops.cast(ops.equal(rows.predicted, rows.labels), confidence.dtype)
    return confidence, ops.stop_gradient(correct)


def confidence_to_train(rows):
    """`top_label` for a loss: the same numbers to the last bit but one.

    By the logarithms, which the primary loss needs anyway: no second softmax.
    """
    confidence = ops.exp(rows.log_probability(rows.predicted))
    correct = ops.cast(ops.equal(rows.predicted, rows.labels), confidence.dtype)
    return confidence, ops.stop_gradient(correct)


def entropy(rows):
    """Entropy of each row's probabilities in nats, `(n,)`.

    The logarithm comes from the logits: p = 0 gives 0, never 0 * inf. The
    gradient has its closed form, `-p (log p + H)`: in the chain rule's, where
    one class has it all, what is left would be lost to rounding.
    """
    z = ops.where(rows.shifted > LOWEST, rows.shifted, LOWEST)
    log_p = ops.stop_gradient(z - rows.log_total[:, None])
    p = ops.stop_gradient(rows.exponentials / rows.total[:, None])
    h = -ops.sum(p * log_p, axis=-1)
    slope = -p * (log_p + h[:, None])
    return h + ops.sum(slope * (z - ops.stop_gradient(z)), axis=-1)
