"""Accuracy and calibration against the severity of a shift."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_one_of
from keras_calib.plots import _legend
from keras_calib.plots import _style

LABELS = {
    "accuracy": "accuracy",
    "ece": "expected calibration error (ECE)",
    "nll": "negative log-likelihood (NLL), nats",
}
# Between the models of one severity.
STEP = 0.12


def shift_curves(
    result: Any,
    *,
    metric: str = "ece",
    axes: Any = None,
) -> Any:
    """Draw a metric against the severity of corruptions, a line for a model.

    The line is the mean over corruptions, the thick bar at a severity has the
    middle half of the corruptions in it, the thin one all of them. Severity 0
    is clean images. Below an ECE the dotted line is the mean of its floors,
    what calibrated models with these confidences would show.

    Args:
        result: `ShiftResult` of `kc.shift.evaluate`, or its `to_dict()`; or a
            dict of either by name, to draw results that were computed apart.
        metric: `"accuracy"`, `"ece"` or `"nll"`.
        axes: matplotlib axes to draw into. Defaults to a new figure.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: if there is nothing to draw, or the metric is unknown.
        ImportError: if matplotlib is missing.

    Example:
        >>> import keras_calib as kc
        >>> cells = [("clean", 0, 0.02), ("fog", 1, 0.03), ("snow", 1, 0.05)]
        >>> rows = [{"model": "a", "corruption": c, "severity": s, "ece": error}
        ...         for c, s, error in cells]
        >>> figure = kc.plots.shift_curves({"rows": rows})
        >>> figure.savefig("shift.png")  # doctest: +SKIP

    Reference:
        Ovadia et al., "Can You Trust Your Model's Uncertainty?", NeurIPS 2019,
        arXiv:1906.02530, Figure 2.
    """
    require_one_of(tuple(LABELS), metric=metric)
    rows = _rows(result)
    curves, floors = _curves(rows, metric), {}
    if metric == "ece" and all("ece_floor" in row for row in rows):
        floors = _curves(rows, "ece_floor")
    figure, (panel,) = _style.take_axes(axes, (6.4, 4.0))
    severities = sorted({s for curve in curves.values() for s in curve})
    for number, (model, curve) in enumerate(curves.items()):
        shown = _style.in_legends(model)
        away = (number - (len(curves) - 1) / 2) * min(STEP, 0.7 / len(curves))
        style = {
            "color": _style.COLORS[number % _style.MOST],
            "marker": _style.MARKERS[number % _style.MOST],
            "markersize": 4,
        }
        _draw(panel, shown, curve, away, style)
        if floors:
            floor = [np.mean(floors[model][s]) for s in sorted(curve)]
            x = np.array(sorted(curve)) + away
            name = f"{shown}, floor"
            panel.plot(
                x, floor, linestyle=":", fillstyle="none", label=name, **style
            )
    panel.set(
        xlabel="severity of the corruption (0: clean)",
        ylabel=LABELS[metric],
        xticks=severities,
    )
    panel.set_ylim(0, 1 if metric == "accuracy" else None)
    panel.grid(axis="y", alpha=0.3)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    corner = "lower left" if metric == "accuracy" else "upper left"
    new = figure if axes is None else None
    _legend.add_legend(panel, new=new, loc=corner)
    return figure


def _draw(axes, model, curve, away, style):
    """One model: its means, and bars of the corruptions at each severity."""
    severities = sorted(curve)
    x = np.array(severities) + away
    means = [np.mean(curve[s]) for s in severities]
    axes.plot(x, means, label=model, zorder=3, **style)
    ends = [np.quantile(curve[s], [0, 0.25, 0.75, 1]) for s in severities]
    least, low, high, most = np.transpose(ends)
    axes.vlines(x, least, most, color=style["color"], linewidth=1, alpha=0.6)
    axes.vlines(x, low, high, color=style["color"], linewidth=6, alpha=0.35)


def _rows(result):
    """Rows of one result, or of several by name."""
    if hasattr(result, "rows"):
        return list(result.rows)
    require(
        isinstance(result, Mapping) and bool(result),
        "`result` must come from `kc.shift.evaluate`, or be a dict of such.",
        result=type(result).__name__,
    )
    if "rows" in result:
        return list(result["rows"])
    found = []
    for name, each in result.items():
        rows = _rows(each)
        several = len({row["model"] for row in rows}) > 1
        for row in rows:
            own = f"{name}: {row['model']}" if several else str(name)
            found.append({**row, "model": own})
    return found


def _curves(rows, metric):
    """Values of the corruptions, by model and severity."""
    require(bool(rows), "There is nothing to draw.", rows=rows)
    found = {}
    for row in rows:
        curve = found.setdefault(row["model"], {})
        # In JSON an infinite NLL is a string.
        curve.setdefault(row["severity"], []).append(float(row[metric]))
    return found
