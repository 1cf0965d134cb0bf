"""A reliability diagram for each class."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib.inputs.arguments import class_names_of
from keras_calib.inputs.arguments import is_integer
from keras_calib.inputs.arguments import require
from keras_calib.plots import _legend
from keras_calib.plots import _panels
from keras_calib.plots import _style
from keras_calib.plots._reliability import check_options
from keras_calib.plots._reliability import draw_diagram
from keras_calib.plots._reliability import words_of_bands

MOST_PANELS = 12
# Of a name before its numbers.
FEWEST_LETTERS = 6


def classwise_reliability(
    labels: ArrayLike,
    probabilities: ArrayLike | dict[str, ArrayLike],
    sample_weight: ArrayLike | None = None,
    *,
    classes: Sequence[int] | None = None,
    class_names: Sequence[str] | None = None,
    kind: str = "corp",
    band: str | None = "simultaneous",
    num_bins: int = 15,
    from_logits: bool = False,
    ignore_class: int | None = None,
    title: str | None = None,
    axes: Any = None,
    axis: int = -1,
) -> Any:
    """Draw the frequency of each class against its predicted probability.

    Confidences can be calibrated while the probabilities of classes are not:
    errors of two classes cancel. Each panel is a `reliability_diagram` with
    `class_id`. A band holds for its panel alone, so that with ten classes some
    panel of a calibrated model is left in up to 40 % of all data sets.

    Args:
        labels: class ids, `(...)`, or one-hot rows; a distribution counts as
            its largest entry.
        probabilities: `(..., num_classes)`, or logits; `(..., 1)` or `(n,)` for
            one sigmoid unit. A dict from name to predictions draws up to six
            models.
        sample_weight: `None`, or weights that broadcast from the left.
        classes: ids of the classes to draw. Defaults to class 1 of two classes,
            to all of three to twelve, and else to the twelve most frequent.
        class_names: names of all classes, in the order of their ids.
        kind: see `reliability_diagram`.
        band: see `reliability_diagram`.
        num_bins: int, number of bins of equal width.
        from_logits: whether `probabilities` are logits.
        ignore_class: samples with this label are ignored.
        title: text above all panels.
        axes: matplotlib axes, one for each class. Defaults to a new figure.
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
        >>> figure = kc.plots.classwise_reliability(
        ...     p.argmax(-1), p, class_names=["cat", "dog", "fox"]
        ... )
        >>> [panel.get_title() for panel in figure.axes]
        ['cat', 'dog', 'fox']

    Reference:
        Kull et al., "Beyond temperature scaling", NeurIPS 2019, Figure 1.
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
    most = max(data.num_classes for data in read.values())
    names = class_names_of(class_names, most)
    wanted = _wanted(classes, next(iter(read.values())))
    _require_classes(wanted, read)
    figure, panels, columns = _panels_of(axes, len(wanted))
    for number, (panel, k) in enumerate(zip(panels, wanted, strict=True)):
        models = [
            _panels.Drawn(name, data, k, num_bins, place, brief=True)
            for place, (name, data) in enumerate(read.items())
        ]
        draw_diagram(panel, models, kind, band)
        _add_numbers(panel, [model.numbers[0] for model in models])
        name = _style.plain(names[k]) if names else f"class {k}"
        _style.set_title(panel, name)
        panel.set_ylabel("frequency" if number % columns == 0 else "")
        if number + columns >= len(wanted):
            panel.set_xlabel("predicted probability")
            panel.tick_params(labelbottom=True)
    words = [f"{num_bins} bins, N {len(models[0].data.labels):,}"]
    if len(read) > 1 or models[0].name is not None:
        words += words_of_bands(kind, band)
    if axes is None:
        _legend.add_legend(
            panels[0],
            title=", ".join(words),
            new=figure,
            outside=True,
            columns=min(columns + 1, 4),
        )
    _style.set_figure_title(figure, title)
    if models[0].name is not None:
        _style.lay_out(figure)
        for panel in panels:
            _add_names(panel, [str(name) for name in read])
    return figure


def _require_classes(wanted, read):
    for k in wanted:
        _style.require_class(k, read)


def _panels_of(axes, number):
    """Figure, a panel for each class, and how many are side by side."""
    columns = min(number, 4)
    if axes is not None:
        return *_style.take_axes(axes, None, 1, number), number
    rows = -(-number // columns)
    size = max(3.0 * columns, 4.8), 3.2 * rows + 0.6
    figure, panels = _style.take_axes(
        None, size, rows, columns, sharex=True, sharey=True
    )
    for panel in panels[number:]:
        panel.remove()
    return figure, panels[:number], columns


def _add_numbers(panel, words):
    """The ECE of each model, with its floor."""
    text = panel.text(
        0.03,
        0.97,
        "\n".join(words),
        transform=panel.transAxes,
        va="top",
        fontsize="x-small",
        color=_style.ink(panel),
        bbox={"color": _style.paper(panel), "alpha": 0.6, "pad": 1.5},
    )
    text.set_in_layout(False)


def _add_names(panel, names):
    """Names before the numbers, shortened so that they stay in the panel.

    The legend has the full names, in the same order.
    """
    text = panel.texts[0]
    numbers = text.get_text().splitlines()
    room = 0.94 * panel.get_window_extent().width
    most = max(map(len, names))
    while True:
        lines = [
            f"{_legend.shorten(name, most)}: {number}"
            for name, number in zip(names, numbers, strict=True)
        ]
        text.set_text("\n".join(lines))
        width = text.get_window_extent().width
        if width <= room or most <= FEWEST_LETTERS:
            return
        excess = max(map(len, lines)) * (1 - room / width)
        most = max(most - int(excess) - 1, FEWEST_LETTERS)


def _wanted(classes, data):
    """Ids of the classes to draw."""
    if classes is not None:
        require(
            isinstance(classes, Sequence | np.ndarray)
            and np.ndim(classes) == 1
            and len(classes) > 0
            and all(map(is_integer, classes)),
            "`classes` must be a list of class ids, one at least.",
            classes=classes,
        )
        return [int(k) for k in classes]
    if data.num_classes == 2:
        return [1]
    number = np.bincount(data.labels, data.weights, data.num_classes)
    most = np.argsort(-number, kind="stable")[:MOST_PANELS]
    return sorted(int(k) for k in most)
