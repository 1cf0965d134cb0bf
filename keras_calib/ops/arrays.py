"""Rows of class scores as NumPy arrays: what fits and exact errors share."""

import numpy as np

from keras_calib.ops.rows import LOWEST


def two_classes(logits):
    """One sigmoid unit, `(n, 1)`, as the logits `(0, z)` of two classes."""
    return np.concatenate([np.zeros_like(logits), logits], axis=-1)


def log_softmax(scores, dtype=None):
    """Log-probabilities; a class at minus infinity has probability 0."""
    scores = np.asarray(scores, dtype)
    # A ruled-out class must not turn a mean over classes into infinity.
    shifted = scores - scores.max(axis=-1, keepdims=True)
    np.maximum(shifted, LOWEST, out=shifted)
    total = np.exp(shifted).sum(axis=-1, keepdims=True, dtype="float64")
    shifted -= np.log(total).astype(shifted.dtype)
    return shifted


def sigmoid(x):
    """`1 / (1 + exp(-x))`, without overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1 + small)
