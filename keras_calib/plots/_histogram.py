"""How often a model is how confident."""

from typing import Any

from keras_calib._typing import ArrayLike
from keras_calib.inputs.arguments import require_integer
from keras_calib.plots import _legend
from keras_calib.plots import _panels
from keras_calib.plots import _style


def confidence_histogram(
    labels: ArrayLike,
    probabilities: ArrayLike | dict[str, ArrayLike],
    sample_weight: ArrayLike | None = None,
    *,
    num_bins: int = 15,
    class_id: int | None = None,
    from_logits: bool = False,
    ignore_class: int | None = None,
    title: str | None = None,
    axes: Any = None,
    axis: int = -1,
) -> Any:
    """Draw the histogram of confidences, with mean confidence and accuracy.

    Two dashed lines are the mean confidence and the accuracy: their distance is
    the least that the ECE can be. Several models have a panel each, one above
    the other.

    Args:
        labels: class ids, `(...)`, or one-hot rows; a distribution counts as
            its largest entry.
        probabilities: `(..., num_classes)`, or logits; `(..., 1)` or `(n,)` for
            one sigmoid unit. A dict from name to predictions draws up to six
            models.
        sample_weight: `None`, or weights that broadcast from the left.
        num_bins: int, number of bins of equal width.
        class_id: int, for the probabilities of this class and its frequency; by
            default those of the predicted class of each sample.
        from_logits: whether `probabilities` are logits.
        ignore_class: samples with this label are ignored.
        title: text above the figure.
        axes: matplotlib axes, one for each model. Defaults to a new figure.
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
        >>> figure = kc.plots.confidence_histogram(p.argmax(-1), p)
        >>> [len(panel.patches) for panel in figure.axes]
        [15]

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        Figure 1, above.
    """
    require_integer(1, num_bins=num_bins)
    read = _style.read_models(
        labels,
        probabilities,
        sample_weight,
        from_logits=from_logits,
        axis=axis,
        ignore_class=ignore_class,
    )
    _style.require_class(class_id, read)
    number = len(read)
    figure, panels = _style.take_axes(
        axes, (4.8, 0.8 + 2.8 * number), rows=number, sharex=True
    )
    for panel, (name, data) in zip(panels, read.items(), strict=True):
        model = _panels.Drawn(None, data, class_id, num_bins, brief=True)
        _panels.draw_counts(panel, [model])
        if name is not None:
            _style.set_title(panel, str(name), fontsize="medium")
        # The legend is above the bars.
        panel.set_ylim(0, 1.7 * panel.dataLim.y1)
        words = f"{model.numbers[0]}\n{num_bins} bins, N {len(data.labels):,}"
        _legend.add_legend(panel, title=words, loc="upper left")
    panels[-1].set_xlabel(_style.label_of_confidence(class_id))
    if axes is None:
        _style.set_figure_title(figure, title)
    elif title is not None:
        above = panels[0].get_title()
        _style.set_title(panels[0], f"{title}\n{above}" if above else title)
    return figure
