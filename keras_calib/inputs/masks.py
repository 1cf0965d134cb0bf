"""Keras' mask of predictions, for a loss and for the metrics of its step.

Keras' JAX trainer differentiates the loss of a step and hands its metrics a
copy of the predictions, which has lost its mask; the labels are the same
objects. So a loss remembers the mask beside the labels. On other backends the
predictions keep their mask.
"""

import weakref

import keras
import numpy as np
from keras import ops

from keras_calib.keras_private import keras_mask

# By the labels' id: a mask, and the predictions that it belongs to.
_remembered: dict[int, tuple] = {}


def mask_for_metrics(y_true, y_pred):
    """Keras' mask of the predictions that a loss sees, or `None`.

    `mask_of` finds it for the metrics of the same step. Only a loss that is
    being differentiated or compiled remembers it, and not longer than the
    labels live. Labels that are not compiled may live on, so the predictions
    are remembered as well, and a metric of others sees no mask.
    """
    mask = keras_mask(y_pred)
    traced = _is_traced_by_jax(y_true) or _is_traced_by_jax(y_pred)
    if mask is not None and traced:
        key = id(y_true)
        if key not in _remembered:
            weakref.finalize(y_true, _remembered.pop, key, None)
        # Without the tape that differentiates them.
        _remembered[key] = mask, ops.stop_gradient(y_pred)
    return mask


def mask_of(y_true, y_pred):
    """Keras' mask of the predictions that a metric sees, or `None`.

    On JAX that is the one which a loss of this package saw in `fit`; there,
    beside other losses, the metrics of `fit` see none, as those of Keras.
    `evaluate` and validation are right with any loss.
    """
    own = keras_mask(y_pred)
    mask, known = _remembered.get(id(y_true), (None, None))
    if own is not None or known is None or known.shape != y_pred.shape:
        return own
    if _is_traced_by_jax(y_true):
        return mask
    traced = _is_traced_by_jax(known), _is_traced_by_jax(y_pred)
    if any(traced):
        return mask if all(traced) else None
    return mask if np.array_equal(known, y_pred, equal_nan=True) else None


def _is_traced_by_jax(tensor):
    if keras.backend.backend() != "jax":
        return False
    import jax

    return isinstance(tensor, jax.core.Tracer)
