"""Validation data that a callback runs the model on, at its own pace."""

import keras
import numpy as np

from keras_calib import data
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.rows import as_rows


class ValidationCallback(keras.callbacks.Callback):
    """Base of callbacks that look at predictions after an epoch.

    Args:
        validation_data: `(x, y)` or `(x, y, sample_weight)` arrays, or a
            dataset as `fit` takes it.
        from_logits: whether the model gives logits.
        ignore_class: samples with this label do not count.
        every: int, run after each so many epochs, and after the last one.
        batch_size: for arrays; 32 by default.
    """

    def __init__(
        self,
        validation_data,
        from_logits=False,
        ignore_class=None,
        every=1,
        batch_size=None,
    ):
        super().__init__()
        if every < 1:
            raise ValueError(
                f"`every` must be at least 1. Received: every={every}."
            )
        self.validation_data = validation_data
        self.from_logits = from_logits
        self.ignore_class = ignore_class
        self.every = every
        self.batch_size = batch_size

    def is_due(self, epoch):
        """Whether this epoch, counted from 0, is one to look at."""
        last = epoch + 1 == self.params.get("epochs")
        return last or (epoch + 1) % self.every == 0

    def outputs(self):
        """One pass over the validation data.

        Returns:
            What the model gave, labels as they came, and weights or `None`.
        """
        arrays = self.validation_data
        if not isinstance(arrays, tuple | list):
            arrays = (arrays,)
        x, y, weight = (*arrays, None, None)[:3]
        source, total = data.batches(x, y, weight, self.batch_size)
        return data.predict_once(self.model, source, total)

    def predict(self):
        """The same pass, read.

        Returns:
            labels: int32 class ids of the samples that count, `(n,)`.
            logits: the model's, or the log of its probabilities,
                `(n, num_classes)`; two columns for one sigmoid unit.
            probabilities: of the same shape.
            weight: `None` where all count the same, or float64, `(n,)`.
        """
        scores, labels, weight = self.outputs()
        rows = as_rows(
            labels,
            scores,
            weight,
            from_logits=self.from_logits,
            ignore_class=self.ignore_class,
        )
        used = as_array(rows.weights)
        keep = used > 0
        weight = None
        if not (used[keep] == 1).all():
            weight = np.asarray(used[keep], "float64")
        return (
            as_array(rows.labels)[keep],
            as_array(rows.logits)[keep],
            as_array(rows.probabilities)[keep],
            weight,
        )
