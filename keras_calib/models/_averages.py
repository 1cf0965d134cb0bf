"""The mean of probabilities, with the shape and mask of the outputs."""

import functools

import keras
from keras import ops

from keras_calib.models._networks import log_probabilities
from keras_calib.models._networks import log_yes_and_no


class MeanProbabilities(keras.layers.Layer):
    """Average class probabilities over networks, or over draws of one.

    For one sigmoid unit, the mean of its probability. A layer, because Keras
    passes a layer the masks of its inputs, and keeps the mask it returns.

    Args:
        from_logits: whether the outputs are logits.
        multi_label: whether to average each unit by itself.
        num_draws: number of consecutive rows that belong to one sample and are
            averaged.
    """

    def __init__(self, from_logits, *, multi_label=False, num_draws=1):
        super().__init__(dtype="float32", autocast=False, name="mean")
        self.from_logits = from_logits
        self.multi_label = multi_label
        self.num_draws = num_draws
        self.supports_masking = True
        self.built = True

    def call(self, outputs):
        """Mean over a list of outputs, `(batch * num_draws, ..., classes)`."""
        if self.multi_label or outputs[0].shape[-1] == 1:
            logs = [log_yes_and_no(o, self.from_logits) for o in outputs]
            yes, no = (self._log_sum(part) for part in zip(*logs, strict=True))
            return keras.activations.sigmoid(yes - no)
        logs = [log_probabilities(o, self.from_logits) for o in outputs]
        # The softmax of `log mean p` is `mean p`. Keras keeps the input of a
        # softmax (not in compiled code on JAX), and losses read from it small
        # probabilities that float32 rounds to 0.
        return keras.activations.softmax(self._log_sum(logs))

    def _log_sum(self, logs):
        logs = ops.stack([self._by_draw(part) for part in logs], axis=1)
        return ops.logsumexp(logs, axis=(1, 2))

    def _by_draw(self, values):
        """Shape `(batch, num_draws, ...)`."""
        shape = ops.shape(values)
        batch = shape[0] // self.num_draws
        return ops.reshape(values, (batch, self.num_draws, *shape[1:]))

    def compute_mask(self, inputs, previous_mask):
        masks = [
            ops.cast(self._by_draw(mask)[:, 0], "bool")
            for mask in previous_mask
            if mask is not None
        ]
        return functools.reduce(ops.logical_and, masks) if masks else None
