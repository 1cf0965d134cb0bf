"""`kc.calibration_record`: a calibrated model -> what was fitted."""

import os
from typing import Any

import keras

from keras_calib._printed_dict import PrintedDict
from keras_calib._warning import warn
from keras_calib.calibration._one_output import one_output
from keras_calib.calibration._one_output import output_keys
from keras_calib.calibration._preprocessed import taken_apart
from keras_calib.calibration._record import fused_records
from keras_calib.calibration._record import has_another_fit
from keras_calib.keras_graph import endings
from keras_calib.keras_private import flatten_layers
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._decision import DecisionLayer
from keras_calib.layers._multi_label_scaling import MultiLabelScaling
from keras_calib.layers._prior_correction import PriorCorrection

# Layers that carry the record of `calibrate`.
MAPS = (CalibrationLayer, MultiLabelScaling)
# Layers that make one tensor of several, and so end what a record is of.
MERGES = (
    keras.layers.Add,
    keras.layers.Average,
    keras.layers.Concatenate,
    keras.layers.Dot,
    keras.layers.Maximum,
    keras.layers.Minimum,
    keras.layers.Multiply,
    keras.layers.Subtract,
)


def calibration_record(
    model: keras.Model | str | os.PathLike,
    *,
    output_name: str | None = None,
) -> dict[str, Any]:
    """What `kc.calibrate` fitted, read from a calibrated model or its file.

    Args:
        model: a model that `kc.calibrate` returned, also after loading, or the
            path of its file, for `keras.saving.load_model`. With
            `fuse=True` only before saving, because the file is plain Keras. A
            clone (`keras.models.clone_model`) has the record, but new weights
            until it is given those of the model (`set_weights`; a clone has
            more weights where the last layer of the network feeds another
            output, too).
        output_name: the output whose record is wanted, where several were
            calibrated: its key, or its name in `model.output_names`.

    Returns:
        A dict of JSON values that prints one key per line: method, objective,
        number of samples and classes, fitted parameters, NLL and ECE on the
        calibration data before and after, a fingerprint of that data, what
        `"auto"` tried, and the version of the library. The page
        `examples/docs/record.md` has every key. It is of the last fit: a
        warning tells of a temperature that was loaded, set or trained since.

    Raises:
        ValueError: if the model contains no calibration layer, as in a file
            saved after `fuse=True`, or only those of the members of an average
            (`kc.models.DeepEnsemble`, `keras.layers.Average`), or of a part
            that other layers with weights follow; if several outputs were
            calibrated and `output_name` is not one of them.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> model = keras.Sequential([keras.Input((2,)),
        ...                           keras.layers.Dense(2)])
        >>> x = np.random.default_rng(0).normal(size=(100, 2))
        >>> calibrated = kc.calibrate(model, x, np.arange(100) % 2, verbose=0)
        >>> kc.calibration_record(calibrated)["num_samples"]
        100
    """
    if isinstance(model, str | os.PathLike):
        model = keras.saving.load_model(model, compile=False)
    model, _ = taken_apart(model)
    place = one_output(model, output_name)
    fused = fused_records(model)
    if place is not None:
        record = fused.get(place.key) or _record_of(place.alone())
    elif endings.has_graph(model) and len(model.outputs) > 1:
        record = _only_record(model, fused)
    else:
        record = next(iter(fused.values()), None) or _record_of(model)
    if record is None:
        raise ValueError(
            f"The model {model.name!r} holds no calibration layer at its end. "
            "Pass what `kc.calibrate` returned; a file saved after `fuse=True` "
            "is plain Keras and carries no record."
        )
    return PrintedDict(record)


def _only_record(model, fused):
    """The record of the one output that was calibrated."""
    found = [*fused.values()]
    for tensor in keras.tree.flatten(model.outputs):
        record = _record_of(
            keras.Model(endings.inputs_of(model), tensor, name=model.name)
        )
        # An output may be computed from one that was calibrated.
        if record is not None and record not in found:
            found.append(record)
    if len(found) > 1:
        raise ValueError(
            "Several outputs were calibrated. Received: a model with "
            f"{len(found)} records. Pass `output_name=`, one of "
            f"{[*output_keys(model)]}."
        )
    return found[0] if found else None


def _record_of(model):
    """The record that the layers of a model with one output have, or `None`."""
    record = found = None
    inside = set()  # what a map is made of, and members of an average
    for layer in flatten_layers(model):
        if id(layer) in inside:
            continue
        if isinstance(layer, MAPS) and layer.record:
            record, found = layer.record, layer  # the last one is the outermost
            inside |= set(map(id, flatten_layers(layer)))
        elif isinstance(layer, PriorCorrection) and layer.record:
            record = {**(record or {}), "prior_correction": layer.record}
        elif endings.is_average(layer):
            # Maps of its members are not that of their average.
            record = found = None
            inside |= set(map(id, flatten_layers(layer)))
        elif isinstance(layer, MERGES) or _makes_other_scores(layer):
            record = found = None
    if found is not None:
        _warn_of_another_fit(found)
    return record


def _makes_other_scores(layer):
    """Whether a layer has weights of its own, and is none of ours."""
    if isinstance(layer, DecisionLayer) or not layer.weights:
        return False
    # Of a layer that holds others, these are asked.
    return not flatten_layers(layer, include_self=False)


def _warn_of_another_fit(layer):
    """Warn where the temperature of a map is not that of its record."""
    if has_another_fit(layer):
        warn(
            f"The temperature of {layer.name!r} is {layer.temperature:.4g}, "
            f"and that of its record {layer.record['temperature']:.4g}: its "
            "weights were loaded, set or trained after it was fitted. The "
            "record is of that fit."
        )
