"""Legends that lie inside their figure and hide nothing."""

import re
import textwrap

from keras_calib.plots import _style

# A name that would take more lines is shortened in its middle.
LINES_IN_AXES, LINES_BELOW = 1, 2
FEWEST_LETTERS = 8
# The width of a legend, as a fraction of its axes, to which it keeps a
# distance, or of its figure. Letters are a little wider at some resolutions.
WIDEST_IN_AXES, WIDEST_BELOW = 0.97, 0.99
# Of axes: a legend may take so much of them where it would hide curves.
MOST_HEIGHT = 0.6
# Without a frame a legend needs no border, and short lines do for its keys.
CLOSE = {"borderpad": 0.0, "handlelength": 1.5, "handletextpad": 0.6}


def add_legend(
    axes, *, title=None, new=None, outside=False, columns=1, **options
):
    """A legend in the colors of its axes, as wide as there is room.

    Args:
        axes: `Axes`, the owner of what is named.
        title: text above the entries, or `None`.
        new: a new figure, which becomes taller for a legend below its panels,
            or `None` if the axes were passed in.
        outside: whether the legend is below the panels in any case. Otherwise
            it is there if it is wider than the axes or hides a curve.
        columns: int, the most columns.
        **options: of `legend`.
    """
    if not outside:
        wrap = new is None
        legend = _fitted(axes, axes, title, columns, options, wrap=wrap)
        # A legend that is wider than its axes does not shrink them.
        legend.set_in_layout(False)
        if new is None or _has_room(legend, axes):
            return legend
        legend.remove()
        height, columns = 0.0, 2
    else:
        height = None
    options = {**options, "loc": "outside lower center"}
    return _fitted(new, axes, title, columns, options, height=height)


def _fitted(owner, axes, title, columns, options, *, wrap=True, height=None):
    """The legend that is as wide as its owner at most.

    It has fewer columns than wanted, then less space, then broken lines.

    Args:
        owner: `Axes` or figure.
        axes: see `add_legend`.
        title: see `add_legend`.
        columns: int, the most columns.
        options: of `legend`.
        wrap: whether lines may be broken.
        height: what the figure has room for, in pixels. A taller legend makes a
            figure taller. By default it has room for the legend with the lines
            that were passed in.
    """
    below = owner is not axes
    widest = WIDEST_BELOW if below else WIDEST_IN_AXES
    most_lines = LINES_BELOW if below else LINES_IN_AXES
    room = widest * owner.get_window_extent().width
    handles, labels = axes.get_legend_handles_labels()

    def made(columns, labels=labels, title=title, **more):
        found = {**options, **more, "title": title, "ncols": columns}
        return _styled(owner, axes, handles, labels, found)

    legend = made(columns)
    if height is None:
        height = legend.get_window_extent().height
    while columns > 1 and _width(legend) > room:
        legend.remove()
        columns -= 1
        legend = made(columns)
    if not wrap:
        return legend
    if _width(legend) > room:
        legend.remove()
        legend = made(columns, **CLOSE)
    lines = "\n".join([*labels, title or ""]).splitlines()
    letters = max(map(len, lines), default=0)
    while _width(legend) > room and letters > FEWEST_LETTERS:
        letters = min(letters - 1, int(letters * room / _width(legend)))
        letters = max(letters, FEWEST_LETTERS)
        legend.remove()
        broken = [break_lines(each, letters, most_lines) for each in labels]
        above = title and break_lines(title, letters, LINES_BELOW)
        legend = made(columns, broken, above, **CLOSE)
    if below:
        more = legend.get_window_extent().height - height
        owner.set_figheight(owner.get_figheight() + max(more, 0) / owner.dpi)
    return legend


def _styled(owner, axes, handles, labels, options):
    style = {
        "fontsize": "small",
        "title_fontsize": "small",
        "labelcolor": _style.ink(axes),
        "facecolor": _style.paper(axes),
        "edgecolor": "none",
        "framealpha": 0.7,
    }
    legend = owner.legend(handles, labels, **style | options)
    legend.get_title().set_color(_style.ink(axes))
    legend.set_alignment("left")
    return legend


def _width(legend):
    return legend.get_window_extent().width


def _has_room(legend, axes):
    """Whether a legend is within its axes, and no curve is below it."""
    _style.lay_out(axes.figure)
    box, panel = legend.get_window_extent(), axes.get_window_extent()
    if not (panel.x0 <= box.x0 and box.x1 <= panel.x1 and panel.y0 <= box.y0):
        return False
    paths = [
        artist.get_transform().transform_path(path)
        for artist in (*axes.lines, *axes.collections)
        for path in _paths(artist)
    ]
    return not any(path.intersects_bbox(box, filled=False) for path in paths)


def _paths(artist):
    if hasattr(artist, "get_paths"):
        return artist.get_paths()
    return [artist.get_path()]


def make_room(legend, axes):
    """Raise the upper end of the vertical axis by the height of the legend."""
    if _has_room(legend, axes):
        return
    height = legend.get_window_extent().height
    height /= axes.get_window_extent().height
    if height < MOST_HEIGHT:
        low, high = axes.get_ylim()
        axes.set_ylim(low, low + (high - low) / (1 - height))


def break_lines(text, letters, most_lines):
    """Lines of at most so many letters; of a long name the ends are left.

    Lines end behind a comma or a colon where they can, so that numbers stay
    beside their names. What is between these has at most `most_lines`.
    """
    lines = []
    for line in text.splitlines():
        start = len(lines)
        for part in re.split(r"(?<=[,:]) (?=\D)", line):
            if start < len(lines) and len(lines[-1]) + len(part) < letters:
                lines[-1] += f" {part}"
            else:
                lines += _broken(part, letters, most_lines)
    return "\n".join(lines)


def _broken(part, letters, most_lines):
    found = textwrap.wrap(part, letters)
    if len(found) <= most_lines:
        return found
    # Lines that end between words are shorter than they may be.
    size = letters if most_lines == 1 else most_lines * letters * 3 // 4
    short = shorten(part, size)
    return [short] if most_lines == 1 else textwrap.wrap(short, letters)


def shorten(text, letters):
    """Both ends of a text that is too long."""
    if len(text) <= letters:
        return text
    first = letters // 2
    return f"{text[:first]}…{text[len(text) - (letters - first - 1) :]}"
