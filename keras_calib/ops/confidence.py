"""Rows of class scores -> the confidence of the prediction, and if it is right.

The prediction is gathered, not reduced: the derivative of a maximum at a tie
differs between backends, the entry at the first largest index does not.
"""

from keras import ops


def predicted_class(logits):
    """Index of the largest score, the first one at a tie, int32, `(n,)`."""
    return ops.cast(ops.argmax(logits, axis=-1), "int32")


def pick(scores, index):
    """The entry `index[i]` of each row of `scores`, shape `(n,)`."""
    return ops.squeeze(
        ops.take_along_axis(scores, index[:, None], axis=-1), axis=-1
    )


def top_label(rows):
    """Confidence and correctness of each row's prediction.

    Args:
        rows: `Rows`.

    Returns:
        confidence: probability of the predicted class, in `[0, 1]`, `(n,)`.
        correct: 1.0 where that class is the label, a constant, `(n,)`.
    """
    index = predicted_class(rows.logits)
    confidence = pick(rows.probabilities, index)
    correct = ops.cast(ops.equal(index, rows.labels), confidence.dtype)
    return confidence, ops.stop_gradient(correct)


def entropy(rows):
    """Entropy of each row's probabilities in nats, `(n,)`."""
    # The logarithm comes from the logits: p = 0 gives 0, never 0 * inf.
    return -ops.sum(rows.probabilities * rows.log_probabilities, axis=-1)
