"""How the terms of a loss become what Keras asks for."""

import keras
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs.rows import Rows

MEAN_REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def reduce(rows: Rows, per_row, batch, reduction: str | None) -> Tensor:
    """Weigh and reduce loss terms: the meaning of `reduction` is Keras'."""
    if reduction in (None, "none"):
        return rows.restore(per_row * rows.weights + batch * rows.counts)
    total = ops.sum(rows.seen(per_row) * rows.weights)
    if reduction == "sum":
        # Once for each row: its weights are inside the statistic already.
        return total + batch * ops.sum(rows.counts)
    if reduction == "mean_with_sample_weight":
        return total / rows.total_weight + batch
    # A mask changes the number of rows, a weight does not.
    return total / ops.maximum(ops.sum(rows.counts), 1.0) + batch


def mean_reduction(loss: keras.losses.Loss) -> str:
    """The reduction of a loss where one number is shown: a mean."""
    return loss.reduction if loss.reduction in MEAN_REDUCTIONS else "mean"


class AlreadyReduced(keras.losses.Loss):
    """Hands a value that is final to Keras' reduction."""

    def call(self, y_true, y_pred):
        return y_pred


def length(values):
    """How many entries a batch has along its first axis."""
    if isinstance(values, list | tuple):
        return len(values)
    return ops.shape(values)[0]
