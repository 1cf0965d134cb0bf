"""Labels and predictions as NumPy arrays, read once and checked.

`inputs.rows` reads the same for compiled code; here the digits matter: a
backend may cut float64 to float32.
"""

import dataclasses
import functools

import keras
import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib.inputs import arrays
from keras_calib.inputs import label_rules
from keras_calib.inputs import large
from keras_calib.inputs import rules
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import as_floats
from keras_calib.inputs.arrays import numbered
from keras_calib.keras_private import keras_mask


def top_label(
    labels: np.ndarray, probabilities: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Confidence and correctness of each prediction.

    Args:
        labels: class ids, shape `(n,)`.
        probabilities: shape `(n, num_classes)`.

    Returns:
        confidence: in the dtype of `probabilities`, because a value at the
            edge of a bin must stay there, `(n,)`.
        correct: 1.0 where the first largest probability is the label's,
            float64, `(n,)`.
    """
    predicted = probabilities.argmax(axis=-1)
    confidence = probabilities[np.arange(len(predicted)), predicted]
    return confidence, (predicted == labels).astype("float64")


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The rows of a set of predictions that count.

    There is one per sample, token or pixel.

    Attributes:
        labels: class ids, `(n,)`.
        probabilities: float32 or float64, `(n, num_classes)`.
        logits: `(n, num_classes)`, or `None` where probabilities came.
        targets: soft labels, `(n, num_classes)`, or `None`.
        weights: `None` for ones, else `(n,)`, positive, with sum `n`.
        unit: index on the first axis (an image has many rows) or number of the
            cluster of each row, `(n,)`; `None` where each row is its own.
        units: how many indices there are.
        group: the id of the group of each row, `(n,)`, or `None`.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    logits: np.ndarray | None
    targets: np.ndarray | None
    weights: np.ndarray | None
    unit: np.ndarray | None
    units: int
    group: np.ndarray | None = None

    def part(self, which):
        """Some rows: a boolean array, `(n,)`, or their positions."""
        found = {
            name: None if value is None else large.selected_rows(value, which)
            for name, value in vars(self).items()
            if name in self.__dataclass_fields__ and name != "units"
        }
        units = len(found["labels"])
        if found["unit"] is not None:
            found["unit"], units = numbered_units(found["unit"])
        weights = relative_weights(found.pop("weights"))
        part = Predictions(**found, weights=weights, units=units)
        if "top_label" in vars(self):
            # What is known of all rows need not be searched again.
            confidence, correct = self.top_label
            vars(part)["top_label"] = confidence[which], correct[which]
        return part

    @property
    def num_classes(self):
        return self.probabilities.shape[1]

    @functools.cached_property
    def by_class(self):
        """Probabilities with a class per row, `(num_classes, n)`."""
        return large.transposed(self.probabilities)

    @functools.cached_property
    def top_label(self):
        """Confidence and correctness; see the function `top_label`."""
        n, num_classes = self.probabilities.shape
        if n < 1000 * num_classes:
            return top_label(self.labels, self.probabilities)
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
            return large.by_rows(np.log, self.probabilities)

    def brier(self):
        """Brier score of each row, float64: of sure ones a small difference."""
        p = self.probabilities
        if self.targets is not None:
            return ((p - self.targets) ** 2).sum(axis=1).astype("float64")
        squares = large.by_rows(arrays.squared_norms, p)
        return squares - 2.0 * self.of_label(p) + 1.0

    def negative_log_likelihood(self):
        """Negative log-likelihood of each row in nats, float64."""
        if self.targets is not None:
            log_p = np.where(self.targets > 0, self.log_probabilities, 0.0)
            log_p = np.where(log_p > LOWEST / 2, log_p, -np.inf)
            with np.errstate(invalid="ignore"):
                terms = np.where(self.targets > 0, log_p * self.targets, 0.0)
            return -terms.sum(axis=1).astype("float64")
        if self.logits is not None:
            log_p = self.of_label(self.log_probabilities)
            return -np.where(log_p > LOWEST / 2, log_p, -np.inf)
        with np.errstate(divide="ignore"):
            return -np.log(self.of_label(self.probabilities))

    def entropy(self):
        """Entropy of each row in nats, float64."""
        h = large.by_rows(
            arrays.entropy, self.probabilities, self.log_probabilities
        )
        return h.astype("float64")


def read_predictions(
    labels: ArrayLike,
    predictions: ArrayLike,
    sample_weight: ArrayLike | None = None,
    from_logits: bool = False,
    axis: int = -1,
    ignore_class: int | None = None,
    mask: ArrayLike | None = None,
    relative: bool = True,
    groups: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
) -> Predictions:
    """Read arrays or tensors of any rank as `Predictions`.

    Args:
        labels: class ids, `(...)` or `(..., 1)`, or rows, `(..., classes)`.
        predictions: `(..., classes)`; `(..., 1)` or `(n,)` for one sigmoid
            unit, which gets a second class.
        sample_weight: `None`, or weights that broadcast from the left.
        from_logits: whether `predictions` are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        mask: `None`, or false where a row does not count; as `sample_weight`.
        relative: bring weights to a sum of the number of rows that count.
        groups: `None`, or ids for `group`; as `sample_weight`.
        clusters: `None`, or ids that take the place of the first axis in
            `unit`; as `sample_weight`.

    Raises:
        ValueError: for bad input, with what to do.
    """
    require_flags(from_logits=from_logits)
    rows = _read(labels, predictions, sample_weight, axis, ignore_class, mask)
    scores, weights = rows.scores, rows.weights
    logits, targets = None, rows.targets
    if from_logits:
        rules.check_logits(scores)
        single = scores.shape[-1] == 1
        scores = logits = arrays.two_classes(scores) if single else scores
    else:
        rules.warn_of_predicted_classes(rows.dtype)
        alike = targets is not None and targets.shape == scores.shape
        rules.check_probabilities(scores, alike)
        scores = large.by_rows(lambda block: block.clip(0.0, 1.0), scores)
    probabilities = arrays.class_probabilities(scores, from_logits)
    if targets is not None and label_rules.is_one_hot(targets):
        targets = None
    if relative:
        weights = relative_weights(weights)
    elif weights is not None and (weights == 1).all():
        weights = None
    unit, units = None, len(rows.labels)
    if len(rows.lead) > 1:  # images that do not count are no units
        unit, units = numbered_units(rows.unit)
    if clusters is not None:
        unit, units = numbered_units(rows.ids(clusters, "`clusters`"))
    return Predictions(
        rows.labels,
        probabilities,
        logits,
        targets,
        weights,
        unit,
        units,
        None if groups is None else rows.ids(groups, "`groups`"),
    )


def numbered_units(ids):
    """Numbers of the units of rows, `None` where each is its own; how many."""
    unit, units = numbered(ids)
    return None if units == len(unit) else unit, units


def as_samples(
    logits, labels, sample_weight=None, ignore_class=None, mask=None
):
    """Read calibration data, a batch of it or all.

    Scores are not checked, weights are as they came, and no row may be left.

    Returns:
        logits: float32 or float64, `(n, num_classes)`; one column for one
            sigmoid unit.
        labels: int32, `(n,)`; soft labels as they came, `(n, num_classes)`.
        weights: `None` or float64, `(n,)`.
        unit: index of each row on the first axis, `(n,)`; `None` for its own.
        units: how many indices there are.

    Raises:
        ValueError: for bad input.
    """
    rows = _read(labels, logits, sample_weight, -1, ignore_class, mask)
    labels = rows.labels.astype("int32")
    if rows.targets is not None and not label_rules.is_one_hot(rows.targets):
        labels = rows.targets
    return rows.scores, labels, rows.weights, rows.unit, rows.units


def as_maps(logits, labels, sample_weight=None, ignore_class=None, mask=None):
    """Read calibration data of images, where pixels keep their places.

    Args:
        logits: `(batch, height, width, num_classes)`; values are not checked.
        labels: see `as_samples`; of one class each.
        sample_weight: see `as_samples`.
        ignore_class: see `as_samples`.
        mask: see `as_samples`.

    Returns:
        logits: float32 or float64, shape as they came.
        labels: int32, `(batch, height, width)`, 0 where a pixel does not count.
        weights: float32, `(batch, height, width)`, 0 where it does not count.

    Raises:
        ValueError: for bad input.
    """
    rows = _read(labels, logits, sample_weight, -1, ignore_class, mask)
    if rows.targets is not None and not label_rules.is_one_hot(rows.targets):
        raise ValueError(
            "Images need one class per pixel. Received: soft labels. Pass "
            "class ids."
        )
    logits = as_floats(logits, "Logits")
    ids = np.zeros(len(rows.keep), "int32")
    weights = np.zeros(len(rows.keep), "float32")
    ids[rows.keep] = rows.labels
    weights[rows.keep] = 1.0 if rows.weights is None else rows.weights
    lead = logits.shape[:-1]
    return logits, ids.reshape(lead), weights.reshape(lead)


def relative_weights(weights: np.ndarray | None) -> np.ndarray | None:
    """Weights times the factor that makes their sum their number.

    So a constant factor of all weights changes nothing, also where a number of
    samples enters a formula. `None` where all are equal.
    """
    if weights is None or not len(weights) or weights.min() == weights.max():
        return None
    # The largest first: a sum could be infinite, or lose its digits.
    weights = weights / weights.max()
    return weights * (len(weights) / weights.sum())


@dataclasses.dataclass(frozen=True)
class _Read:
    """Rows that count: what all readers of arrays share.

    Attributes:
        scores: float32 or float64, `(n, width)`.
        labels: int64 class ids, `(n,)`.
        targets: rows of labels as they came, `(n, num_classes)`, or `None`.
        weights: `None` or float64, `(n,)`.
        unit: see `Predictions`.
        units: see `Predictions`.
        lead: shape of one value for each row, also those that do not count.
        keep: which of all rows count, bool, `(all rows,)`.
        dtype: that of the predictions as they came.
    """

    scores: np.ndarray
    labels: np.ndarray
    targets: np.ndarray | None
    weights: np.ndarray | None
    unit: np.ndarray | None
    units: int
    lead: tuple
    keep: np.ndarray
    dtype: np.dtype

    def ids(self, values, name):
        """Ids that broadcast from the left, of the rows that count."""
        values = _per_row(values, self.lead, name)[self.keep]
        return label_rules.checked_group_ids(values, name)


def _read(labels, predictions, sample_weight, axis, ignore_class, mask):
    if mask is None and keras.ops.is_tensor(predictions):
        mask = keras_mask(predictions)
    given = as_array(predictions)
    scores = as_floats(given, "Predictions")
    labels = as_array(labels)
    label_rules.check_numbers(labels)
    rules.check_ignore_class(ignore_class)
    layout = rules.layout(labels.shape, scores.shape, axis)
    lead = layout.lead
    if scores.ndim > 1 and axis not in (-1, scores.ndim - 1):
        scores = np.moveaxis(scores, axis, -1)
        if layout.one_hot:
            labels = np.moveaxis(labels, axis, -1)
    scores = scores.reshape(-1, layout.width)
    targets = unit = None
    if layout.one_hot:
        targets = labels.reshape(-1, layout.num_classes)
        labels = targets.argmax(axis=-1)
    else:
        labels = labels.reshape(-1)
    if len(lead) > 1:
        unit = np.repeat(np.arange(lead[0]), len(scores) // max(lead[0], 1))

    # What does not count may hold anything, weights included.
    keep = np.ones(len(labels), bool)
    if ignore_class is not None:
        keep &= labels != ignore_class
    if mask is not None:
        keep &= _per_row(mask, lead, "Masks").astype(bool)
    weights = None
    if sample_weight is not None:
        weights = as_floats(sample_weight, "Sample weights", "float64")
        weights = _per_row(weights, lead)
        keep &= weights != 0
    if not keep.all():
        scores, labels, targets, weights, unit = (
            part if part is None else large.selected_rows(part, keep)
            for part in (scores, labels, targets, weights, unit)
        )
        if unit is None:
            unit = np.flatnonzero(keep)
    if weights is not None:
        rules.check_weights(weights)
    if targets is None:
        label_rules.check_ids(labels, layout.num_classes)
    else:
        alike = targets.shape == scores.shape
        targets = label_rules.checked_rows(targets, alike)
    labels = labels.astype("int64")
    read = scores, labels, targets, weights, unit, lead[0], lead, keep
    return _Read(*read, given.dtype)


def _per_row(values, lead, what="Sample weights"):
    values = as_array(values)
    shape = rules.shape_per_row(values.shape, lead, what)
    return np.broadcast_to(values.reshape(shape), lead).reshape(-1)
