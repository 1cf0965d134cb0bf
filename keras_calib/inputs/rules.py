"""What every reader agrees on: shapes, label kinds, weights, and all messages.

`inputs.rows` reads tensors, also in compiled code, and `inputs.predictions`
whole arrays. A rule on values takes `xp`, the module to compute with:
`keras.ops` or `numpy`.

Weights of samples are `sample_weight` as a user passes them in, and `weights`
once they are read, one per row; `weight` is one number, or that of a bin.
"""

import dataclasses

import numpy as np

from keras_calib._warning import warn
from keras_calib.inputs.arguments import is_integer
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.not_finite import NotFinite

# How far outside [0, 1] a probability may be, and how far from one their sum.
OUTSIDE = 1e-3
OFF = 1e-2
# Sums that rounding to two digits explains, but of very many classes.
ROUNDED = 5e-2
# The same for labels that are rows, and for logits that are suspected to be
# probabilities: a softmax is more exact than a rounded table.
EXACT = 1e-3
# Of so many rows that sum to nearly one, all are probabilities.
SURE = 8
# What to do where labels and predictions of one shape are no rows of classes,
# and what to pass where classes came.
ONE_UNIT_EACH = (
    " One sigmoid unit per token needs a class axis: pass `y_pred[..., None]`, "
    "or end the model with `keras.layers.Reshape((time, 1))`."
)
NO_PREDICTED_CLASSES = "the probability of every class, no predicted classes."


@dataclasses.dataclass(frozen=True)
class Layout:
    """How labels and predictions are laid out.

    Attributes:
        lead: shape of one value per row; `None` where a size is not known.
        width: size of the class axis, 1 for one sigmoid unit.
        one_hot: whether labels are rows, one-hot or soft.
    """

    lead: tuple
    width: int
    one_hot: bool

    @property
    def single(self):
        """Whether predictions are those of one sigmoid unit."""
        return self.width == 1

    @property
    def num_classes(self):
        return max(self.width, 2)


def layout(labels, predictions, axis=-1):
    """Tell from shapes how labels and predictions are laid out.

    Args:
        labels: shape of the labels: class ids, `(...)` or `(..., 1)`, or rows,
            `(..., num_classes)`.
        predictions: shape of the predictions: `(..., num_classes)`, or
            `(..., 1)` or `(n,)` for one sigmoid unit.
        axis: the class axis.

    Returns:
        `Layout`.

    Raises:
        ValueError: if shapes do not fit.
    """
    labels, predictions = tuple(labels), tuple(predictions)
    rank = len(predictions)
    if rank == 0:
        raise ValueError(
            "Predictions need a class axis: shape `(n, num_classes)`, or `(n, "
            "1)` or `(n,)` for one sigmoid unit. Received: a single number. "
            "For one sample pass a batch of one."
        )
    if rank == 1:
        lead, width, place = predictions, 1, 1
    else:
        check_axis(axis, predictions)
        place = axis % rank
        width = predictions[place]
        lead = predictions[:place] + predictions[place + 1 :]
    if not width:
        raise ValueError(
            "Predictions need a class axis of known size, at least 1. "
            f"Received: predictions of shape {predictions}, axis={axis}. Give "
            "the last layer a fixed number of units."
        )
    num_classes = max(width, 2)
    rows = (*lead[:place], num_classes, *lead[place:])
    if fits(labels, lead):
        return Layout(lead, width, False)
    ones = (*lead, 1), (*lead[:place], 1, *lead[place:])
    if fits(labels, ones[0]) or fits(labels, ones[1]):
        # A last axis of unknown size is that of the classes, if there are any.
        if width == 1 or labels[place] is not None:
            return Layout(lead, width, False)
    if fits(labels, rows):
        return Layout(lead, width, True)
    raise ValueError(
        "Labels and predictions do not fit. Received: labels of shape "
        f"{labels}, predictions of shape {predictions}. Pass class ids of "
        f"shape {lead}, or one-hot rows of shape {rows}."
    )


def check_axis(axis, predictions):
    """Raise unless an axis is one of predictions of a shape."""
    rank = len(predictions)
    if not is_integer(axis) or not -rank <= axis < rank:
        raise ValueError(
            "`axis` is the class axis of the predictions. Received: "
            f"axis={axis!r}, predictions of shape {tuple(predictions)}. Pass "
            "an axis that they have; -1 is the last."
        )


def check_ignore_class(ignore_class):
    """Raise unless `ignore_class` can be compared with labels."""
    if ignore_class is not None and not is_number(ignore_class):
        raise ValueError(
            "`ignore_class` is the label of rows that do not count, one "
            f"number. Received: ignore_class={ignore_class!r}."
        )


def fits(shape, expected):
    """Whether a shape is the expected one, as far as sizes are known."""
    return len(shape) == len(expected) and all(
        a == b or a is None or b is None
        for a, b in zip(shape, expected, strict=True)
    )


def shape_per_row(shape, lead, what="Sample weights"):
    """The shape in which weights or a mask broadcast to `lead`.

    They are aligned from the left: `(batch,)` weighs whole images. A last axis
    of size 1 that the rows do not have is dropped.

    Args:
        shape: as they came.
        lead: shape of one value per row.
        what: how they are called in the message.

    Returns:
        A shape as long as `lead`.

    Raises:
        ValueError: if they do not fit.
    """
    given = tuple(shape)
    shape = given
    while len(shape) > len(lead) and shape[-1] == 1:
        shape = shape[:-1]
    shape = (*shape, *[1] * (len(lead) - len(shape)))
    if len(shape) != len(lead) or not all(
        a == 1 or a is None or b is None or a == b
        for a, b in zip(shape, lead, strict=True)
    ):
        raise ValueError(
            f"{what} do not fit the predictions. Received: shape {given} for "
            f"rows of shape {tuple(lead)}. Pass one value per row, or one per "
            "sample, `(n,)` or `(n, 1)`: they are aligned from the left."
        )
    return shape


def is_float(values):
    """Whether an array or tensor holds floats."""
    return "float" in _name_of(values.dtype)


def _name_of(dtype):
    """The name of a dtype of any framework, in any order of its bytes."""
    return str(getattr(dtype, "name", dtype))


def wrong_ids(ids, num_classes, xp):
    """True where a class id is invalid: out of range, not whole, or NaN."""
    right = xp.logical_and(ids >= 0, ids < num_classes)
    if is_float(ids):
        right = xp.logical_and(right, xp.floor(ids) == ids)
    return xp.logical_not(right)


def is_half(dtype):
    """Whether a dtype, of any framework, is float16 or bfloat16."""
    return "float16" in _name_of(dtype)


def wrong_rows(targets, xp, dtype):
    """True where a row of labels is not a distribution.

    Args:
        targets: rows, float32 or wider, or integers.
        xp: the module to compute with.
        dtype: that of the labels as they came; half precision has rounded.
    """
    off = OFF if is_half(dtype) else EXACT
    right = xp.logical_and(
        xp.all(targets >= 0, axis=-1),
        xp.abs(xp.sum(targets, axis=-1) - 1.0) <= off,
    )
    return xp.logical_not(right)


def wrong_weights(weights, xp):
    """True where a weight is negative, infinite or NaN."""
    return xp.logical_not(xp.logical_and(weights >= 0, weights < float("inf")))


def wrong_probabilities(given, xp):
    """True for rows `(n, width)` that no softmax or sigmoid can have given."""
    inside = xp.logical_and(given >= -OUTSIDE, given <= 1 + OUTSIDE)
    right = xp.all(inside, axis=-1)
    if given.shape[-1] > 1:
        off = xp.abs(xp.sum(given, axis=-1) - 1.0)
        right = xp.logical_and(right, off <= OFF)
    return xp.logical_not(right)


def wrong_logits(given, xp):
    """True for rows with NaN or infinity, or without a class.

    Minus infinity rules a class out, which is allowed.
    """
    infinity = float("inf")
    right = xp.logical_and(
        xp.all(given < infinity, axis=-1), xp.any(given > -infinity, axis=-1)
    )
    return xp.logical_not(right)


def rows_of_probabilities(given, xp):
    """Two masks, `(n,)`: rows that a softmax could have given, and soft ones.

    The first are non-negative and sum to one. Of these the second have an
    entry between 0 and 1: a row of zeros and a one may well be logits.
    """
    # Sums of half precision are farther off. So many rows are no chance.
    off = OFF if (given.shape[0] or 0) >= SURE else EXACT
    possible = xp.logical_and(
        xp.all(given >= 0, axis=-1),
        xp.abs(xp.sum(given, axis=-1) - 1.0) <= off,
    )
    inside = xp.logical_and(given > 0, given < 1)
    return possible, xp.logical_and(possible, xp.any(inside, axis=-1))


def check_weights(weights):
    """Raise for weights that are not finite and non-negative, `(n,)`."""
    wrong = wrong_weights(weights, np)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            "Sample weights cannot be negative, infinite or NaN. Received: a "
            f"weight of {weights[row]} in row {row}. Use 0 to leave a sample "
            "out."
        )


def warn_of_predicted_classes(dtype):
    """Warn of probabilities of a dtype, of any framework, without fractions."""
    if "float" not in _name_of(dtype):
        warn(
            f"Predictions of dtype {dtype} are taken for probabilities of 0 "
            f"and 1. Pass {NO_PREDICTED_CLASSES}"
        )


def check_probabilities(given, like_labels=False):
    """Raise for rows `(n, width)` that cannot be probabilities.

    Args:
        given: rows of probabilities.
        like_labels: whether labels came as rows of the same shape.
    """
    if are_probabilities(given):
        return
    wrong = wrong_probabilities(given, np)
    if not wrong.any():
        return
    missing = np.isnan(given).any(axis=-1)
    if missing.any():
        # Others that are wrong, too, are of no network that diverged.
        raise (NotFinite if missing[wrong].all() else ValueError)(
            "Probabilities must be numbers. Received: NaN, or an empty cell, "
            f"in {missing.sum()} of {len(missing)} rows, first in row "
            f"{missing.argmax()}. Leave these samples out, or give them a "
            "weight of 0."
        )
    row = int(wrong.argmax())
    values, total = given[row], given[row].sum()
    detail = (
        ""
        if len(values) == 1
        else (f", and a row that sums to {total:.6g} (off by {total - 1:.3g})")
    )
    inside = values.min() >= 0 and values.max() <= 1
    units = ONE_UNIT_EACH if like_labels and inside else ""
    remedy = (
        "If the model ends without a softmax or sigmoid, pass "
        "`from_logits=True`."
    )
    if given.min() >= 0 and (np.abs(given.sum(axis=-1) - 1) <= ROUNDED).all():
        remedy = "If they were rounded, divide each row by its sum."
    raise ValueError(
        "With `from_logits=False` each prediction must be a probability "
        f"vector. Received: values from {values.min():.6g} to "
        f"{values.max():.6g}{detail} in row {row}. {remedy}{units}"
    )


def are_probabilities(given):
    """Whether all rows `(n, width)` are probabilities; one unit is in [0, 1].

    A pass over all is faster than a mask of rows, which is for the wrong ones.
    """
    if not given.size:
        return True
    if not given.min() >= 0:
        return False
    if given.shape[-1] == 1:
        return bool(given.max() <= 1)
    return bool((np.abs(given.sum(axis=-1) - 1.0) <= OFF).all())


def check_logits(given):
    """Raise for rows `(n, width)` that cannot be logits.

    Rows that are non-negative and sum to one are probabilities: two or more,
    that are not all zeros and a one, and not of one unit, which cannot tell.
    """
    refuse_probabilities(given, *check_finite(given))


def refuse_probabilities(given, low, high):
    """Raise for rows `(n, width)` that are probabilities, see `check_logits`.

    Args:
        given: rows of logits.
        low: the least of them.
        high: the largest.
    """
    if given.shape[-1] > 1 and len(given) > 1 and low >= 0 and high <= 1.001:
        possible, soft = rows_of_probabilities(given, np)
        if possible.all() and soft.any():
            raise_for_probabilities(f"{len(given)} rows that do")


def check_finite(given):
    """The least and the largest logit; raise for NaN and infinity."""
    low, high = (given.min(), given.max()) if given.size else (0.0, 0.0)
    if np.isfinite(low) and np.isfinite(high):
        return low, high
    wrong = wrong_logits(given, np)
    if wrong.any():
        rule = ", or minus infinity for a class that is ruled out"
        if given.shape[-1] == 1:
            rule = " for one sigmoid unit"
        raise NotFinite(
            f"Logits must be finite{rule}. Received: NaN or infinity in "
            f"{wrong.sum()} of {len(wrong)} rows, first in row {wrong.argmax()}"
            ". Look for overflow in the network, or leave these samples out."
        )
    return low, high


def raise_for_probabilities(received):
    """The error for probabilities that are passed as logits."""
    raise ValueError(
        "Logits are scores before softmax, and rows that are non-negative and "
        f"sum to one are probabilities. Received: {received}. If the model "
        "ends with a softmax, pass `from_logits=False`; to a layer, which has "
        "no such argument, pass the logarithm."
    )


def no_class_axis(shape):
    """The message for outputs without a class axis."""
    return (
        "The model must give class scores, `(..., num_classes)`, or `(..., 1)` "
        f"for one sigmoid unit. Received: outputs of shape {tuple(shape)}, one "
        "number per sample. Take off what removes the last axis (`Flatten`, "
        "`Reshape`, `squeeze`), or add `keras.layers.Reshape((1,))`."
    )
