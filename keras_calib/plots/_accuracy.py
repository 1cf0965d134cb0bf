"""Accuracy against calibration error: a point for each model."""

from typing import Any

import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib.evaluation.decisions import pareto_front
from keras_calib.evaluation.floor import binned_floor
from keras_calib.inputs.arguments import require_integer
from keras_calib.ops.bin_errors import calibration_error
from keras_calib.plots import _legend
from keras_calib.plots import _style


def accuracy_vs_ece(
    labels: ArrayLike,
    probabilities: ArrayLike | dict[str, ArrayLike],
    sample_weight: ArrayLike | None = None,
    *,
    num_bins: int = 15,
    from_logits: bool = False,
    ignore_class: int | None = None,
    title: str | None = None,
    axes: Any = None,
    axis: int = -1,
) -> Any:
    """Draw the ECE of models against their accuracy, with the Pareto front.

    A model is on the front if no other has a higher accuracy and a lower ECE.
    The short line below a point is the mean ECE of a calibrated model with the
    same confidences (the floor): points near their lines cannot be told from
    calibrated models by these samples, and their order says little.

    Args:
        labels: class ids, `(...)`, or one-hot rows; a distribution counts as
            its largest entry.
        probabilities: dict from name to predictions, `(..., num_classes)`, or
            logits; `(..., 1)` or `(n,)` for one sigmoid unit. Up to six.
        sample_weight: `None`, or weights that broadcast from the left.
        num_bins: int, number of bins of equal width.
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
        >>> figure = kc.plots.accuracy_vs_ece(
        ...     rng.integers(0, 3, 300), {"one": p, "other": p[::-1]}
        ... )
        >>> figure.axes[0].get_ylabel()
        'ECE'
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
    figure, (panel,) = _style.take_axes(axes, (5.2, 5.4))
    found = [_measured(data, num_bins) for data in read.values()]
    accuracy, error, _ = np.array(found).T
    front = pareto_front(accuracy, error)
    panel.step(
        accuracy[front],
        error[front],
        where="pre",
        color=_style.ink(panel),
        linestyle="--",
        linewidth=1,
        label="Pareto front",
    )
    for place, name in enumerate(read):
        x, y, least = found[place]
        style = {"color": _style.COLORS[place], "linestyle": "none"}
        label = "model" if name is None else str(name)
        panel.plot(
            [x],
            [y],
            marker=_style.MARKERS[place],
            markersize=9,
            markeredgecolor=_style.ink(panel),
            label=f"{label}: ECE {y:.4f} (floor {least:.4f})",
            **style,
        )
        panel.plot([x], [least], marker="_", markersize=14, mew=2, **style)
    panel.set(xlabel="accuracy", ylabel="ECE")
    panel.margins(0.15)
    panel.set_ylim(bottom=0)
    _style.set_title(
        panel, _style.title_or(title, "Accuracy and calibration error")
    )
    words = f"{num_bins} bins, N {len(next(iter(read.values())).labels):,}"
    new = figure if axes is None else None
    _legend.add_legend(panel, title=words, new=new, outside=new is not None)
    return figure


def _measured(data, num_bins):
    """Accuracy, ECE and its floor."""
    events = _style.events_of(data)
    bins = events.bins(events.width_cuts(num_bins))
    accuracy = float(bins.mean(bins.accuracy))
    return accuracy, float(calibration_error(bins)), binned_floor(bins).mean
