"""The parts of reliability diagrams: bars, curves, bands and counts."""

import dataclasses
import functools

import numpy as np

from keras_calib.evaluation.consistency_bars import consistency_bars
from keras_calib.evaluation.corp import corp_band
from keras_calib.evaluation.corp import corp_cells
from keras_calib.evaluation.corp import corp_curve
from keras_calib.evaluation.events import SortedBins
from keras_calib.evaluation.floor import binned_floor
from keras_calib.evaluation.smooth_curve import SmoothCurve
from keras_calib.evaluation.smooth_interval import smooth_error_with_interval
from keras_calib.inputs.predictions import Predictions
from keras_calib.ops.bin_errors import calibration_error
from keras_calib.plots import _legend
from keras_calib.plots import _style

SIMULTANEOUS = "simultaneous"


@dataclasses.dataclass(frozen=True)
class Drawn:
    """One model of a diagram.

    Attributes:
        name: of the model, or `None` if it is alone.
        data: its `Predictions`.
        class_id: the class whose probability is drawn, or `None`.
        num_bins: int.
        place: int, its place among the models, for its color and line.
        brief: whether there is room for the ECE only.
        joint: what stands between numbers in its entry of the legend.
    """

    name: str | None
    data: Predictions
    class_id: int | None
    num_bins: int
    place: int = 0
    brief: bool = False
    joint: str = ", "

    @functools.cached_property
    def bins(self) -> SortedBins:
        events = _style.events_of(self.data, self.class_id)
        return events.bins(events.width_cuts(self.num_bins))

    @functools.cached_property
    def cells(self) -> SortedBins:
        return corp_cells(self.bins.events)

    @property
    def color(self):
        return _style.COLORS[self.place]

    @property
    def line(self):
        """Style of the curve; markers only where models are compared."""
        style = {"color": self.color, "linestyle": _style.LINES[self.place]}
        if self.name is not None:
            marker = _style.MARKERS[self.place]
            style |= {"marker": marker, "markersize": 5, "label": self.label}
        return style

    @functools.cached_property
    def numbers(self):
        """Errors in words: the ECE with its floor, and the smooth ECE."""
        error, floor = calibration_error(self.bins), binned_floor(self.bins)
        words = f"ECE {float(error):.4f} (floor {floor.mean:.4f})"
        if self.brief:
            return [words]
        smooth = smooth_error_with_interval(
            self.data, self.bins.events, self.class_id
        )
        more = f"smooth ECE {float(smooth):.4f}"
        if smooth.low == smooth.low:
            more += f" [{smooth.low:.4f}, {smooth.high:.4f}]"
        return [words, more]

    @property
    def label(self):
        if self.brief:
            return str(self.name)
        return f"{self.name}: {self.joint.join(self.numbers)}"


def words_of(band):
    return f"95 % if calibrated\n({band})"


def draw_bars(axes, model, band):
    """A bar for each bin, its gap hatched, and its consistency bar."""
    bins = model.bins
    used = bins.weight > 0
    width = 1 / len(used)
    left, accuracy = width * np.flatnonzero(used), bins.accuracy[used]
    style = {
        "width": width,
        "align": "edge",
        "edgecolor": _style.paper(axes),
        "linewidth": min(1.0, 15 / len(used)),
    }
    what = "accuracy" if model.class_id is None else "frequency"
    axes.bar(left, accuracy, color=_style.FIRST, label=what, **style)
    gap = bins.gap[used]
    # The accuracy is seen through the hatches of a gap that lies over it.
    above = (_style.SECOND, 0.55), style["edgecolor"]
    below = "none", _style.COLORS[3]
    face, edge = zip(*[above if g > 0 else below for g in gap], strict=True)
    axes.bar(
        left,
        gap,
        bottom=accuracy,
        hatch=np.where(gap > 0, "//", "\\\\\\"),
        label=_first_of_each(gap, "overconfident", "underconfident"),
        **style | {"color": face, "edgecolor": edge},
    )
    if band:
        middle = left + width / 2
        _error_bars(axes, model, middle, band, _style.ink(axes), words_of(band))


def _first_of_each(gap, above, below):
    """Labels of bars: a name at the first of each sign, then what is hidden."""
    labels = np.full(len(gap), "_", object)
    for name, sign in ((above, gap > 0), (below, gap < 0)):
        labels[np.flatnonzero(sign)[:1]] = name
    return labels.tolist()


def draw_points(axes, model, band):
    """Accuracy against mean confidence of each bin, as a line of points."""
    bins = model.bins
    used = bins.weight > 0
    confidence = bins.confidence[used]
    axes.plot(confidence, bins.accuracy[used], linewidth=1.2, **model.line)
    if band:
        _error_bars(axes, model, confidence, band, model.color, alpha=0.5)


def _error_bars(axes, model, places, band, color, label=None, alpha=1.0):
    bins = model.bins
    low, high = consistency_bars(bins, simultaneous=band == SIMULTANEOUS)
    low, high = (ends[bins.weight > 0] for ends in (low, high))
    axes.errorbar(
        places,
        (low + high) / 2,
        (high - low) / 2,
        fmt="none",
        ecolor=color,
        elinewidth=1,
        capsize=min(2.0, 30 / len(bins.weight)),
        alpha=alpha,
        label=label,
    )


def draw_corp(axes, model, band):
    """The CORP curve, and its consistency band."""
    curve = corp_curve(model.cells)
    knots = np.stack([curve.first, curve.last], axis=1).ravel()
    levels = np.repeat(curve.level, 2)
    style = {"label": "CORP (isotonic)", "markevery": 0.1, **model.line}
    style |= _style.dot(knots, levels, model.place)
    axes.plot(knots, levels, linewidth=1.8, **style)
    if band:
        found = corp_band(model.cells, simultaneous=band == SIMULTANEOUS)
        _draw_band(axes, model, found, band)


def draw_smooth(axes, model, band):
    """The smooth curve, as wide as there are samples, and its band."""
    from matplotlib.collections import LineCollection

    curve = SmoothCurve(model.cells)
    x, y = curve.confidence, curve.value
    style = {"label": "smooth", "markevery": 0.1, **model.line}
    style |= _style.dot(x, y, model.place)
    axes.plot(x, y, linewidth=1.2, **style)
    points = np.stack([x, y], axis=1)
    width = 1.0 + 4.0 * (curve.density[1:] + curve.density[:-1]) / 2
    axes.add_collection(
        LineCollection(
            np.stack([points[:-1], points[1:]], axis=1),
            linewidths=width,
            colors=model.color,
            alpha=0.5,
            capstyle="butt",
        )
    )
    if band:
        found = curve.band(simultaneous=band == SIMULTANEOUS)
        _draw_band(axes, model, found, band)


def _draw_band(axes, model, found, band):
    alone = model.name is None
    x, low, high = found.corners()
    if len(found.confidence) == 1:
        # A band at one confidence has no width.
        center = found.confidence[0]
        x, low, high = center + np.array([-0.005, 0.005]), found.low, found.high
        low, high = np.repeat(low, 2), np.repeat(high, 2)
    axes.fill_between(
        x,
        low,
        high,
        facecolor=_style.ink(axes) if alone else model.color,
        alpha=0.2 if alone else 0.12,
        linewidth=0,
        label=words_of(band) if alone else None,
    )
    for ends in (low, high):
        axes.plot(
            x,
            ends,
            color=_style.ink(axes) if alone else model.color,
            linestyle=_style.LINES[model.place],
            linewidth=0.7,
            alpha=0.7,
        )


def draw_counts(axes, models):
    """The fraction of samples in each bin, and both means."""
    for model in models:
        bins = model.bins
        fraction = bins.weight / bins.total
        edges = np.linspace(0, 1, len(fraction) + 1)
        if model.name is not None:
            axes.stairs(
                fraction,
                edges,
                color=model.color,
                linestyle=_style.LINES[model.place],
            )
            continue
        axes.bar(
            edges[:-1],
            fraction,
            1 / len(fraction),
            align="edge",
            color=_style.FIRST,
            edgecolor=_style.paper(axes),
            linewidth=min(1.0, 15 / len(fraction)),
        )
    axes.set(xlim=(0, 1), ylabel="fraction")
    if models[0].name is None:
        draw_means(axes, models[0])


def draw_means(axes, model):
    """Mean accuracy and mean confidence as lines, with their values."""
    bins = model.bins
    accuracy, confidence = bins.mean(bins.accuracy), bins.mean(bins.confidence)
    what, said = "accuracy", "confidence"
    if model.class_id is not None:
        what, said = "frequency", "probability"
    axes.axvline(
        accuracy,
        color=_style.ink(axes),
        linestyle="--",
        label=f"{what} {accuracy:.3f}",
    )
    axes.axvline(
        confidence,
        color=_style.SECOND,
        linestyle=(0, (2, 1.5)),
        label=f"mean {said} {confidence:.3f}",
    )


def name_means(axes):
    """The lines of `draw_means` in a legend above the axes."""
    legend = _legend.add_legend(
        axes,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        columns=2,
        columnspacing=1.0,
        handlelength=1.5,
    )
    legend.set_in_layout(True)
