"""Labels and predictions as NumPy arrays, read once and checked.

`inputs.rows` reads the same for compiled code; here the digits matter: a
backend may cut float64 to float32.
"""

import dataclasses
import functools

import numpy as np

from keras_calib.inputs import arrays
from keras_calib.inputs.arrays import as_array

TINY = np.finfo("float32").tiny


@dataclasses.dataclass(frozen=True)
class Predictions:
    """What counts of a prediction set: one row per sample, token or pixel.

    Attributes:
        labels: class ids, `(n,)`.
        probabilities: float32 or float64, `(n, num_classes)`.
        logits: `(n, num_classes)`, or `None` where probabilities came.
        targets: soft labels, `(n, num_classes)`, or `None`.
        weight: `None` for ones, else `(n,)`, positive.
        unit: the index on the first axis that each row came from, `(n,)`; an
            image has many rows. `None` where each row is its own.
        units: how many indices there are.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    logits: np.ndarray | None
    targets: np.ndarray | None
    weight: np.ndarray | None
    unit: np.ndarray | None
    units: int

    @property
    def num_classes(self):
        return self.probabilities.shape[1]

    @functools.cached_property
    def by_class(self):
        """Probabilities with a class per row, `(num_classes, n)`."""
        return np.ascontiguousarray(self.probabilities.T)

    @functools.cached_property
    def top_label(self):
        """Confidence and correctness of each prediction, as `exact`'s."""
        n, num_classes = self.probabilities.shape
        if n < 1000 * num_classes:
            predicted = self.probabilities.argmax(axis=-1)
            confidence = self.probabilities[np.arange(n), predicted]
            return confidence, (predicted == self.labels).astype("float64")
        # Passes over whole classes are faster than a search per row, which is
        # left for ties: of equal probabilities the first is the prediction.
        confidence = self.by_class.max(axis=0)
        own = self.probabilities[np.arange(n), self.labels]
        correct = own == confidence
        equal = np.zeros(n, "int32")
        for p in self.by_class:
            equal += p == confidence
        tied = np.flatnonzero(correct & (equal > 1))
        first = self.probabilities[tied].argmax(axis=-1)
        correct[tied] = first == self.labels[tied]
        return confidence, correct.astype("float64")

    def of_label(self, values):
        """The entry of the label in each row, float64."""
        rows = np.arange(len(self.labels))
        return values[rows, self.labels].astype("float64")

    @functools.cached_property
    def log_probabilities(self):
        if self.logits is not None:
            return arrays.log_softmax(self.logits)
        with np.errstate(divide="ignore"):
            return np.log(self.probabilities)

    def brier(self):
        """Brier score of each row, float64."""
        p = self.probabilities
        if self.targets is not None:
            return ((p - self.targets) ** 2).sum(axis=1).astype("float64")
        squares = np.einsum("nk,nk->n", p, p).astype("float64")
        return squares - 2.0 * self.of_label(p) + 1.0

    def likelihood(self):
        """Negative log-likelihood of each row in nats, float64."""
        if self.targets is not None:
            log_p = np.where(self.targets > 0, self.log_probabilities, 0.0)
            return -(log_p * self.targets).sum(axis=1).astype("float64")
        if self.logits is not None:
            return -self.of_label(self.log_probabilities)
        with np.errstate(divide="ignore"):
            return -np.log(self.of_label(self.probabilities))

    def entropy(self):
        """Entropy of each row in nats, float64."""
        # 0 log 0 is 0.
        log_p = np.maximum(self.log_probabilities, np.log(TINY))
        h = -np.einsum("nk,nk->n", self.probabilities, log_p)
        return h.astype("float64")


def read_predictions(
    labels,
    predictions,
    sample_weight=None,
    from_logits=False,
    axis=-1,
    ignore_class=None,
):
    """Read arrays or tensors of any rank as `Predictions`.

    Args:
        labels: class ids, `(...)` or `(..., 1)`, or rows, `(..., classes)`.
        predictions: `(..., classes)`; `(..., 1)` or `(n,)` for one sigmoid
            unit, which gets a second class.
        sample_weight: `None`, or weights that broadcast from the left.
        from_logits: whether `predictions` are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.

    Raises:
        ValueError: for bad input, with what to do.
    """
    scores = np.asarray(as_array(predictions))
    if scores.dtype not in ("float32", "float64"):
        scores = scores.astype("float32")
    labels = np.asarray(as_array(labels))
    if scores.ndim == 0:
        raise ValueError(
            "Predictions need a class axis: shape `(n, num_classes)`. "
            f"Received: a single number, {scores}."
        )
    if scores.ndim == 1:
        scores, axis = scores[:, None], -1
    rank = scores.ndim
    if axis not in (-1, rank - 1):
        scores = np.moveaxis(scores, axis, -1)
        if labels.ndim == rank:
            labels = np.moveaxis(labels, axis, -1)
    lead, num_classes = scores.shape[:-1], scores.shape[-1]
    one_hot = num_classes > 1 and labels.shape == scores.shape
    if labels.shape == (*lead, 1):
        labels = labels[..., 0]
    if not one_hot and labels.shape != lead:
        raise ValueError(
            "Labels and predictions do not fit. Labels are class ids of shape "
            f"{lead} or one-hot rows of shape {scores.shape}. Received: labels "
            f"of shape {labels.shape}, predictions of shape {scores.shape}."
        )
    scores = scores.reshape(-1, num_classes)
    weight = _weights(sample_weight, lead)
    targets = None
    if one_hot:
        targets = labels.reshape(-1, num_classes)
        labels = targets.argmax(axis=-1)
        _check_rows(targets)
        if np.array_equal(targets.sum(axis=-1), targets.max(axis=-1)):
            targets = None
    else:
        labels = labels.reshape(-1)
    unit = None
    if len(lead) > 1:
        unit = np.repeat(np.arange(lead[0]), len(scores) // max(lead[0], 1))

    keep = None
    if ignore_class is not None:
        keep = labels != ignore_class
    if weight is not None and (weight == 0).any():
        keep = (weight > 0) if keep is None else keep & (weight > 0)
    if keep is not None and not keep.all():
        scores, labels, targets, weight, unit = (
            part if part is None else part[keep]
            for part in (scores, labels, targets, weight, unit)
        )
        if unit is None:
            unit = np.flatnonzero(keep)
    if weight is not None and (weight == 1).all():
        weight = None
    labels = _class_ids(labels, max(2, num_classes))
    logits = None
    if from_logits:
        if not np.isfinite(scores).all():
            raise ValueError(
                "Logits must be finite. Received: "
                f"{(~np.isfinite(scores)).sum()} values that are not."
            )
        logits = scores
        if num_classes == 1:
            logits = arrays.two_classes(logits)
        probabilities = np.exp(arrays.log_softmax(logits))
    else:
        _check_probabilities(scores)
        probabilities = np.clip(scores, 0.0, 1.0)
        if num_classes == 1:
            probabilities = np.concatenate(
                [1.0 - probabilities, probabilities], axis=-1
            )
    return Predictions(
        labels, probabilities, logits, targets, weight, unit, lead[0]
    )


def _weights(sample_weight, lead):
    if sample_weight is None:
        return None
    weight = np.asarray(as_array(sample_weight), "float64")
    if weight.size and not weight.min() >= 0:
        raise ValueError(
            "Sample weights cannot be negative, or NaN. Received: a smallest "
            f"weight of {weight.min()}. Use 0 to leave a sample out."
        )
    while weight.ndim > len(lead) and weight.shape[-1] == 1:
        weight = weight[..., 0]
    given = weight.shape
    weight = weight.reshape(*given, *[1] * (len(lead) - weight.ndim))
    try:
        return np.broadcast_to(weight, lead).reshape(-1)
    except ValueError as error:
        raise ValueError(
            f"Sample weights must broadcast to {lead} from the left. "
            f"Received: weights of shape {given}."
        ) from error


def _check_rows(targets):
    wrong = np.abs(targets.sum(axis=-1) - 1.0) > 1e-3
    wrong |= targets.min(axis=-1, initial=0) < 0
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            "One-hot or soft labels must be rows that sum to one. Received: "
            f"{targets[row]} in row {row}. For labels that do not exclude "
            "each other, use `MultilabelCalibrationError`."
        )


def _class_ids(labels, num_classes):
    ids = labels.astype("int64")
    if ids.size and (
        ids.min() < 0 or ids.max() >= num_classes or (ids != labels).any()
    ):
        raise ValueError(
            f"A label is not one of the {num_classes} classes 0 to "
            f"{num_classes - 1}. Received: labels from {labels.min()} to "
            f"{labels.max()}. Pass `ignore_class=` for a void label, or shift "
            "the ids to start at 0."
        )
    return ids


def _check_probabilities(scores):
    if not scores.size:
        return
    low, high = scores.min(), scores.max()
    sums = np.ones(1)
    if scores.shape[-1] > 1:
        sums = scores.sum(axis=-1)
    off = np.abs(sums - 1.0)
    # Written so that NaN fails.
    if low >= -1e-3 and high <= 1.001 and off.max() <= 1e-2:
        return
    row = int(np.nanargmax(np.where(np.isnan(off), np.inf, off)))
    raise ValueError(
        "With `from_logits=False` each prediction must be a probability "
        f"vector. Received: values from {low:.6g} to {high:.6g}, and a row "
        f"({row}) that sums to {sums[row]:.6g} (off by {sums[row] - 1:.3g}). "
        "If the model ends without a softmax, pass `from_logits=True`."
    )
