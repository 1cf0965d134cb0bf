"""Reliability diagrams: accuracy against confidence."""

from typing import Any

from keras_calib._typing import ArrayLike
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arguments import require_one_of
from keras_calib.plots import _legend
from keras_calib.plots import _panels
from keras_calib.plots import _style

BANDS = (_panels.SIMULTANEOUS, "pointwise", None)
KINDS = {
    "bars": _panels.draw_bars,
    "corp": _panels.draw_corp,
    "smooth": _panels.draw_smooth,
}


def reliability_diagram(
    labels: ArrayLike,
    probabilities: ArrayLike | dict[str, ArrayLike],
    sample_weight: ArrayLike | None = None,
    *,
    kind: str = "bars",
    band: str | None = "simultaneous",
    num_bins: int = 15,
    class_id: int | None = None,
    from_logits: bool = False,
    ignore_class: int | None = None,
    title: str | None = None,
    axes: Any = None,
    axis: int = -1,
) -> Any:
    """Draw accuracy against confidence, and a histogram of confidences.

    A calibrated model is not on the diagonal, because labels are few: the band,
    or the thin line of each bar, is where it lies with a probability of 95 %.
    Accuracies beyond the band are evidence that the model is not calibrated;
    accuracies within are no evidence that it is. Above the diagram (in the
    legend, where there are several models, or the figure has no layout engine
    that makes room) stands the ECE beside the mean ECE of a calibrated model
    with these confidences (the floor), and the smooth ECE with a bootstrap
    interval (95 %), which for a model that is nearly calibrated can lie below
    the value.

    `kind="bars"` is the diagram of the papers: a bar for each bin, as high as
    its accuracy. The hatched part is the gap to the mean confidence: above the
    accuracy where the bin is overconfident, below where it is underconfident.
    Several models are lines of points. `kind="corp"` has no bins: isotonic
    regression finds the increasing curve that fits best (of more than 2,048
    confidences, that of as many groups of equal mass; with weights, of 25 rows
    each). It cannot show that accuracy falls while confidence rises.
    `kind="smooth"` is a kernel mean, whose width is the smooth ECE; the line is
    thick where samples are many.

    Args:
        labels: class ids, `(...)`, or one-hot rows; a distribution counts as
            its largest entry.
        probabilities: `(..., num_classes)`, or logits; `(..., 1)` or `(n,)` for
            one sigmoid unit. A dict from name to predictions draws up to six
            models.
        sample_weight: `None`, or weights that broadcast from the left.
        kind: `"bars"`, `"corp"` or `"smooth"`.
        band: `"simultaneous"`, a band that holds 95 % of the time as a whole;
            `"pointwise"`, which holds at each place alone, so that with 15 bins
            some accuracy of a calibrated model is beyond it about a third of
            the time; or `None`.
        num_bins: int, number of bins of equal width; also of the ECE and the
            histogram.
        class_id: int, to draw the frequency of this class against its
            probability, e.g. 1 for two classes. By default it is the predicted
            class of each sample.
        from_logits: whether `probabilities` are logits.
        ignore_class: samples with this label are ignored.
        title: text above the diagram.
        axes: matplotlib axes to draw into, either two, for diagram and
            histogram, or one, for the diagram alone. Defaults to a new figure.
        axis: the class axis of the predictions.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: if the input is invalid, all samples are ignored, or there
            are more than six models.
        ImportError: if matplotlib is missing.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> p = rng.dirichlet([1, 1, 1], size=1000)
        >>> figure = kc.plots.reliability_diagram(p.argmax(-1), p)
        >>> figure.savefig("reliability.png")  # doctest: +SKIP

        >>> models = {"softmax": p, "flat": np.sqrt(p) / np.sqrt(p).sum(
        ...     axis=1, keepdims=True)}
        >>> figure = kc.plots.reliability_diagram(
        ...     p.argmax(-1), models, kind="corp", band=None
        ... )
        >>> len(figure.axes)
        2

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        Figure 1; Broecker and Smith, "Increasing the Reliability of Reliability
        Diagrams", Weather and Forecasting, 2007; Dimitriadis, Gneiting and
        Jordan, "Stable reliability diagrams for probabilistic classifiers",
        PNAS 2021, arXiv:2008.03033; Blasiok and Nakkiran, "Smooth ECE", ICLR
        2024, arXiv:2309.12236.
    """
    check_options(kind, band, num_bins)
    read = _style.read_models(
        labels,
        probabilities,
        sample_weight,
        from_logits=from_logits,
        axis=axis,
        ignore_class=ignore_class,
    )
    _style.require_class(class_id, read)
    return draw_models(read, kind, band, num_bins, class_id, title, axes)


def draw_models(read, kind, band, num_bins, class_id, title, axes):
    """`reliability_diagram` of a dict from names to `Predictions`."""
    new = axes is None
    joint = ", " if new else "\n"
    models = [
        _panels.Drawn(name, data, class_id, num_bins, place, joint=joint)
        for place, (name, data) in enumerate(read.items())
    ]
    figure, (above, below) = _style.take_axes(
        axes,
        (4.8, 6.0 if models[0].name is None else 6.4),
        rows=2,
        least=1,
        sharex=True,
        height_ratios=(3, 1),
    )
    draw_diagram(above, models, kind, band)
    text = _text(models, kind, band)
    # Above the axes, where there is room, it hides nothing.
    over = models[0].name is None and figure.get_layout_engine() is not None
    _style.set_title(
        above, _style.title_or(title, "Reliability"), below=text if over else ()
    )
    title_of_legend = None if over else "\n".join(text)
    _add_legend(above, models, title_of_legend, figure if new else None)
    if below is not None:
        _panels.draw_counts(below, models)
        if models[0].name is None:
            _panels.name_means(below)
    (below or above).set_xlabel(_style.label_of_confidence(class_id))
    return figure


def check_options(kind, band, num_bins):
    """Raise `ValueError` for an argument that is out of range."""
    require_one_of(tuple(KINDS), kind=kind)
    require_one_of(BANDS, band=band)
    require_integer(1, num_bins=num_bins)


def draw_diagram(axes, models, kind, band):
    """Models, bands and diagonal."""
    draw = KINDS[kind]
    if kind == "bars" and models[0].name is not None:
        draw = _panels.draw_points
    _style.diagonal(axes, "calibrated")
    for model in models:
        draw(axes, model, band)
    ylabel = "accuracy"
    if models[0].class_id is not None:
        ylabel = f"frequency of class {models[0].class_id}"
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel=ylabel)


def _text(models, kind, band):
    """Lines beside the diagram: of one model, or about all of them."""
    words = f"{models[0].num_bins} bins, N {len(models[0].data.labels):,}"
    if models[0].name is not None:
        return [words, *words_of_bands(kind, band)]
    error, *others = models[0].numbers
    return [f"{error}, {words}", *others]


def _add_legend(axes, models, title, new):
    if models[0].name is None:
        close = {"labelspacing": 0.2, "borderpad": 0.2, "handlelength": 1.5}
        _legend.add_legend(axes, title=title, loc="upper left", **close)
        return
    if new is not None:
        _legend.add_legend(axes, title=title, new=new, outside=True)
        return
    style = {"loc": "upper left", "fontsize": "x-small"}
    _legend.add_legend(axes, title=title, **style)


def words_of_bands(kind, band):
    """What the bands of several models are; they have no entry of their own."""
    if not band:
        return []
    name = "bars" if kind == "bars" else "bands"
    return [f"{name}: 95 % if calibrated ({band})"]
