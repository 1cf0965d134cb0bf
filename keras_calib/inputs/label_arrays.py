"""Multi-label data: scores, labels and weights of several binary problems."""

import dataclasses

import keras
import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib.inputs.arguments import errors_named
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.calibration_rows import checked_rows
from keras_calib.inputs.predictions import as_maps
from keras_calib.keras_private import keras_mask


@dataclasses.dataclass(frozen=True)
class LabelArrays:
    """A row per sample, token or pixel, a column per label.

    Attributes:
        scores: float32 or float64, `(n, num_labels)`; any value where the
            weight is 0.
        labels: int32, 0 or 1, `(n, num_labels)`.
        weights: float32, `(n, num_labels)`, 0 where an entry does not count.
    """

    scores: np.ndarray
    labels: np.ndarray
    weights: np.ndarray

    @property
    def num_labels(self):
        return self.scores.shape[1]

    def arrays(self):
        return self.scores, self.labels, self.weights

    def of_label(self, number, group):
        """One label as the data of one sigmoid unit.

        Args:
            number: which label.
            group: see `CalibrationRows`.

        Returns:
            `CalibrationRows`, or `None` if no entry of this label counts.

        Raises:
            ValueError: for scores that cannot be logits.
        """
        weights = np.asarray(self.weights[:, number], "float64")
        keep = weights > 0
        if not keep.any():
            return None
        with errors_named(f"Label {number}"):
            return checked_rows(
                np.asarray(self.scores[keep, number])[:, None],
                np.asarray(self.labels[keep, number]),
                weights[keep],
                None if group is None else group[keep],
            )


def read_labels(
    scores: ArrayLike,
    labels: ArrayLike,
    sample_weight: ArrayLike | None = None,
    ignore_class: int | None = None,
    mask: ArrayLike | None = None,
) -> LabelArrays:
    """Read multi-label data, a batch of it or all.

    Args:
        scores: `(..., num_labels)`; values are not checked.
        labels: 0 or 1, `(..., num_labels)`.
        sample_weight: `None`, or weights that broadcast to `scores` from the
            left: one per sample, or one per label of a sample.
        ignore_class: labels of this value do not count.
        mask: `None`, or false where a row does not count, `(...)`.

    Returns:
        `LabelArrays`.

    Raises:
        ValueError: for bad input.
    """
    if mask is None and keras.ops.is_tensor(scores):
        mask = keras_mask(scores)
    scores, labels = as_array(scores), as_array(labels)
    if scores.shape != labels.shape or scores.ndim < 2 or scores.shape[-1] < 2:
        raise ValueError(
            "Multi-label data has scores and labels of one shape, `(..., "
            "num_labels)`, with two labels or more. Received: scores of shape "
            f"{scores.shape}, labels of shape {labels.shape}. Pass a row of 0 "
            "and 1 for each sample; one sigmoid unit alone is not multi-label."
        )
    # Each label of a sample is one sigmoid unit.
    units = scores[..., None]
    parts = as_maps(units, labels, sample_weight, ignore_class, mask)
    return LabelArrays(*(part.reshape(-1, scores.shape[-1]) for part in parts))


def as_label_samples(scores, labels, sample_weight, ignore_class, mask):
    """`read_labels` of a batch: the rows of which an entry counts.

    Returns:
        scores, labels, weights: as in `LabelArrays`.
        unit, units: see `as_samples`.
    """
    units = len(labels)
    data = read_labels(scores, labels, sample_weight, ignore_class, mask)
    used = data.weights.any(axis=1)
    unit = np.arange(units).repeat(len(used) // max(units, 1))
    return *(rows[used] for rows in data.arrays()), unit[used], units
