"""Where in an image a segmentation is confident, and where it is wrong."""

from typing import Any

import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import as_floats
from keras_calib.inputs.predictions import read_predictions
from keras_calib.plots import _style

# Both get steadily lighter, so that they can be read without colors.
CLASSES, VALUES = "viridis", "cividis"
VOID = "#999999"


def confidence_map(
    labels: ArrayLike,
    probabilities: ArrayLike,
    *,
    image: ArrayLike | None = None,
    from_logits: bool = False,
    ignore_class: int | None = None,
    title: str | None = None,
    axes: Any = None,
    axis: int = -1,
) -> Any:
    """Draw image, labels, confidence and error of a segmentation.

    The error of a pixel is `|correct - confidence|`: the confidence where the
    prediction is wrong, and what it lacks to 1 where it is right. So light
    pixels are wrong and sure. Pixels that are ignored are gray.

    Args:
        labels: class ids, `(height, width)`, or one-hot rows; a distribution
            counts as its largest entry.
        probabilities: `(height, width, num_classes)`, or logits;
            `(height, width, 1)` for one sigmoid unit.
        image: `None`, or `(height, width)`, or `(height, width, 3)` (or 1, or
            4 with opacity), floats in [0, 1] or integers in [0, 255], drawn
            first. It may be larger than the predictions.
        from_logits: whether `probabilities` are logits.
        ignore_class: pixels with this label are ignored.
        title: text above all panels.
        axes: matplotlib axes, four of them, or three without an image. Defaults
            to a new figure.
        axis: the class axis of the predictions.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: if the input is invalid, or not of one image.
        ImportError: if matplotlib is missing.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> p = rng.dirichlet([1, 1, 1], size=(24, 32))
        >>> figure = kc.plots.confidence_map(p.argmax(-1), p)
        >>> [panel.get_title() for panel in figure.axes][:3]
        ['labels', 'confidence', 'error']
    """
    full_shape = as_array(probabilities).shape
    require(
        len(full_shape) == 3,
        "`probabilities` must be of one image, `(height, width, num_classes)`.",
        "Pass `predictions[0]`.",
        shape=full_shape,
    )
    _check_image(image)
    data = read_predictions(
        labels, probabilities, None, from_logits, axis, ignore_class
    )
    shape = tuple(np.delete(full_shape, axis))
    counts = np.ones(shape, bool)
    ids = as_array(labels)
    if ids.shape == full_shape:
        # One column is that of a sigmoid unit, and not one-hot.
        one_unit = full_shape[axis] == 1
        ids = np.squeeze(ids, axis) if one_unit else ids.argmax(axis)
    if ignore_class is not None and ids.size == counts.size:
        counts = ids.reshape(shape) != ignore_class
    confidence, correct = data.top_label
    maps = {
        "labels": data.labels,
        "confidence": confidence,
        "error": np.abs(correct - confidence),
    }
    number = len(maps) + (image is not None)
    height = 3.0 * shape[0] / shape[1] + 1.0
    # As tall as the panels are with their shape, so that titles are near.
    figure, panels = _style.take_axes(
        axes,
        (3.2 * number, min(height, 6.0)),
        columns=number,
        layout="compressed",
    )
    if image is not None:
        panels[0].imshow(as_array(image), cmap="gray")
        panels[0].set_title("image")
    for panel, (name, values) in zip(panels[-3:], maps.items(), strict=True):
        full = np.ma.masked_all(shape)
        full[counts] = values
        _draw_map(panel, name, full, data.num_classes)
    for panel in panels:
        panel.set(xticks=[], yticks=[])
    _style.set_figure_title(figure, title)
    return figure


def _check_image(image):
    """Raise unless matplotlib can draw it."""
    if image is None:
        return
    shape = as_floats(image, "`image`").shape
    drawable = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))
    require(
        drawable and 0 not in shape,
        "`image` must be one image, `(height, width)` or `(height, width, 3)`.",
        shape=shape,
    )


def _draw_map(axes, name, values, num_classes):
    from matplotlib import colormaps

    if name == "labels":
        colors = colormaps[CLASSES].resampled(num_classes)
        limits = -0.5, num_classes - 0.5
    else:
        colors, limits = colormaps[VALUES], (0.0, 1.0)
    drawn = axes.imshow(
        values,
        cmap=colors.with_extremes(bad=VOID),
        vmin=limits[0],
        vmax=limits[1],
        interpolation="nearest",
    )
    axes.set_title(name)
    bar = axes.figure.colorbar(drawn, ax=axes, location="bottom", shrink=0.9)
    if name == "labels":
        bar.set_ticks(np.unique(np.linspace(0, num_classes - 1, 6).astype(int)))
