"""Rows of class scores -> the confidence of the prediction, and if it is right.

The prediction is gathered, not reduced: the derivative of a maximum at a tie
differs between backends, the entry at the first largest index does not.
"""

import keras
from keras import ops

from keras_calib.ops.rows import pick

# Up to here JAX compiles `argmax` to faster code than two reductions.
NARROW = 64


def predicted_class(logits):
    """Index of the largest score, the first one at a tie, int32, `(n,)`."""
    backend = keras.backend.backend()
    if backend == "torch":
        return ops.cast(ops.argmax(logits, axis=-1), "int32")
    if backend == "jax" and logits.shape[-1] <= NARROW:
        import jax.numpy as jnp

        # Keras' own puts -0.0 behind 0.0, and takes another pass for it.
        return jnp.argmax(logits, axis=-1).astype("int32")
    # XLA compiles two plain reductions to far faster code than `argmax`.
    logits = ops.stop_gradient(logits)
    last = logits.shape[-1] - 1
    index = ops.arange(last + 1, dtype="int32")
    largest = ops.max(logits, axis=-1, keepdims=True)
    return ops.min(ops.where(logits >= largest, index, last), axis=-1)


def top_label(rows):
    """Confidence and correctness of each row's prediction.

    Args:
        rows: `Rows`.

    Returns:
        confidence: probability of the predicted class, in `[0, 1]`, `(n,)`.
        correct: 1.0 where that class is the label, a constant, `(n,)`.
    """
    # Of what came: a logarithm could round two probabilities to a tie.
    index = predicted_class(rows.logits if rows.given is None else rows.given)
    confidence = pick(rows.probabilities, index)
    correct = ops.cast(ops.equal(index, rows.labels), confidence.dtype)
    return confidence, ops.stop_gradient(correct)


def confidence_to_train(rows):
    """`top_label` for a loss: the same numbers to the last bit but one.

    By the logarithms, which the primary loss needs anyway: no second softmax.
    """
    index = predicted_class(rows.logits)
    confidence = ops.exp(rows.log_probability(index))
    correct = ops.cast(ops.equal(index, rows.labels), confidence.dtype)
    return confidence, ops.stop_gradient(correct)


def entropy(rows):
    """Entropy of each row's probabilities in nats, `(n,)`.

    The logarithm comes from the logits: p = 0 gives 0, never 0 * inf.
    """
    total = ops.exp(rows.log_total)
    mean = ops.sum(rows.exponentials * rows.shifted, axis=-1) / total
    return rows.log_total - mean
