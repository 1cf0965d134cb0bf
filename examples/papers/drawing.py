"""What the figures of the papers share: axes, colors, names beside points."""

import math

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P")


def panels(rows, columns, size, **options):
    """A figure with its axes as a list."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        rows,
        columns,
        figsize=size,
        squeeze=False,
        layout="constrained",
        **options,
    )
    return figure, list(axes.ravel())


def save(figure, path):
    """Write a figure as a small file."""
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    # A legend below the panels may be wider than they are.
    figure.savefig(path, dpi=100, bbox_inches="tight", pad_inches=0.08)
    pyplot.close(figure)


def style(place):
    """Color, line and marker of a curve, the same in all figures."""
    place %= len(COLORS)
    return {
        "color": COLORS[place],
        "linestyle": LINES[place],
        "marker": MARKERS[place],
        "markersize": 4,
    }


def label_points(axes, x, y, names):
    """A name beside each point, where it meets no other name and no point.

    The nearest free place is taken, with a line where it is not beside the
    point. The axes must have their final limits.
    """
    axes.figure.canvas.draw()
    points = axes.transData.transform(list(zip(x, y, strict=True)))
    taken = []
    for place in sorted(range(len(names)), key=lambda i: tuple(points[i])):
        others = [*points[:place], *points[place + 1 :]]
        for offset in offsets():
            text = annotate(axes, (x[place], y[place]), names[place], offset)
            box = words_of(text)
            if free(box, taken, others, axes.get_window_extent()):
                taken.append(box)
                break
            text.remove()


def offsets():
    """Places around a point, in points, the nearest first."""
    for radius in (7, 16, 26, 38, 52, 68):
        for turn in range(16):
            angle = 2 * math.pi * turn / 16
            yield radius * math.cos(angle), radius * math.sin(angle)


def annotate(axes, point, name, offset):
    """A name at an offset from a point, with a line if it is not beside it."""
    far = math.hypot(*offset) > 10
    return axes.annotate(
        name,
        point,
        xytext=offset,
        textcoords="offset points",
        fontsize=8,
        ha="left" if offset[0] >= 0 else "right",
        va="center",
        bbox={"pad": 0.3, "facecolor": "white", "edgecolor": "none"},
        arrowprops={"arrowstyle": "-", "lw": 0.5, "color": "gray"}
        if far
        else None,
    )


def words_of(text):
    """The box of an annotation's words, without its line."""
    from matplotlib.text import Text

    text.update_positions(text.figure.canvas.get_renderer())
    return Text.get_window_extent(text).padded(2)


def free(box, taken, points, frame):
    """Whether a box lies in the frame, and near no box and no point."""
    around = box.padded(7)
    inside = frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1)
    return (
        inside
        and not any(box.overlaps(other) for other in taken)
        and not any(around.contains(*point) for point in points)
    )
