"""From what Keras hands over to rows: the one file that reads labels and masks.

Losses, metrics and maps see a batch of any rank as `n` rows of class scores.
Shapes, sparse or one-hot labels, `ignore_class`, masks, weights, half precision
and bad input are settled here, so that no formula has to.
"""

import dataclasses
import functools

import keras
from keras import ops

from keras_calib.inputs.arrays import TINY
from keras_calib.inputs.arrays import seen

# Up to here JAX compiles `argmax` to faster code than two reductions.
NARROW = 64


@dataclasses.dataclass(frozen=True)
class Rows:
    """A batch as `n` rows: one per sample, token or pixel.

    Attributes:
        labels: int32 class ids, shape `(n,)`; 0 where a row does not count.
        logits: scores before softmax, float32 or wider, `(n, num_classes)`.
        targets: one-hot or soft labels, `(n, num_classes)`; `None` when the
            labels came as class ids.
        weights: sample weight, 0 where a row does not count, `(n,)`.
        counts: 1.0 where a row counts, 0.0 where it is ignored or masked,
            `(n,)`.
        faulty: true where the label or the probabilities are impossible,
            `(n,)`. Compiled code cannot raise, so such rows become NaN.
        from_logits: whether `logits` are the network's own.
        checked: whether the values could be seen, and were found possible.
        shape: the shape of one value per row as the caller knows it.
        given: the probabilities as they came, `(n, num_classes)`; `None` when
            logits came.
    """

    labels: object
    logits: object
    targets: object
    weights: object
    counts: object
    faulty: object
    from_logits: bool
    checked: bool
    shape: tuple
    given: object = None

    @property
    def num_classes(self):
        return self.logits.shape[-1]

    @functools.cached_property
    def one_hot(self):
        """One-hot rows of `labels`, whatever form they came in."""
        return ops.one_hot(
            self.labels, self.num_classes, dtype=self.logits.dtype
        )

    @property
    def soft_labels(self):
        """The label as a distribution: `targets`, or one-hot rows."""
        return self.one_hot if self.targets is None else self.targets

    @functools.cached_property
    def predicted(self):
        """The predicted class, int32, `(n,)`.

        From what came: a logarithm could round two probabilities to a tie.
        """
        return predicted_class(
            self.logits if self.given is None else self.given
        )

    @functools.cached_property
    def shifted(self):
        """The logits with the largest of each row at 0.

        The shift is a constant: no function of probabilities feels it.
        """
        largest = ops.max(self.logits, axis=-1, keepdims=True)
        return self.logits - ops.stop_gradient(largest)

    @functools.cached_property
    def exponentials(self):
        """Of `shifted`: the probabilities but for their sum."""
        return ops.exp(self.shifted)

    @functools.cached_property
    def total(self):
        """Sum of `exponentials`, `(n,)`."""
        return ops.sum(self.exponentials, axis=-1)

    @functools.cached_property
    def log_total(self):
        return ops.log(self.total)

    @functools.cached_property
    def log_probabilities(self):
        return self.shifted - self.log_total[:, None]

    def log_probability(self, index):
        """Of the class `index[i]` in each row, `(n,)`.

        The whole matrix of logarithms is never made, nor its gradient, which
        halves the cost of a compiled cross-entropy.
        """
        return pick(self.shifted, index) - self.log_total

    @functools.cached_property
    def probabilities(self):
        """As they came, or the softmax of the logits.

        A round trip through `log` would move a confidence that lies on the
        edge of a bin.
        """
        if self.given is not None:
            return self.given
        return ops.softmax(self.logits, axis=-1)

    @functools.cached_property
    def total_weight(self):
        """Sum of the weights, or 1 where that is 0 and cannot divide.

        A tiny number instead of 1 would make the gradient `0 * inf`.
        """
        total = ops.sum(self.weights)
        return ops.where(total > 0, total, 1.0)

    def mean(self, values):
        """Weighted mean over rows; 0 for a batch in which no row counts."""
        weights = self.weights
        if len(values.shape) == 2:
            weights = weights[:, None]
        return ops.sum(values * weights, axis=0) / self.total_weight

    def restore(self, values):
        """One value per row, back in the caller's shape."""
        return ops.reshape(values, self.shape)


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


def pick(scores, index):
    """The entry `index[i]` of each row of `scores`, shape `(n,)`."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Half the time of Keras' `take_along_axis`, gradient included.
        return tf.gather(scores, index, axis=1, batch_dims=1)
    return ops.squeeze(
        ops.take_along_axis(scores, index[:, None], axis=-1), axis=-1
    )


def at_least_float32(values):
    """Cast integers and half precision up; leave float32 and float64 alone."""
    values = ops.convert_to_tensor(values)
    if keras.backend.standardize_dtype(values.dtype) in ("float32", "float64"):
        return values
    return ops.cast(values, "float32")


def as_rows(
    y_true,
    y_pred,
    sample_weight=None,
    from_logits=True,
    axis=-1,
    ignore_class=None,
    binary=False,
    check=True,
):
    """Read labels and predictions of any rank as `Rows`.

    Args:
        y_true: class ids, shape `(...)` or `(..., 1)`, or one-hot or soft
            labels, shape `(..., num_classes)`; told apart by rank.
        y_pred: logits or probabilities, shape `(..., num_classes)`.
        sample_weight: `None`, or weights that broadcast to `(...)` from the
            left: `(batch,)` weighs whole images.
        from_logits: whether `y_pred` holds logits. If not, the logits that
            Keras keeps on a softmax output are used, else `log(y_pred)`.
        axis: the class axis of `y_pred`.
        ignore_class: rows with this label do not count.
        binary: read a last axis of size 1 as one sigmoid unit, and give it a
            second class. Without it, one class is an error.
        check: raise for impossible values where they can be seen.

    Returns:
        `Rows`.

    Raises:
        ValueError: if shapes do not fit; and, where the values can be seen, if
            labels are out of range, probabilities are impossible, or a weight
            is negative.
    """
    mask = getattr(y_pred, "_keras_mask", None)
    carried = None if from_logits else getattr(y_pred, "_keras_logits", None)
    scores = at_least_float32(y_pred if carried is None else carried)
    y_true = ops.convert_to_tensor(y_true)
    rank = len(scores.shape)
    if rank < 2:
        raise ValueError(
            "Predictions need a class axis: shape `(batch, num_classes)`. "
            f"Received: predictions of shape {tuple(scores.shape)}."
        )
    one_hot = len(y_true.shape) == rank and not (
        y_true.shape[axis] == 1 and scores.shape[axis] != 1
    )
    if axis not in (-1, rank - 1):
        scores = ops.moveaxis(scores, axis, -1)
        if len(y_true.shape) == rank:
            y_true = ops.moveaxis(y_true, axis, -1)
    num_classes = scores.shape[-1]
    single = num_classes == 1
    if num_classes is None or (single and not binary):
        raise ValueError(
            "Predictions need a static class axis with at least 2 classes. "
            f"Received: predictions of shape {tuple(scores.shape)}. For one "
            "sigmoid unit train with `keras.losses.BinaryCrossentropy`, or "
            "give the network two softmax units."
        )
    _check_shapes(y_true, scores, one_hot)
    lead = tuple(scores.shape[:-1])
    shape = (-1,) if len(lead) == 1 else (-1, *lead[1:])
    if None in shape:
        shape = ops.shape(scores)[:-1]

    given = ops.reshape(scores, (-1, num_classes))
    impossible, probabilities = None, None
    if from_logits or carried is not None:
        logits = given
    else:
        impossible = _impossible_probabilities(given, single)
        logits = ops.log(ops.maximum(given, TINY))
        probabilities = given
        if single:
            probabilities = ops.concatenate([1.0 - given, given], axis=-1)
    if single:
        logits = _two_classes(given, logits, from_logits or carried is not None)
        num_classes = 2

    targets = None
    if one_hot and not single:
        targets = ops.reshape(ops.cast(y_true, logits.dtype), (-1, num_classes))
        labels = ops.cast(ops.argmax(targets, axis=-1), "int32")
        wrong = ops.logical_or(
            ops.any(targets < 0, axis=-1),
            ops.abs(ops.sum(targets, axis=-1) - 1.0) > 1e-3,
        )
    else:
        labels = ops.cast(ops.reshape(y_true, (-1,)), "int32")
        wrong = ops.logical_or(labels < 0, labels >= num_classes)

    weights = ops.ones_like(logits[:, 0])
    counts = weights
    if ignore_class is not None:
        keep = ops.not_equal(labels, ignore_class)
        counts = ops.cast(keep, logits.dtype)
        wrong = ops.logical_and(wrong, keep)
        labels = ops.where(keep, labels, 0)
        if targets is not None:
            targets = targets * counts[:, None]
    if mask is not None:
        counts = counts * _per_row(mask, scores, logits.dtype)
    weights = counts
    if sample_weight is not None:
        weights = weights * _per_row(sample_weight, scores, logits.dtype)

    faulty = wrong
    if impossible is not None:
        faulty = ops.logical_or(wrong, impossible)
    faulty = ops.logical_and(faulty, counts > 0)
    checked = False
    if check:
        checked = _raise_if_seen(faulty, wrong, given, y_true, num_classes)
        _raise_if_negative(sample_weight)
    # A label that is out of range must not reach a gather or a one-hot.
    labels = ops.clip(labels, 0, num_classes - 1)
    return Rows(
        labels=labels,
        logits=logits,
        targets=targets,
        weights=weights,
        counts=counts,
        faulty=faulty,
        from_logits=from_logits or carried is not None,
        checked=checked,
        shape=shape,
        given=probabilities,
    )


def _check_shapes(y_true, scores, one_hot):
    expected = tuple(scores.shape) if one_hot else tuple(scores.shape[:-1])
    labels = tuple(y_true.shape)
    if not one_hot and len(labels) == len(scores.shape):
        labels = labels[:-1]
    fits = len(labels) == len(expected) and all(
        a == b or a is None or b is None
        for a, b in zip(labels, expected, strict=True)
    )
    if not fits:
        raise ValueError(
            "Labels and predictions do not fit. Labels are class ids of shape "
            f"{tuple(scores.shape[:-1])} or one-hot rows of shape "
            f"{tuple(scores.shape)}. Received: labels of shape "
            f"{tuple(y_true.shape)}, predictions of shape "
            f"{tuple(scores.shape)}."
        )


def _per_row(values, scores, dtype):
    """Weights or a mask, broadcast from the left, as one value per row."""
    values = ops.cast(ops.convert_to_tensor(values), dtype)
    lead = ops.shape(scores)[:-1]
    while len(values.shape) > len(lead):
        values = ops.squeeze(values, axis=-1)
    while len(values.shape) < len(lead):
        values = ops.expand_dims(values, axis=-1)
    return ops.reshape(ops.broadcast_to(values, lead), (-1,))


def _impossible_probabilities(given, single):
    """True for rows that no softmax (or sigmoid) can have produced."""
    outside = ops.logical_or(
        ops.any(given < -1e-3, axis=-1), ops.any(given > 1.001, axis=-1)
    )
    if single:
        return outside
    off = ops.abs(ops.sum(given, axis=-1) - 1.0)
    return ops.logical_or(outside, off > 1e-2)


def _two_classes(given, scores, from_logits):
    """Two class scores for one sigmoid unit: `(0, z)` or `log (1 - p, p)`."""
    if from_logits:
        return ops.concatenate([ops.zeros_like(given), given], axis=-1)
    other = ops.log(ops.maximum(1.0 - given, TINY))
    return ops.concatenate([other, scores], axis=-1)


def _raise_if_seen(faulty, wrong, given, y_true, num_classes):
    faulty = seen(faulty)
    if faulty is None or not faulty.any():
        return faulty is not None
    row = int(faulty.argmax())
    if seen(wrong)[row]:
        labels = seen(y_true)
        raise ValueError(
            f"A label is not one of the {num_classes} classes 0 to "
            f"{num_classes - 1}, nor a row that sums to one. Received: labels "
            f"from {labels.min()} to {labels.max()} (first at row {row}). "
            "Pass `ignore_class=` for a void label, or shift the ids to start "
            "at 0."
        )
    values = seen(given)[row]
    raise ValueError(
        "With `from_logits=False` each prediction must be a probability "
        f"vector. Received: values from {values.min():.6g} to "
        f"{values.max():.6g} that sum to {values.sum():.6g} in row {row} "
        f"(off by {values.sum() - 1:.3g}). If the model ends without a "
        "softmax, pass `from_logits=True`."
    )


def _raise_if_negative(sample_weight):
    if sample_weight is None:
        return
    values = seen(sample_weight)
    if values is not None and values.size and values.min() < 0:
        raise ValueError(
            "Sample weights cannot be negative. Received: a smallest weight "
            f"of {values.min()}. Use 0 to leave a sample out."
        )
