"""Labels and group ids that cannot be: what is wrong, in words."""

import numbers

import numpy as np

from keras_calib.inputs import large
from keras_calib.inputs.rules import NO_PREDICTED_CLASSES
from keras_calib.inputs.rules import ONE_UNIT_EACH
from keras_calib.inputs.rules import is_float
from keras_calib.inputs.rules import is_half
from keras_calib.inputs.rules import wrong_ids
from keras_calib.inputs.rules import wrong_rows


def check_numbers(labels):
    """Raise for labels that are strings or objects."""
    if labels.dtype.kind not in "biuf" and "float" not in str(labels.dtype):
        given = f"labels of dtype {labels.dtype}. Number the classes from 0."
        if labels.dtype.kind == "O" and not labels.ndim:
            # A model, for example.
            given = (
                f"labels of type {type(labels.item()).__name__}. Pass the "
                "labels first, then predictions of arrays."
            )
        raise ValueError(
            "Labels must be numbers: class ids, or one-hot rows. Received: "
            f"{given}"
        )


def checked_group_ids(ids, name):
    """Ids of groups, `(n,)`; raise if some are missing or of two types."""
    missing = False
    if ids.dtype.kind == "O" and len(ids):
        missing = len({_type_of(value) for value in ids}) > 1
        try:
            _ = ids[0] < ids[0]
        except TypeError:  # what has no order, such as a dictionary
            missing = True
    if ids.dtype.kind in "OfcmM" and not missing:
        missing = any(value is None or value != value for value in ids)
    if missing:
        raise ValueError(
            f"{name} must have an id for each sample that counts, all numbers "
            "or all strings. Received: ids of several types or without an "
            "order, or None or NaN among them. Give samples without an id an "
            "id of their own, or leave them out."
        )
    return ids


def _type_of(value):
    kinds = str, numbers.Number
    own = type(value)
    return next((kind for kind in kinds if issubclass(own, kind)), own)


def check_ids(ids, num_classes, void="Pass `ignore_class=` for a void label"):
    """Raise for class ids `(n,)` that are invalid.

    Args:
        ids: class ids, `(n,)`.
        num_classes: int.
        void: what to do about labels that are no class.

    Raises:
        ValueError: for others than whole numbers below `num_classes`.
    """
    if not len(ids) or (
        ids.dtype.kind in "biu" and ids.min() >= 0 and ids.max() < num_classes
    ):
        return
    wrong = wrong_ids(ids, num_classes, np)
    if not wrong.any():
        return
    row = int(wrong.argmax())
    if is_float(ids) and not np.floor(ids[row]) == ids[row]:
        binary = ""
        if num_classes == 2:
            binary = " One unit each, as of several labels, needs 0 or 1."
        raise ValueError(
            "Labels must be class ids, whole numbers. Received: a label of "
            f"{ids[row]} in row {row}. Soft labels are rows with one value per "
            f"class.{binary}"
        )
    remedy = ""
    if num_classes == 2 and ids.max() > 1:
        remedy = (
            " Predictions of one number per sample are those of two classes: "
            f"pass {NO_PREDICTED_CLASSES}"
        )
    raise ValueError(
        f"A label is not one of the {num_classes} classes 0 to "
        f"{num_classes - 1}. Received: labels from {ids.min()} to {ids.max()}, "
        f"first in row {row}. {void}, or shift the ids to start at 0.{remedy}"
    )


def checked_rows(targets, like_predictions=False):
    """Rows of labels, `(n, num_classes)`; raise if one is no distribution.

    Rows in half precision become float32, in which their sums are exact.

    Args:
        targets: rows of labels.
        like_predictions: whether predictions came in the same shape.
    """
    dtype = targets.dtype
    if is_half(dtype):
        targets = large.by_rows(lambda rows: rows.astype("float32"), targets)
    wrong = wrong_rows(targets, np, dtype)
    if wrong.any():
        row = int(wrong.argmax())
        binary = ((targets[row] == 0) | (targets[row] == 1)).all()
        units = ONE_UNIT_EACH if like_predictions and binary else ""
        raise ValueError(
            "One-hot or soft labels must be rows that sum to one. Received: "
            f"{targets[row]} in row {row}. For labels that do not exclude "
            "each other use `MultilabelCalibrationError`; `kc.calibrate` takes "
            f"`multi_label=True`.{units}"
        )
    return targets


def refuse_soft_labels(data, problem):
    """Raise `ValueError` unless the labels of `Predictions` are class ids."""
    if data.targets is not None:
        raise ValueError(
            f"{problem} Received: soft labels. Pass class ids or one-hot rows."
        )


def refuse_no_rows(data):
    """Raise `ValueError` unless a row of `Predictions` counts."""
    if not len(data.labels):
        raise ValueError(
            "No row counts. Received: no rows, or only such that have a weight "
            "of 0, are masked, or have the label `ignore_class`."
        )


def is_one_hot(targets):
    """Whether each row holds a single value."""
    return np.array_equal(targets.sum(axis=-1), targets.max(axis=-1))
