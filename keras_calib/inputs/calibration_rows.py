"""What a calibration map is fitted to: logits, class ids and weights."""

import dataclasses

import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib.inputs import label_rules
from keras_calib.inputs import large
from keras_calib.inputs import rules
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import effective_num_samples
from keras_calib.inputs.arrays import numbered
from keras_calib.inputs.predictions import as_samples
from keras_calib.inputs.predictions import relative_weights


@dataclasses.dataclass(frozen=True)
class CalibrationRows:
    """Checked calibration data, one row per label of a sample.

    Attributes:
        logits: float32 or float64, `(n, num_classes)`; one column for one
            sigmoid unit; minus infinity for a class that is ruled out.
        labels: int32 class ids, `(n,)`.
        weights: `None` or float64, `(n,)`, with the sum `num_samples`.
        num_samples: the number of samples; soft labels make more rows.
        group: `None`, or ids of groups that belong together, such as the
            pixels of an image, int64, `(n,)`. Folds and standard errors keep
            them together.
        sample: the number of the sample of each row, ascending, `(n,)`; `None`
            where each row is a sample.
    """

    logits: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None
    num_samples: int
    group: np.ndarray | None = None
    sample: np.ndarray | None = None

    @property
    def first_rows(self):
        """An index of one row of each sample, whose logits are those of all."""
        if self.sample is None:
            return slice(None)
        return np.unique(self.sample, return_index=True)[1]

    @property
    def sample_weights(self):
        """The weights of the samples, `(num_samples,)`."""
        if self.sample is None:
            return self.full_weights
        return np.bincount(self.sample, self.full_weights)

    @property
    def full_weights(self):
        """`weights`, of ones where there is none."""
        if self.weights is None:
            return np.ones(len(self.labels))
        return self.weights

    @property
    def effective_num_samples(self):
        """How many samples of equal weight tell as much."""
        # Not more than there are, for rounding.
        return min(effective_num_samples(self.full_weights), self.num_samples)

    def part(self, keep):
        """Some of the rows, by a boolean array or sorted indices, `(n,)`.

        Each row must be a sample.
        """
        weights = None if self.weights is None else self.weights[keep]
        labels = self.labels[keep]
        return CalibrationRows(
            np.asarray(large.selected_rows(self.logits, keep)),
            labels,
            relative_weights(weights),
            len(labels),
            None if self.group is None else self.group[keep],
        )


def read_rows(
    logits: ArrayLike,
    labels: ArrayLike,
    sample_weight: ArrayLike | None = None,
    ignore_class: int | None = None,
    groups: ArrayLike | None = None,
) -> CalibrationRows:
    """Read and check calibration data; see `CalibrationLayer.adapt`.

    Returns:
        `CalibrationRows`.

    Raises:
        ValueError: for invalid input, or if no sample remains.
    """
    scores, ids, weights, unit, units = as_samples(
        logits, labels, sample_weight, ignore_class
    )
    return checked_rows(
        scores, ids, weights, group_of_rows(unit, units, groups)
    )


def group_of_rows(unit, units, groups=None):
    """The group of each row.

    Args:
        unit: the sample (index on the first axis) of each row, ascending,
            `(n,)`, or `None` where each row is a sample.
        units: how many samples there are.
        groups: `None`, or the id of the group of each sample, `(units,)`; ids
            may be numbers or strings.

    Returns:
        int64, `(n,)`, or `None` where each row is a group of its own. Without
        `groups`, rows of one sample are a group.

    Raises:
        ValueError: if `groups` has another shape, or ids are missing.
    """
    if groups is None:
        repeats = unit is not None and (unit[1:] == unit[:-1]).any()
        return unit if repeats else None
    groups = as_array(groups)
    if groups.shape != (units,):
        raise ValueError(
            "`groups` must have one id per sample (entry of the first axis), "
            f"shape ({units},). Received: shape {groups.shape}."
        )
    # Samples that do not count may have any id, or none.
    used = np.arange(units) if unit is None else np.unique(unit)
    known = label_rules.checked_group_ids(groups[used], "`groups`")
    ids = np.zeros(units, "int64")
    ids[used], _ = numbered(known)
    return ids if unit is None else ids[unit]


def checked_rows(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    group: np.ndarray | None = None,
) -> CalibrationRows:
    """Check logits, then `rows_of`."""
    rules.check_logits(logits)
    return rows_of(logits, labels, weights, group)


def rows_of(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    group: np.ndarray | None = None,
) -> CalibrationRows:
    """Samples that `as_samples` read, as rows that a map is fitted to.

    A soft label becomes a row for each class it holds, with that part of the
    sample's weight: a weighted mean of losses is then the expected loss.

    Args:
        logits: float32 or float64, `(n, num_classes)`, after
            `rules.check_logits`.
        labels: int32 class ids, `(n,)`, or soft labels, `(n, num_classes)`.
        weights: `None`, or float64, `(n,)`.
        group: see `CalibrationRows`.

    Returns:
        `CalibrationRows`.

    Raises:
        ValueError: see `read_rows`.
    """
    num_samples = len(labels)
    if not num_samples:
        raise ValueError(
            "There is no calibration sample to fit to. Received: 0 samples "
            "with a weight above 0 and a label that counts. Pass data that the "
            "network never trained on."
        )
    weights, sample = relative_weights(weights), None
    if labels.ndim == 2:
        sample, labels, weights = _row_per_class(labels, weights)
        logits = logits[sample]
        group = None if group is None else group[sample]
    logits = _within_range(logits)
    if logits.shape[1] > 1:
        _refuse_impossible(logits, labels)
    return CalibrationRows(logits, labels, weights, num_samples, group, sample)


def _row_per_class(targets, weights):
    targets = targets / targets.sum(axis=-1, keepdims=True)
    index, labels = np.nonzero(targets)
    fraction = targets[index, labels].astype("float64")
    weights = fraction if weights is None else fraction * weights[index]
    return index, labels.astype("int32"), weights


def _within_range(logits):
    """Logits, where the smallest floats are minus infinity."""
    # Masks often hold the smallest float instead of minus infinity.
    if logits.min() < LOWEST:
        logits = np.where(logits < LOWEST, -np.inf, logits)
    if logits.max() >= -LOWEST:
        raise ValueError(
            f"Logits must be below {-LOWEST:.0e}. Received: a logit of "
            f"{logits.max():.3g}. Look for overflow in the network."
        )
    return logits


def _refuse_impossible(logits, labels):
    impossible = np.isneginf(logits[np.arange(len(labels)), labels])
    if impossible.any():
        raise ValueError(
            "The network rules out the class of a label: its logit is "
            f"minus infinity. Received: {impossible.sum()} such samples, "
            f"first in {impossible.argmax()}. Without these samples the map "
            "would be too sure. Give the classes a finite logit: of "
            "probabilities p in steps of 1 / n (a forest of n trees), "
            "`np.log(np.maximum(p, 0.5 / n))`."
        )
