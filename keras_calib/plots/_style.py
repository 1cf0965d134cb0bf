"""What all figures share: axes, colors, line styles, legends, data.

Colors are those of Okabe and Ito, which color-blind people tell apart. Each
comes with a line style, a marker and a hatch, so that a copy in black and white
can be read. Text and thin lines take the color that stands out from the
background of their axes, dark or light.
"""

import re
import textwrap

import numpy as np

from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.named_errors import confidence_and_correct
from keras_calib.inputs.arguments import is_integer
from keras_calib.inputs.arguments import require
from keras_calib.inputs.predictions import read_predictions

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P")
HATCHES = ("", "//", "..", "xx", "\\\\", "++")
MOST = len(COLORS)
FIRST, SECOND = COLORS[:2]
DARK, LIGHT = "#222222", "#f0f0f0"


def import_pyplot():
    """`matplotlib.pyplot`, which only figures need.

    Raises:
        ImportError: if matplotlib is missing.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "Drawing needs matplotlib: `pip install matplotlib`."
        ) from error
    return pyplot


def take_axes(axes, size, rows=1, columns=1, least=None, **options):
    """The axes to draw into: those passed in, or those of a new figure.

    Args:
        axes: `None`, or one or several `Axes`.
        size: width and height of a new figure, in inches with text of 10
            points; larger text makes it as much larger.
        rows: int, rows of panels.
        columns: int, columns of panels.
        least: int, the fewest `Axes` that may be passed in, by default all.
            `None` takes the place of those that are missing.
        **options: of `pyplot.subplots`.

    Returns:
        The figure, and a list of `rows * columns` `Axes`.
    """
    number = rows * columns
    least = number if least is None else least
    if axes is None:
        pyplot = import_pyplot()
        scale = pyplot.rcParams["font.size"] / 10
        figure, axes = pyplot.subplots(
            rows,
            columns,
            figsize=tuple(scale * length for length in size),
            squeeze=False,
            **{"layout": "constrained", **options},
        )
        return figure, list(axes.ravel())
    given = [each for each in np.ravel(axes) if each is not None]
    wanted = f"{number}" if least == number else f"{least} to {number}"
    require(
        least <= len(given) <= number,
        f"This figure has {wanted} axes.",
        axes=len(given),
    )
    require(
        all(hasattr(each, "figure") for each in given),
        "`axes` must be Matplotlib's.",
        axes=axes,
    )
    return given[0].figure, [*given, *[None] * (number - len(given))]


def is_dark(axes):
    """Whether the background of axes is dark."""
    from matplotlib import colors
    from matplotlib import rcParams

    found = (axes.get_facecolor(), axes.figure.get_facecolor())
    for color in (*found, rcParams["figure.facecolor"]):
        red, green, blue, alpha = colors.to_rgba(color)
        if alpha > 0:
            return 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
    return False


def ink(axes):
    """The color of thin lines and text."""
    return LIGHT if is_dark(axes) else DARK


def paper(axes):
    """A color like the background, for edges and boxes."""
    return "black" if is_dark(axes) else "white"


def set_title(axes, title, fontsize=None, below=()):
    """A title that is broken into lines where it is too long.

    Args:
        axes: `Axes`.
        title: str.
        fontsize: of the title.
        below: lines between title and axes, in small letters.
    """
    pad = None
    if below:
        note = axes.annotate(
            "\n".join(below),
            (0.5, 1),
            xytext=(0, 4),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize="small",
            color=ink(axes),
        )
        pad = 8 + 1.3 * note.get_fontsize() * len(below)
    axes.set_title(title, fontsize=fontsize, pad=pad)
    width = axes.get_position().width * width_of(axes.figure)
    text = axes.title
    text.set_text(_broken(title, width, text.get_fontsize()))


def title_or(title, default):
    """The title that was passed, as text, or else the default."""
    return default if title is None else str(title)


def set_figure_title(figure, title):
    """A title above all panels."""
    if title is not None:
        text = figure.suptitle(str(title))
        width = 0.95 * width_of(figure)
        text.set_text(_broken(title, width, text.get_fontsize()))


def width_of(figure):
    """Of a figure, or of a part of one, in inches."""
    return figure.bbox.width / figure.dpi


def lay_out(figure):
    """Place everything as in a picture, of the figure that this is part of."""
    figure.figure.draw_without_rendering()


def plain(name):
    """A name of the data, in which dollar signs are no mathematics."""
    return re.sub(r"(?<!\\)\$", r"\\$", str(name))


def _broken(title, width, font_size):
    """Lines of `width` inches: layouts do not see those of `wrap=True`."""
    # Wide letters are about this fraction of the font size.
    letters = max(int(72 * width / (0.62 * font_size)), 8)
    return "\n".join(
        textwrap.fill(line, letters) for line in str(title).splitlines()
    )


def dot(x, y, place):
    """Style of a curve whose points are one, which no line shows; or none."""
    if np.ptp(x) or np.ptp(y):
        return {}
    # A part of the length of nothing has no markers.
    style = {"marker": MARKERS[place], "markersize": 6, "markevery": None}
    return {**style, "clip_on": False}


def diagonal(axes, label=None):
    """The line of calibrated models."""
    axes.plot([0, 1], [0, 1], "--", color=ink(axes), linewidth=1, label=label)


def in_legends(name):
    """A name that legends show; they leave out what begins with `_`."""
    return f" {name}" if str(name).startswith("_") else name


def read_models(
    labels, probabilities, sample_weight, *, from_logits, axis, ignore_class
):
    """Predictions of one or several models: dict from name to `Predictions`.

    Args:
        labels: see `read_predictions`.
        probabilities: predictions of one model, which is named `None`, or a
            dict of up to six, by name.
        sample_weight: see `read_predictions`.
        from_logits: see `read_predictions`.
        axis: see `read_predictions`.
        ignore_class: see `read_predictions`.

    Raises:
        ValueError: for bad input, no rows, or a wrong number of models.
    """
    if not isinstance(probabilities, dict):
        probabilities = {None: probabilities}
    require(
        1 <= len(probabilities) <= MOST,
        f"A figure compares one to {MOST} models.",
        "Draw the others in a second figure.",
        models=len(probabilities),
    )
    models = {
        in_legends(name): read_predictions(
            labels, each, sample_weight, from_logits, axis, ignore_class
        )
        for name, each in probabilities.items()
    }
    for data in models.values():
        if not len(data.labels):
            raise ValueError(
                "There is nothing to draw. Received: 0 samples with a weight "
                "above 0 and a label that counts."
            )
    return models


def events_of(data, class_id=None):
    """Sorted samples, by the confidence or by the probability of a class."""
    confidence, correct = confidence_and_correct(data, class_id)
    return sort_events(confidence, correct, data.weights)


def label_of_confidence(class_id):
    """What is on the horizontal axis."""
    if class_id is None:
        return "confidence"
    return f"probability of class {class_id}"


def require_class(class_id, models):
    """Raise unless `class_id` is `None` or one of the classes."""
    for data in models.values():
        require(
            class_id is None
            or (is_integer(class_id) and 0 <= class_id < data.num_classes),
            f"`class_id` must be one of the {data.num_classes} classes.",
            class_id=class_id,
        )
