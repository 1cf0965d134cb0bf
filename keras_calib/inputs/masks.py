"""Keras' mask of predictions, for a loss and for the metrics of its step.

Keras' JAX trainer differentiates the loss of a step and hands its metrics a
copy of the predictions, which has lost its mask; the labels are the same
objects. So a loss remembers the mask beside the labels. On other backends the
predictions keep their mask.
"""

import collections
import contextlib
import contextvars
import weakref
from collections.abc import Iterator

import keras
import numpy as np
from keras import ops

from keras_calib.inputs.arrays import as_array
from keras_calib.keras_private import keras_mask

# Predictions with a mask that may have the same labels.
MOST = 16
# By the labels' id: masks, each with the predictions that it belongs to.
_remembered: dict[int, collections.deque] = {}
_remembering = contextvars.ContextVar("remembering", default=True)


@contextlib.contextmanager
def beside_metrics(beside: bool) -> Iterator[None]:
    """In the block, losses are of a network that no metric sees, or are not.

    Compiled labels do not tell whose predictions a mask belongs to.
    """
    token = _remembering.set(not beside)
    try:
        yield
    finally:
        _remembering.reset(token)


def mask_for_metrics(y_true, y_pred):
    """Keras' mask of the predictions that a loss sees, or `None`.

    `mask_of` finds it for the metrics of the same step. Only a loss that is
    being differentiated or compiled remembers it, and not longer than the
    labels live. Labels that are not compiled may live on, so the predictions
    are remembered as well, and a metric of others sees no mask.
    """
    mask = keras_mask(y_pred)
    if mask is None or not _remembering.get():
        return mask
    if _is_traced_by_jax(y_true) or _is_traced_by_jax(y_pred):
        key = id(y_true)
        if key not in _remembered:
            weakref.finalize(y_true, _remembered.pop, key, None)
            _remembered[key] = collections.deque(maxlen=MOST)
        # Without the tape that differentiates them.
        _remembered[key].append((mask, ops.stop_gradient(y_pred)))
    return mask


def mask_of(y_true, y_pred):
    """Keras' mask of the predictions that a metric sees, or `None`.

    On JAX that is the one which a loss of this package saw in `fit`; there,
    beside other losses, the metrics of `fit` see none, as those of Keras.
    `evaluate` and validation are right with any loss.
    """
    own = keras_mask(y_pred)
    if own is not None:
        return own
    # The latest first.
    for mask, known in reversed(_remembered.get(id(y_true), ())):
        if known.shape == y_pred.shape and _are_the_same(known, y_pred, y_true):
            return mask
    return None


def _are_the_same(known, y_pred, y_true):
    """Whether remembered predictions are, or may be, those of a metric."""
    if _is_traced_by_jax(y_true):
        return True
    traced = _is_traced_by_jax(known), _is_traced_by_jax(y_pred)
    if any(traced):
        return all(traced)
    return np.array_equal(as_array(known), as_array(y_pred), equal_nan=True)


def _is_traced_by_jax(tensor):
    if keras.backend.backend() != "jax":
        return False
    import jax

    return isinstance(tensor, jax.core.Tracer)
