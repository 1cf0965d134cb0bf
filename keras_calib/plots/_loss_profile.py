"""A loss and its gradient, as functions of the confidence."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arguments import require_kind
from keras_calib.ops.gradients import value_and_gradient
from keras_calib.plots import _legend
from keras_calib.plots import _style

POINTS = 401
# Of losses that are no mean over rows, each point is a batch of its own.
POINTS_ONE_BY_ONE = 101


def loss_profile(
    losses: Any,
    *,
    num_classes: int = 10,
    title: str | None = None,
    axes: Any = None,
) -> Any:
    """Draw losses, and their gradients, against the confidence in the label.

    One sample of class 0 has the logits `(z, 0, ..., 0)`, so that its label has
    the probability p and all others share `1 - p` equally. Above is the loss,
    below the gradient by z that training sees, `p - 1` for cross-entropy: where
    it is 0, training leaves the confidence as it is. It is not the slope of the
    curve above where a loss holds a part constant (`stop_gradient`) or jumps. A
    loss of the statistics of a batch is that of a batch of this one sample.

    Args:
        losses: a `keras.losses.Loss` for class ids, such as those of
            `kc.losses`, or a dict of up to six, by name.
        num_classes: int, number of classes.
        title: text above the figure.
        axes: matplotlib axes, two, for loss and gradient, or one, for the loss
            alone. Defaults to a new figure.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: if there are no losses, or more than six.
        ImportError: if matplotlib is missing.

    Example:
        >>> import keras_calib as kc
        >>> figure = kc.plots.loss_profile({
        ...     "focal": kc.losses.FocalLoss(gamma=3.0, from_logits=True),
        ...     "MbLS": kc.losses.MarginLabelSmoothing(from_logits=True),
        ... })
        >>> [panel.get_ylabel() for panel in figure.axes]
        ['loss', 'gradient']

    Reference:
        Mukhoti et al., "Calibrating Deep Neural Networks using Focal Loss",
        NeurIPS 2020, arXiv:2002.09437, Section 4, for gradients that depend on
        the confidence.
    """
    require_integer(2, num_classes=num_classes)
    if not isinstance(losses, dict):
        losses = {getattr(losses, "name", None): losses}
    for each in losses.values():
        require_kind(keras.losses.Loss, "a loss object", loss=each)
    require(
        1 <= len(losses) <= _style.MOST,
        f"A figure compares one to {_style.MOST} losses.",
        losses=len(losses),
    )
    figure, (above, below) = _style.take_axes(
        axes, (4.8, 5.6), rows=2, least=1, sharex=True, height_ratios=(3, 2)
    )
    for place, (name, loss) in enumerate(losses.items()):
        _, p, values, slopes = profile(loss, num_classes)
        style = {
            "color": _style.COLORS[place],
            "linestyle": _style.LINES[place],
            "linewidth": 1.8,
            "marker": _style.MARKERS[place],
            "markersize": 4,
            "markevery": 0.12,
        }
        above.plot(p, values, label=_style.in_legends(str(name)), **style)
        if below is not None:
            below.plot(p, slopes, **style)
    above.set(xlim=(0, 1), ylabel="loss")
    _style.set_title(
        above, _style.title_or(title, "Loss by confidence in the label")
    )
    new = figure if axes is None else None
    _legend.add_legend(above, new=new, loc="upper right")
    if below is not None:
        below.axhline(0.0, color=_style.ink(below), linestyle="--", linewidth=1)
        below.set_ylabel("gradient")
    (below or above).set_xlabel("probability of the label")
    return figure


def profile(loss, num_classes):
    """Logit, probability, loss and its gradient by the logit, of one sample.

    Args:
        loss: `keras.losses.Loss`.
        num_classes: int.

    Returns:
        Four float64 arrays, `(num_points,)`.
    """
    shift = np.log(num_classes - 1.0)
    z = np.linspace(shift - 6, shift + 6, POINTS)
    scores = _scores(loss, ops.convert_to_tensor(z, "float32"), num_classes)
    by_rows = _of_rows(loss, ops.convert_to_numpy(scores)) is not None
    if not by_rows:
        z = z[:: (POINTS - 1) // (POINTS_ONE_BY_ONE - 1)]
    labels = ops.zeros(len(z), "int32")

    def losses(tensor):
        scores = _scores(loss, tensor, num_classes)
        if by_rows:
            return loss.call(labels, scores)
        rows = (slice(i, i + 1) for i in range(len(z)))
        return ops.stack([loss(labels[row], scores[row]) for row in rows])

    found = value_and_gradient(losses, z.astype("float32"))
    p = 1 / (1 + (num_classes - 1) * np.exp(-z))
    return z, p, *(each.astype("float64") for each in found)


def _scores(loss, z, num_classes):
    """Logits or probabilities of one sample for each `z`."""
    z = ops.reshape(z, (-1, 1))
    if getattr(loss, "from_logits", False):
        return ops.pad(z, ((0, 0), (0, num_classes - 1)))
    p = ops.sigmoid(z - np.log(num_classes - 1.0))
    others = (1 - p) / (num_classes - 1)
    return ops.concatenate([p] + (num_classes - 1) * [others], axis=1)


def _of_rows(loss, scores):
    """Losses of all rows at once; `None` if they depend on each other."""
    labels = ops.zeros(len(scores), "int32")
    values = loss.call(labels, ops.convert_to_tensor(scores))
    values = ops.convert_to_numpy(values).astype("float64")
    if values.shape != (len(scores),):
        return None
    places = [0, len(scores) // 3, len(scores) - 1]
    alone = [_of_one(loss, scores[place]) for place in places]
    same = np.allclose(values[places], alone, rtol=1e-4, atol=1e-6)
    return values if same else None


def _of_one(loss, row):
    return float(loss(np.zeros(1, "int32"), row[None]))
