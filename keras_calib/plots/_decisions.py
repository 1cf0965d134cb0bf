"""Figures of decisions: risk by coverage, and net benefit."""

from typing import Any

import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib.evaluation import decisions
from keras_calib.evaluation.binless import selective_risk
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arrays import as_floats
from keras_calib.plots import _legend
from keras_calib.plots import _style

# More points than a figure can show are left out.
MOST_POINTS = 2000


def risk_coverage(
    labels: ArrayLike,
    probabilities: ArrayLike | dict[str, ArrayLike],
    sample_weight: ArrayLike | None = None,
    *,
    from_logits: bool = False,
    ignore_class: int | None = None,
    title: str | None = None,
    axes: Any = None,
    axis: int = -1,
) -> Any:
    """Draw the error rate among the most confident samples.

    At coverage g, the fraction g of samples with the highest confidence is
    accepted; the risk is the fraction of errors among them. The legend has the
    area under the curve (AURC) and how much of it is due to errors that are not
    among the least confident samples (E-AURC). The curve depends on the order
    of confidences only, and says nothing about calibration.

    Args:
        labels: class ids, `(...)`, or one-hot rows; a distribution counts as
            its largest entry.
        probabilities: `(..., num_classes)`, or logits; `(..., 1)` or `(n,)` for
            one sigmoid unit. A dict from name to predictions draws up to six
            models.
        sample_weight: `None`, or weights that broadcast from the left.
        from_logits: whether `probabilities` are logits.
        ignore_class: samples with this label are ignored.
        title: text above the figure.
        axes: matplotlib axes, one. Defaults to a new figure.
        axis: the class axis of the predictions.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: if the input is invalid, or all samples are ignored.
        ImportError: if matplotlib is missing.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> p = rng.dirichlet([1, 1, 1], size=300)
        >>> figure = kc.plots.risk_coverage(rng.integers(0, 3, 300), p)
        >>> figure.axes[0].get_xlabel()
        'coverage'

    Reference:
        Geifman and El-Yaniv, "Selective Classification for Deep Neural
        Networks", NeurIPS 2017, arXiv:1705.08500.
    """
    read = _style.read_models(
        labels,
        probabilities,
        sample_weight,
        from_logits=from_logits,
        axis=axis,
        ignore_class=ignore_class,
    )
    figure, (panel,) = _style.take_axes(axes, (4.8, 4.0))
    for place, (name, data) in enumerate(read.items()):
        events = _style.events_of(data)
        coverage, risk = decisions.risk_coverage(events)
        kept = _thinned(len(coverage))
        area, excess = selective_risk(events)
        words = f"AURC {area:.4f} (E-AURC {excess:.4f})"
        _plot(panel, coverage[kept], risk[kept], place, name, words)
    panel.set(
        xlim=(0, 1), xlabel="coverage", ylabel="risk (fraction of errors)"
    )
    # The legend is above the curves.
    panel.set_ylim(0, (1.15 + 0.07 * len(read)) * max(panel.dataLim.y1, 0.01))
    _style.set_title(panel, _style.title_or(title, "Risk and coverage"))
    new = figure if axes is None else None
    _legend.add_legend(panel, new=new, loc="upper left")
    return figure


def net_benefit(
    labels: ArrayLike,
    probabilities: ArrayLike | dict[str, ArrayLike],
    sample_weight: ArrayLike | None = None,
    *,
    class_id: int | None = None,
    thresholds: ArrayLike | None = None,
    from_logits: bool = False,
    ignore_class: int | None = None,
    title: str | None = None,
    axes: Any = None,
    axis: int = -1,
) -> Any:
    """Draw decision curves: the net benefit of acting on a probability.

        TP / n - FP / n t / (1 - t),  treated if p >= t

    The threshold t says how bad a treatment without need is against one that is
    missed: at t = 0.1, nine to one. A model is useful at a threshold where its
    curve is above those of treating everybody and of treating nobody.

    Args:
        labels: class ids, `(...)`, or one-hot rows; a distribution counts as
            its largest entry.
        probabilities: `(..., 2)`, or logits; `(..., 1)` or `(n,)` for one
            sigmoid unit. More classes need `class_id`. A dict from name to
            predictions draws up to six models.
        sample_weight: `None`, or weights that broadcast from the left.
        class_id: int, the class whose probability decides. Defaults to 1 of two
            classes.
        thresholds: in (0, 1). Defaults to 0.01, 0.02, ..., 0.99.
        from_logits: whether `probabilities` are logits.
        ignore_class: samples with this label are ignored.
        title: text above the figure.
        axes: matplotlib axes, one. Defaults to a new figure.
        axis: the class axis of the predictions.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: if the input is invalid, all samples are ignored, or there
            are more than two classes and no `class_id`.
        ImportError: if matplotlib is missing.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> p = rng.random(500)
        >>> figure = kc.plots.net_benefit(rng.random(500) < p, p)
        >>> len(figure.axes[0].lines)  # the model, everybody, nobody
        3

    Reference:
        Vickers and Elkin, "Decision curve analysis", Medical Decision Making,
        2006.
    """
    read = _style.read_models(
        labels,
        probabilities,
        sample_weight,
        from_logits=from_logits,
        axis=axis,
        ignore_class=ignore_class,
    )
    class_id = _positive(class_id, read)
    if thresholds is None:
        thresholds = np.arange(1, 100) / 100
    t = np.sort(as_floats(thresholds, "`thresholds`", "float64").ravel())
    require(
        bool(t.size) and 0 < t[0] and t[-1] < 1,
        "`thresholds` must be in (0, 1).",
        thresholds=thresholds,
    )
    figure, (panel,) = _style.take_axes(axes, (4.8, 4.0))
    highest = 0.0
    for place, (name, data) in enumerate(read.items()):
        events = _style.events_of(data, class_id)
        model, everybody = decisions.net_benefit(events, t)
        highest = max(highest, model.max(), everybody.max())
        _plot(panel, t, model, place, name, "model" if name is None else "")
    nobody = np.zeros(len(t))
    for place, (line, y, label) in enumerate(
        (("--", everybody, "treat everybody"), (":", nobody, "treat nobody")),
        start=1,
    ):
        style = {"color": _style.ink(panel), "linewidth": 1}
        style |= {"fillstyle": "none", **_style.dot(t, y, place)}
        panel.plot(t, y, linestyle=line, label=label, **style)
    # Of treating everybody falls without bound.
    margin = 0.1 * max(highest, 0.01)
    panel.set(
        xlim=(0, 1),
        ylim=(-2 * margin, highest + margin),
        xlabel="threshold probability",
        ylabel="net benefit",
    )
    _style.set_title(
        panel, _style.title_or(title, f"Decision curve of class {class_id}")
    )
    new = figure if axes is None else None
    _legend.add_legend(panel, new=new, loc="upper right")
    return figure


def _positive(class_id, read):
    """The class whose probability decides."""
    for data in read.values():
        require(
            class_id is not None or data.num_classes == 2,
            "A decision is about one class.",
            "Pass `class_id=`, for one class against the others.",
            num_classes=data.num_classes,
        )
    _style.require_class(class_id, read)
    return 1 if class_id is None else class_id


def _plot(axes, x, y, place, name, words):
    """A curve in the style of its place, with its words in the legend."""
    label = ": ".join(str(part) for part in (name, words) if part)
    style = {}
    if name is not None:
        marker = _style.MARKERS[place]
        style = {"marker": marker, "markersize": 5, "markevery": 0.1}
    style |= _style.dot(x, y, place)
    axes.plot(
        x,
        y,
        color=_style.COLORS[place],
        linestyle=_style.LINES[place],
        linewidth=1.8,
        label=label,
        **style,
    )


def _thinned(number):
    """Evenly spaced positions, first and last included."""
    kept = np.linspace(0, number - 1, min(number, MOST_POINTS))
    return kept.round().astype(int)
