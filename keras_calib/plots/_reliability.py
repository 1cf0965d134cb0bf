"""Reliability diagrams: accuracy against confidence, bin by bin."""

from typing import Any

import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib.evaluation.consistency_bars import consistency_bars
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.floor import binned_floor
from keras_calib.inputs.arguments import require_at_least
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.predictions import read_predictions
from keras_calib.ops.bin_errors import calibration_error

ACCURACY = "#4c78a8"
GAP = "#e45756"
INK = "#333333"
BANDS = ("simultaneous", "pointwise")


def reliability_diagram(
    labels: ArrayLike,
    probabilities: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    num_bins: int = 15,
    band: str | None = "simultaneous",
    from_logits: bool = False,
    ignore_class: int | None = None,
    title: str | None = None,
    axes: Any = None,
    axis: int = -1,
) -> Any:
    """Draw the accuracy of each bin of confidence, and a histogram.

    Each bar is a bin of equal width. Its height is the accuracy, and the
    hatched part is the gap to the mean confidence of the bin; ECE is the mean
    of the gaps. A calibrated model has gaps, too, because a bin has few labels:
    the thin lines show where its accuracies lie with a probability of 95 %, and
    the floor beside the ECE is its mean ECE on these samples. An accuracy
    beyond its line is evidence that the model is not calibrated; an accuracy
    within is no evidence that it is. The histogram below shows the fraction of
    samples in each bin, with mean confidence and accuracy as dashed lines.

    Args:
        labels: class ids, `(...)`, or one-hot rows.
        probabilities: `(..., num_classes)`, or logits; `(..., 1)` or `(n,)` for
            one sigmoid unit.
        sample_weight: `None`, or weights that broadcast from the left.
        num_bins: int, number of bins.
        band: `"simultaneous"`, lines that hold 95 % of the time all together;
            `"pointwise"`, each alone, so that with 15 bins some accuracy of a
            calibrated model is beyond its line about half of the time; or
            `None`.
        from_logits: whether `probabilities` are logits.
        ignore_class: samples with this label are ignored.
        title: text above the diagram.
        axes: matplotlib axes to draw into, either two, for diagram and
            histogram, or one, for the diagram alone. Defaults to a new figure.
        axis: the class axis of the predictions.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: if the input is invalid, or all samples are ignored.
        ImportError: if matplotlib is missing.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> p = rng.dirichlet([1, 1, 1], size=1000)
        >>> figure = kc.plots.reliability_diagram(p.argmax(-1), p)
        >>> figure.savefig("reliability.png")  # doctest: +SKIP

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        Figure 1; Broecker and Smith, "Increasing the Reliability of Reliability
        Diagrams", Weather and Forecasting, 2007.
    """
    require_one_of((*BANDS, None), band=band)
    require_at_least(1, num_bins=num_bins)
    data = read_predictions(
        labels, probabilities, sample_weight, from_logits, axis, ignore_class
    )
    if not len(data.labels):
        raise ValueError(
            "There is nothing to draw. Received: 0 samples with a weight "
            "above 0 and a label that counts."
        )
    confidence, correct = data.top_label
    events = sort_events(confidence, correct, data.weights)
    bins = events.bins(events.width_cuts(num_bins))
    figure, (above, below) = _axes(axes)
    _draw_bars(above, bins, band)
    above.set_title(title or "Reliability")
    above.text(
        0.03,
        0.97,
        f"ECE {float(calibration_error(bins)):.4f} "
        f"(floor {binned_floor(bins).mean:.4f})\n"
        f"{num_bins} bins, N {len(events):,}",
        transform=above.transAxes,
        va="top",
        color=INK,
        bbox={"color": "white", "alpha": 0.8, "pad": 2},
    )
    if below is not None:
        _draw_counts(below, bins)
    return figure


def _axes(axes):
    if axes is not None:
        given = list(np.ravel(axes))
        if len(given) > 2:
            raise ValueError(
                "A reliability diagram has one or two axes. Received: "
                f"{len(given)} axes."
            )
        return given[0].figure, [*given, None][:2]
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "Drawing needs matplotlib: `pip install keras-calib[plots]`."
        ) from error
    return pyplot.subplots(
        2,
        1,
        sharex=True,
        figsize=(4.8, 6.0),
        height_ratios=(3, 1),
        layout="constrained",
    )


def _draw_bars(axes, bins, band):
    used = bins.weight > 0
    width = 1 / len(used)
    left, accuracy = width * np.flatnonzero(used), bins.accuracy[used]
    style = {"width": width, "align": "edge", "edgecolor": "white"}
    axes.bar(left, accuracy, color=ACCURACY, label="accuracy", **style)
    axes.bar(
        left,
        bins.gap[used],
        bottom=accuracy,
        color=GAP,
        alpha=0.45,
        hatch="//",
        label="gap to confidence",
        **style,
    )
    axes.plot([0, 1], [0, 1], "--", color=INK, linewidth=1, label="calibrated")
    if band:
        low, high = consistency_bars(bins, simultaneous=band == BANDS[0])
        low, high = low[used], high[used]
        axes.errorbar(
            left + width / 2,
            (low + high) / 2,
            (high - low) / 2,
            fmt="none",
            ecolor=INK,
            elinewidth=1,
            capsize=2,
            label=f"95 % if calibrated\n({band})",
        )
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0, 0.88),
        fontsize="small",
        edgecolor="none",
    )


def _draw_counts(axes, bins):
    fraction = bins.weight / bins.total
    accuracy, confidence = bins.mean(bins.accuracy), bins.mean(bins.confidence)
    width = 1 / len(fraction)
    axes.bar(
        width * np.arange(len(fraction)),
        fraction,
        width,
        align="edge",
        color=ACCURACY,
        edgecolor="w",
    )
    axes.axvline(accuracy, color=INK, linestyle="--", linewidth=1)
    axes.axvline(confidence, color=GAP, linestyle="--", linewidth=1)
    axes.set(
        xlim=(0, 1),
        xlabel="confidence",
        ylabel="fraction of samples",
        title=f"accuracy {accuracy:.3f}, mean confidence {confidence:.3f}",
    )
    axes.title.set_fontsize("medium")
