"""What Keras hands over, as rows that losses and metrics read.

They see a batch of any rank as `n` rows of class scores. Shapes, sparse or
one-hot labels, `ignore_class`, masks, weights, half precision and bad input
are settled here, by `inputs.rules`, so that no formula has to.
"""

import dataclasses
import functools

from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs import rules
from keras_calib.inputs.arrays import concrete_value
from keras_calib.inputs.predictions import read_predictions
from keras_calib.inputs.tensors import as_tensor
from keras_calib.inputs.tensors import at_least_float32
from keras_calib.inputs.tensors import classes_last
from keras_calib.inputs.tensors import floored
from keras_calib.inputs.tensors import from_the_left
from keras_calib.inputs.tensors import limited
from keras_calib.inputs.tensors import logits_of
from keras_calib.inputs.tensors import pick
from keras_calib.inputs.tensors import predicted_class
from keras_calib.inputs.tensors import quarter_steps
from keras_calib.inputs.tensors import row_max
from keras_calib.inputs.tensors import sum_or_one
from keras_calib.inputs.tensors import unwrapped
from keras_calib.inputs.tensors import within_int32
from keras_calib.keras_private import carried_logits
from keras_calib.keras_private import keras_mask


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
            `(n,)`. A weight of 0 does not change it, as in Keras.
        faulty: true where label, probabilities or weight are impossible,
            `(n,)`. Compiled code cannot raise, so such rows become NaN.
        own_logits: whether `logits` are the network's own, with its zero.
        checked: whether the values could be seen, and were found possible.
        shape: the shape of one value per row as the caller knows it.
        given_probabilities: as they came, `(n, num_classes)`; `None` when
            logits came.
        single: whether predictions were those of one sigmoid unit; they are
            two classes here, with logits `(0, z)`.
        weighted: whether there were sample weights.
    """

    labels: Tensor
    logits: Tensor
    targets: Tensor
    weights: Tensor
    counts: Tensor
    faulty: Tensor
    own_logits: bool
    checked: bool
    shape: tuple
    given_probabilities: Tensor = None
    single: bool = False
    weighted: bool = False

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

        Computed from the values passed in, because `log` can round two
        different probabilities to the same number.
        """
        if self.given_probabilities is None:
            return predicted_class(self.logits)
        return predicted_class(self.given_probabilities)

    @functools.cached_property
    def shifted(self):
        """The logits with the largest of each row at 0, finite.

        The shift is a constant in the gradient. This is exact for functions of
        the softmax, which does not change when a row is shifted.
        """
        return floored(self.gaps)

    @functools.cached_property
    def largest(self):
        """The largest logit of each row, a constant, `(n,)`."""
        return ops.stop_gradient(row_max(self.logits))

    @functools.cached_property
    def gaps(self):
        """`z_k - max_j z_j`; the maximum is held constant."""
        return self.logits - self.largest[:, None]

    @functools.cached_property
    def exponentials(self):
        """`exp(shifted)`, which is `partition` times the probabilities."""
        return ops.exp(self.shifted)

    @functools.cached_property
    def partition(self):
        """Sum of `exponentials`, `(n,)`."""
        return ops.sum(self.exponentials, axis=-1)

    @functools.cached_property
    def log_partition(self):
        return ops.log(self.partition)

    @functools.cached_property
    def log_probabilities(self):
        """`log p`, finite: 0 times that of a class that is ruled out is 0."""
        return self.shifted - self.log_partition[:, None]

    def log_probability(self, index):
        """`log p` of the class `index[i]` in each row, `(n,)`.

        The whole matrix of logarithms is never made, nor its gradient, which
        halves the cost of a compiled cross-entropy.
        """
        return pick(self.logits, index) - self.largest - self.log_partition

    @functools.cached_property
    def probabilities(self):
        """The probabilities passed in, or the softmax of the logits.

        A round trip through `log` would move a confidence that lies on the
        edge of a bin.
        """
        if self.given_probabilities is not None:
            return limited(self.given_probabilities)
        return ops.softmax(self.logits, axis=-1)

    def probability(self, index):
        """`p` of the class `index[i]` in each row, `(n,)`."""
        if self.given_probabilities is None:
            return pick(self.probabilities, index)
        # Picked first: compiled code would clip the whole matrix.
        return limited(pick(self.given_probabilities, index))

    @functools.cached_property
    def total_weight(self):
        """Sum of the weights, or 1 where that is 0."""
        return sum_or_one(self.weights)

    @functools.cached_property
    def relative_weights(self):
        """Weights with the mean 1 over the rows with a weight above 0.

        For a statistic of the batch that depends on the number of samples: a
        constant factor of all weights must change nothing.
        """
        if not self.weighted:
            return self.weights
        number = ops.sum(ops.cast(self.weights > 0, self.weights.dtype))
        return self.weights * (number / self.total_weight)

    def mean(self, values):
        """Weighted mean over rows; 0 for a batch in which no row counts."""
        return ops.sum(values * self.weights) / self.total_weight

    def restore(self, values):
        """One value per row, back in the caller's shape; see `seen`."""
        return ops.reshape(self.seen(values), self.shape)

    def seen(self, values):
        """NaN where label or probabilities are impossible: no silent number.

        Compiled code cannot raise. A NaN is seen in the progress bar, and its
        gradient is zero, so no weight is damaged.

        Args:
            values: one for each row, `(n,)`, or one of all rows.
        """
        faulty = self.faulty if len(values.shape) else ops.any(self.faulty)
        return ops.where(faulty, float("nan"), values)


def as_rows(
    y_true,
    y_pred,
    sample_weight=None,
    from_logits=True,
    axis=-1,
    ignore_class=None,
    check=True,
    mask=None,
    use_carried=True,
):
    """Read labels and predictions of any rank as `Rows`.

    Rows that do not count, for a mask, `ignore_class` or a weight of 0, may
    hold anything: values and gradients are as if they were not there.

    Args:
        y_true: class ids, shape `(...)` or `(..., 1)`, or one-hot or soft
            labels, shape `(..., num_classes)`; told apart by rank.
        y_pred: logits or probabilities, shape `(..., num_classes)`; `(..., 1)`
            or `(n,)` for one sigmoid unit, which is two classes.
        sample_weight: `None`, or weights that broadcast to `(...)` from the
            left: `(batch,)` weighs whole images.
        from_logits: whether `y_pred` holds logits. If not, `log(y_pred)`.
        axis: the class axis of `y_pred`.
        ignore_class: rows with this label do not count.
        check: raise for impossible values where they can be seen.
        mask: `None` for the mask that Keras keeps on `y_pred`, or false where
            a row does not count; aligned as `sample_weight`.
        use_carried: with `from_logits=False`, use the logits that Keras keeps
            on a softmax output where it does: `log(y_pred)` without rounding.

    Returns:
        `Rows`.

    Raises:
        ValueError: if shapes do not fit; if `y_pred` is known to be a softmax
            and `from_logits=True`; and, where the values can be seen, for
            what `inputs.rules` refuses.
    """
    y_true, sample_weight = unwrapped(y_true), unwrapped(sample_weight)
    mask = keras_mask(y_pred) if mask is None else mask
    scores, is_logits = _given_scores(y_pred, from_logits, use_carried)
    labels = as_tensor(within_int32(y_true), "Labels")
    layout = rules.layout(labels.shape, scores.shape, axis)
    if len(scores.shape) > 1:
        labels, scores = classes_last(labels, scores, axis, layout.one_hot)
    batch = ops.shape(scores)[: len(layout.lead)]
    scores = ops.reshape(scores, (-1, layout.width))
    labels, targets, wrong = _labels(labels, layout, scores.dtype)

    counts = _counting_rows(labels, mask, ignore_class, batch, layout.lead)
    weights, used = None, counts
    if sample_weight is not None:
        weights = _per_row(sample_weight, batch, layout.lead)
        weights = ops.cast(weights, scores.dtype)
        used = _both(used, ops.not_equal(weights, 0.0))
    if used is not None:
        # Not by a product: 0 times NaN is NaN, in the gradient too.
        neutral = 0.0 if is_logits else 1.0 / layout.num_classes
        scores = ops.where(used[:, None], scores, neutral)
        if targets is not None:
            targets = ops.where(used[:, None], targets, 0.0)
    unlike = _unlike_softmax(y_pred, axis, is_logits and not from_logits)
    faulty = _faulty(wrong, scores, weights, used, is_logits, unlike)
    args = y_true, y_pred, sample_weight, from_logits, axis, ignore_class, mask
    checked = check and _raise_if_seen(faulty, scores, used, is_logits, args)

    # What is out of range must not reach a gather or a one-hot.
    labels = ops.where(_or_unused(wrong, used), 0, ops.cast(labels, "int32"))
    ones = ops.ones_like(scores[:, 0])
    counts = ones if counts is None else ops.cast(counts, ones.dtype)
    if weights is None:
        weights = counts
    else:
        bad = _or_unused(rules.wrong_weights(weights, ops), used)
        weights = ops.where(bad, 0.0, weights)
    logits, probabilities = logits_of(scores, is_logits, quarter_steps(y_pred))
    return Rows(
        labels=labels,
        logits=logits,
        targets=targets,
        weights=weights,
        counts=counts,
        faulty=faulty,
        # Those that Keras keeps are not known on every backend.
        own_logits=from_logits or layout.single,
        checked=checked,
        shape=_shape_to_restore(layout.lead, batch),
        given_probabilities=probabilities,
        single=layout.single,
        weighted=sample_weight is not None,
    )


def _given_scores(y_pred, from_logits, use_carried):
    """What to compute with, float32 or wider, and whether it is logits."""
    carried = carried_logits(y_pred)
    if carried is not None and from_logits:
        rules.raise_for_probabilities("the output of a softmax or sigmoid")
    if carried is not None and use_carried:
        return at_least_float32(carried), True
    return at_least_float32(y_pred), from_logits


def _shape_to_restore(lead, batch):
    """Of one value per row; a tensor where compiled code knows no more."""
    shape = (-1,) if len(lead) == 1 else (-1, *lead[1:])
    return batch if None in shape else shape


def _unlike_softmax(y_pred, axis, carried):
    """Rows of several sigmoid units, whose logits Keras keeps, too, or `None`.

    Without those logits they are no probabilities either.
    """
    if not carried or len(y_pred.shape) == 1 or y_pred.shape[axis] == 1:
        return None
    sums = ops.sum(at_least_float32(y_pred), axis=axis)
    return ops.abs(ops.reshape(sums, (-1,)) - 1.0) > rules.OFF


def _faulty(wrong, scores, weights, used, is_logits, unlike):
    """Rows that count and are impossible, `(n,)`."""
    faulty = wrong if unlike is None else ops.logical_or(wrong, unlike)
    if not is_logits:
        faulty = ops.logical_or(faulty, rules.wrong_probabilities(scores, ops))
    if weights is not None:
        faulty = ops.logical_or(faulty, rules.wrong_weights(weights, ops))
    return faulty if used is None else ops.logical_and(faulty, used)


def _or_unused(rows, used):
    """These rows, and all that do not count."""
    if used is None:
        return rows
    return ops.logical_or(rows, ops.logical_not(used))


def _labels(labels, layout, dtype):
    """Class ids `(n,)`; label rows, or `None`; which labels are invalid."""
    if not layout.one_hot:
        labels = ops.reshape(labels, (-1,))
        if not rules.is_float(labels):
            # Small integers cannot be compared with large numbers.
            labels = ops.cast(within_int32(labels), "int32")
        return labels, None, rules.wrong_ids(labels, layout.num_classes, ops)
    targets = ops.cast(labels, dtype)
    targets = ops.reshape(targets, (-1, layout.num_classes))
    wrong = rules.wrong_rows(targets, ops, labels.dtype)
    labels = ops.cast(ops.argmax(targets, axis=-1), "int32")
    return labels, targets, wrong


def _counting_rows(labels, mask, ignore_class, batch, lead):
    """Which rows count; `None` where all do."""
    counts = None
    rules.check_ignore_class(ignore_class)
    if ignore_class is not None:
        counts = ops.not_equal(labels, ignore_class)
    if mask is not None:
        mask = ops.cast(as_tensor(mask, "Masks"), "bool")
        counts = _both(counts, _per_row(mask, batch, lead, "Masks"))
    return counts


def _both(a, b):
    return b if a is None else ops.logical_and(a, b)


def _per_row(values, batch, lead, what="Sample weights"):
    """Weights or a mask as one value per row, `(n,)`."""
    return ops.reshape(from_the_left(values, batch, lead, what), (-1,))


def _raise_if_seen(faulty, scores, used, is_logits, args):
    """Whether the values could be seen; raises for impossible ones."""
    found = concrete_value(faulty)
    if found is None:
        return False
    if found.any() or (
        is_logits and concrete_value(_suspect_logits(scores, used))
    ):
        # In NumPy, by the same rules, for what to say.
        read_predictions(*args)
    return True


def _suspect_logits(scores, used):
    """Whether `rules.check_logits` may find something, a scalar."""
    wrong = ops.any(rules.wrong_logits(scores, ops))
    if scores.shape[-1] == 1:
        return wrong
    possible, soft = rules.rows_of_probabilities(scores, ops)
    possible = _or_unused(possible, used)
    return ops.logical_or(
        wrong, ops.logical_and(ops.all(possible), ops.any(soft))
    )
