"""Correctness ranking loss (CRL).

Samples that were classified correctly more often should have higher confidence.

The history of each sample is kept by `kc.models.SampleHistoryModel`, in
variables of the model: compiled code sees them change, and checkpoints hold
them.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs import rules
from keras_calib.inputs.arguments import is_one_of
from keras_calib.inputs.arguments import require
from keras_calib.inputs.rows import Rows
from keras_calib.inputs.rows import as_rows
from keras_calib.inputs.tensors import as_tensor
from keras_calib.inputs.tensors import pick
from keras_calib.inputs.tensors import predicted_class
from keras_calib.losses._base import PenalizedLoss
from keras_calib.losses._batch_history import BatchHistory
from keras_calib.losses._batch_history import current_history
from keras_calib.losses._reduction import mean_reduction
from keras_calib.losses._reduction import reduce
from keras_calib.ops.confidence import entropy

CONFIDENCES = ("softmax", "margin", "entropy")
NORMALIZATIONS = ("min_max", "fraction")


def crl(
    labels: ArrayLike,
    logits: ArrayLike,
    correctness: ArrayLike,
    *,
    confidence: str = "softmax",
) -> Tensor:
    """`mean_i relu(|a_i - a_j| - sign(a_i - a_j) (c_i - c_j))`.

    The pairs `(i, j)` are neighbors in the batch, the last one with the
    first; pairs of equal correctness cost nothing. `c` is the confidence, and
    that of both is differentiated.

    Args:
        labels: class ids, shape `(batch,)`, or one-hot, `(batch,
            num_classes)`. Read for their shape only.
        logits: scores before softmax, shape `(batch, num_classes)`.
        correctness: `a`, how often each sample was right so far, in `[0, 1]`,
            shape `(batch,)`.
        confidence: `"softmax"`, the largest probability; `"margin"`, its
            distance to the second; or `"entropy"`, minus the entropy as a
            fraction of `log(num_classes)`.

    Returns:
        A scalar.

    Raises:
        ValueError: if `confidence` is unknown, or shapes do not fit.

    Example:
        >>> import keras_calib as kc
        >>> logits = [[2.0, 0.5, -1.0], [0.3, 1.2, -0.7]]
        >>> value = kc.losses.crl([0, 0], logits, correctness=[0.25, 1.0])
        >>> round(float(value), 4)
        0.893

    Reference:
        Moon et al., "Confidence-Aware Learning for Deep Neural Networks", ICML
        2020, eq. 2, with the mean over pairs of the authors' code.
    """
    _check(confidence=confidence)
    rows = as_rows(labels, logits)
    history = as_tensor(correctness, "`correctness`")
    shape, lead = tuple(history.shape), tuple(rows.weights.shape)
    require(
        rules.fits(shape, lead),
        "`correctness` must have one number for each row.",
        correctness=shape,
        rows=lead,
    )
    return rows.seen(_crl(rows, history, confidence))


def _check(confidence="softmax", normalization="min_max"):
    require(
        is_one_of(confidence, CONFIDENCES),
        f"`confidence` must be one of {CONFIDENCES}.",
        'The default is "softmax".',
        confidence=confidence,
    )
    require(
        is_one_of(normalization, NORMALIZATIONS),
        f"`normalization` must be one of {NORMALIZATIONS}.",
        'The default is "min_max".',
        normalization=normalization,
    )


def _crl(rows, correctness, confidence):
    """`mean_i relu(|a_i - a_j| - sign(a_i - a_j) (c_i - c_j))`.

    `a` is the correctness, `c` the confidence, and `j` the row after `i`,
    cyclically. Pairs with `a_i = a_j` add 0.
    """
    correctness = ops.cast(correctness, rows.logits.dtype)
    following = _next_row(rows.weights)
    c = _confidence(rows, confidence)
    gap = correctness - ops.take(correctness, following, axis=0)
    target = ops.stop_gradient(ops.sign(gap))
    margin = ops.stop_gradient(ops.abs(gap))
    distance = c - ops.take(c, following, axis=0)
    pair = ops.relu(margin - target * distance) * ops.abs(target)
    # The weighted sum over all pairs weighs each by both of its rows.
    weight = rows.weights * ops.take(rows.weights, following, axis=0)
    return ops.divide_no_nan(ops.sum(pair * weight), ops.sum(weight))


def _next_row(weights):
    """The row after each row, cyclically; rows of weight 0 are skipped."""
    used = ops.cast(weights > 0, "int32")
    row = ops.cumsum(ops.ones_like(used)) - 1
    # The rows in use first, in their order.
    order = ops.argsort(row + (1 - used) * ops.size(used))
    number = ops.maximum(ops.sum(used), 1)
    # Position of a row among those in use.
    place = ops.cumsum(used) - used
    after = ops.where(place + 1 < number, place + 1, 0)
    return ops.cast(ops.take(order, after, axis=0), "int32")


def _confidence(rows, kind):
    if kind == "entropy":
        return -entropy(rows) / math.log(rows.num_classes)
    index = rows.predicted
    largest = rows.probability(index)
    if kind == "softmax":
        return largest
    chosen = ops.one_hot(index, rows.num_classes, dtype="bool")
    others = ops.where(chosen, -1.0, rows.probabilities)
    return largest - pick(others, predicted_class(others))


def check_one_row_per_sample(rows: Rows) -> None:
    """Refuse pixels and tokens: they have no history of their own."""
    if len(rows.shape) != 1:
        raise ValueError(
            "There is one history per sample, so one prediction per sample, "
            "of shape `(batch, num_classes)`. Received: predictions with "
            f"{len(rows.shape)} axes before the classes. A history has no "
            "meaning for pixels or tokens."
        )


@keras.saving.register_keras_serializable(package="keras_calib")
class CRL(PenalizedLoss):
    """Primary loss plus `weight` times the correctness ranking loss (`crl`).

    It compares samples by how often they were right so far. So it belongs to a
    `kc.models.SampleHistoryModel`, which keeps that history and shows the two
    parts as `primary_loss` and `penalty`; and the training data carries a
    number for each sample, `kc.add_sample_index(x)`. In the first epoch there
    is nothing to rank, and validation data has no history: there the penalty is
    0 and the loss is the primary loss.

    Args:
        confidence: what is ranked: `"softmax"`, `"margin"` or `"entropy"`; see
            `crl`.
        normalization: how counts become a correctness in `[0, 1]`.
            `"min_max"`, as in the authors' code: `(h_i - min h) / (E - min
            h)`, where `h_i` counts how often sample `i` was right, `min h` is
            taken over the data set and `E` is the number of completed epochs,
            read from the batch as the most often that a sample of it was
            seen. Where samples are drawn more than once per epoch, that is too
            many: use `"fraction"`, as in the paper, `h_i` over how often
            sample `i` was seen. Both are the same as long as some sample has
            never been right and each is seen once per epoch.
        primary: the loss to add to; see `PenalizedLoss`.
        weight: float, what the ranking loss is multiplied by.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `reduction`, `name`,
            `dtype`, as in Keras.

    Call arguments:
        y_true: class ids, `(batch,)` or `(batch, 1)`, or one-hot rows, `(batch,
            num_classes)`.
        y_pred: probabilities, or logits if `from_logits`, `(batch,
            num_classes)`; `(batch, 1)` for one sigmoid unit.

    Raises:
        ValueError: if an argument is unknown; when called, if no
            `SampleHistoryModel` is around it, or rows are not samples.

    Example:
        >>> import keras, numpy as np, keras_calib as kc
        >>> x, y = np.random.default_rng(0).normal(size=(64, 4)), np.arange(64)
        >>> network = keras.Sequential([keras.layers.Dense(3)])
        >>> model = kc.models.SampleHistoryModel(network, num_samples=len(x))
        >>> model.compile("adam", kc.losses.CRL(from_logits=True))
        >>> x = kc.add_sample_index(x)
        >>> history = model.fit(x, y % 3, epochs=2, verbose=0)
        >>> sorted(history.history)
        ['loss', 'penalty', 'primary_loss']

    Reference:
        Moon et al., "Confidence-Aware Learning for Deep Neural Networks", ICML
        2020, eq. 2 and Section 3.2.
    """

    batch_statistic = True

    def __init__(
        self,
        *,
        confidence: str = "softmax",
        normalization: str = "min_max",
        primary: keras.losses.Loss | str | None = "cross_entropy",
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(primary=primary, weight=weight, **kwargs)
        _check(confidence, normalization)
        if self.across_replicas:
            raise ValueError(
                "The history of CRL is that of the samples of one replica. "
                "Received: across_replicas=True. Leave it out."
            )
        self.keep(confidence=confidence, normalization=normalization)

    def terms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        history = self._history()
        per_row, batch = self.primary_terms(rows)
        penalty = self.penalty(rows)
        reduction = mean_reduction(self)
        history.parts["primary_loss"] = reduce(rows, per_row, batch, reduction)
        history.parts["penalty"] = penalty
        return per_row, batch + self.weight * penalty

    def penalty(self, rows: Rows) -> Tensor:
        history = self._history()
        if history.correct is None:
            return ops.zeros((), dtype=rows.logits.dtype)
        check_one_row_per_sample(rows)
        return _crl(rows, self.correctness(history), self.confidence)

    def correctness(self, history: BatchHistory) -> Tensor:
        """The correctness `a` of each sample in the batch, in `[0, 1]`.

            fraction: a_i = h_i / number of times that sample i was seen
            min_max:  a_i = (h_i - min h) / (number of epochs - min h)

        `h_i` counts how often sample `i` was right; `a` is a constant.
        """
        if self.normalization == "fraction":
            return ops.divide_no_nan(history.correct, history.seen)
        # Each sample is seen once per epoch, so the largest count is the number
        # of completed epochs.
        epochs = ops.max(history.seen, initial=1.0)
        # All always right: nothing to rank, and no 0 / 0.
        return ops.divide_no_nan(
            history.correct - history.lowest, epochs - history.lowest
        )

    def component_metrics(self) -> list[keras.metrics.Metric]:
        """No metrics: `SampleHistoryModel` shows both parts by itself.

        A metric sees labels and predictions, but no history.

        Returns:
            An empty list.
        """
        return []

    def _history(self):
        history = current_history()
        if history is None:
            raise ValueError(
                "CRL needs the history of each sample. Train "
                "`kc.models.SampleHistoryModel(model, num_samples=len(x))` on "
                "`kc.add_sample_index(x)`, and leave out the metrics of a loss "
                "that has CRL inside: a metric sees no history."
            )
        return history
