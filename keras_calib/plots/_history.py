"""Calibration errors and temperature, epoch by epoch."""

from collections.abc import Mapping
from collections.abc import Sized
from typing import Any

import numpy as np

from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arrays import as_floats
from keras_calib.plots import _legend
from keras_calib.plots import _style

TEMPERATURE = "val_temperature"


def calibration_history(
    history: Any,
    *,
    keys: list[str] | None = None,
    every: int = 1,
    title: str | None = None,
    axes: Any = None,
) -> Any:
    """Draw calibration errors by epoch, and the optimal temperature below.

    The keys are those that `CalibrationMonitor`, `TemperatureTracker` and
    compiled metrics write into the logs. The temperature is above 1 if the
    model is overconfident. Errors have a noise floor that the logs do not hold:
    see `kc.metrics.calibration_errors(floor=True)`.

    Args:
        history: `keras.callbacks.History`, as `fit` returns it, or its dict; of
            one training. A dict has no numbers of epochs, which are then
            counted from 1.
        keys: up to six keys to draw above. By default those that end in
            `calibration_error`.
        every: int, the period in epochs of the callbacks that wrote the keys.
        title: text above the figure.
        axes: matplotlib axes, two, for errors and temperature, or one, for the
            errors alone. Defaults to a new figure.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: if keys are missing, or do not have a value for each period.
        ImportError: if matplotlib is missing.

    Example:
        >>> import keras_calib as kc
        >>> logs = {
        ...     "loss": [2.0, 1.5, 1.2],
        ...     "val_expected_calibration_error": [0.09, 0.05, 0.07],
        ...     "val_temperature": [0.9, 1.1, 1.4],
        ... }
        >>> figure = kc.plots.calibration_history(logs)
        >>> len(figure.axes)
        2

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        Section 4.2, for the temperature.
    """
    require_integer(1, every=every)
    logs = _logs(history)
    keys = _keys_of_errors(logs) if keys is None else keys
    _check_keys(keys, logs)
    epochs = _epochs(history, logs)
    has_temperature = TEMPERATURE in logs
    figure, (above, below) = _style.take_axes(
        axes,
        (4.8, 5.2 if has_temperature else 3.6),
        rows=2,
        least=1,
        sharex=True,
        height_ratios=(2, 1) if has_temperature else (1, 0.001),
    )
    if not has_temperature and below is not None:
        if axes is None:
            below.remove()
            above.tick_params(labelbottom=True)
        below = None
    for place, key in enumerate(keys):
        above.plot(
            *_points(logs, key, every, epochs),
            color=_style.COLORS[place],
            linestyle=_style.LINES[place],
            marker=_style.MARKERS[place],
            markersize=4,
            label=_style.in_legends(key),
        )
    above.set_ylabel(_unit(keys))
    if above.dataLim.y0 < 0:
        above.axhline(0.0, color=_style.ink(above), linestyle="--", linewidth=1)
    else:
        above.set_ylim(bottom=0)
    _style.set_title(above, _style.title_or(title, "Calibration by epoch"))
    new = figure if axes is None else None
    legend = _legend.add_legend(above, new=new, loc="best")
    if new is None:
        _legend.make_room(legend, above)
    if below is not None:
        below.axhline(1.0, color=_style.ink(below), linestyle="--", linewidth=1)
        below.plot(
            *_points(logs, TEMPERATURE, every, epochs),
            color=_style.FIRST,
            marker=_style.MARKERS[0],
            markersize=4,
        )
        below.set_ylabel("temperature")
    last = below or above
    last.set_xlabel("epoch")
    last.xaxis.get_major_locator().set_params(integer=True)
    return figure


def _unit(keys):
    """What the upper axis shows."""
    if all(key.endswith("calibration_error") for key in keys):
        return "calibration error"
    in_nats = "refinement_loss", "calibration_loss", "log_likelihood"
    if all(key.endswith(in_nats) for key in keys):
        return "loss (nats)"
    return "value"


def _keys_of_errors(logs):
    keys = [key for key in logs if key.endswith("calibration_error")]
    require(
        bool(keys),
        "No key of `history` ends in `calibration_error`.",
        "Pass `keys=`, or fit with `CalibrationMonitor`.",
        history=sorted(logs),
    )
    return keys


def _check_keys(keys, logs):
    listed = isinstance(keys, list | tuple)
    require(
        listed
        and 0 < len(keys) <= _style.MOST
        and all(key in list(logs) for key in keys),
        f"`keys` must be one to {_style.MOST} keys of the history, a list.",
        "`CalibrationMonitor` and `TemperatureTracker` write such keys.",
        keys=keys,
        history=sorted(logs),
    )


def _logs(history):
    """The dict of what `fit` returned."""
    logs = _of(history)
    several = isinstance(logs, Mapping) and [
        key for key in logs if isinstance(_of(logs[key]), Mapping)
    ]
    require(
        not several,
        "`history` must be that of one training, not a dict of histories.",
        "One is drawn at a time; `axes=` puts several into one figure.",
        history=several,
    )
    require(
        isinstance(logs, Mapping) and all(isinstance(k, str) for k in logs),
        "`history` must be what `fit` returns, or a dict of lists by key.",
        history=history,
    )
    return logs


def _of(history):
    """The dict of a `History`, or what was passed in."""
    return getattr(history, "history", history)


def _epochs(history, logs):
    """The numbers of all epochs, from 1; `fit` may have begun at a later one.

    A `History` that saw two calls of `fit` has those of the last one alone.
    """
    sizes = [len(each) for each in logs.values() if isinstance(each, Sized)]
    require(
        len(sizes) == len(logs),
        "`history` must have a list of values for each key.",
        history=logs,
    )
    total = max(sizes)
    numbers = None
    if not isinstance(history, Mapping):
        numbers = getattr(history, "epoch", None)
    if numbers is None or len(numbers) != total:
        return np.arange(1, total + 1)
    return np.asarray(numbers) + 1


def _points(logs, key, every, all_epochs):
    """Epochs and values of a key that is written every few epochs."""
    values = as_floats(logs[key], f"The values of `{key}`", "float64")
    require(
        values.ndim == 1,
        "`history` must have a list of values for each key.",
        history=logs,
    )
    if len(values) == len(all_epochs):
        return all_epochs, values
    epochs = all_epochs[all_epochs % every == 0]
    if len(epochs) != len(values):
        # The last epoch, too, if its number was known.
        epochs = np.unique(np.append(epochs, all_epochs[-1]))
    require(
        len(epochs) == len(values),
        f"`{key}` has {len(values)} values for {len(all_epochs)} epochs.",
        "Pass the period of the callback that wrote it.",
        every=every,
    )
    return epochs, values
