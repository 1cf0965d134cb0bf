"""One of several outputs of a model: taken out, and put back calibrated."""

import dataclasses
import hashlib
from typing import Any

import keras

from keras_calib.calibration._record import fused_records
from keras_calib.calibration._record import keep_fused_records
from keras_calib.inputs.arguments import is_number
from keras_calib.keras_graph import endings
from keras_calib.keras_graph.head import free_name
from keras_calib.keras_private import flatten_layers


@dataclasses.dataclass(frozen=True)
class OneOutput:
    """An output of a model with several.

    Attributes:
        model: the user's model.
        key: the key of the output, in a model that returns a dict; else its
            number.
    """

    model: keras.Model
    key: str | int

    def alone(self):
        """The model with this output only; it shares all layers."""
        tensor = self.model.output[self.key]
        inputs = endings.inputs_of(self.model)
        alone = keras.Model(inputs, tensor, name=self.model.name)
        others = keras.tree.flatten(self._replaced(self.model.output, []))
        return endings.with_other_outputs(alone, others)

    def with_others(self, calibrated):
        """The model with the output of a calibrated one in this place."""
        # Other outputs may have been calibrated before.
        known = flatten_layers(self.model)
        for layer in flatten_layers(calibrated, include_self=False):
            if not any(layer is each for each in known):
                layer.name = free_name(self.model, layer.name)
        outputs = self._replaced(self.model.output, calibrated.output)
        inputs = endings.inputs_of(self.model)
        whole = keras.Model(inputs, outputs, name=calibrated.name)
        records = dict(fused_records(self.model))
        records.pop(self.key, None)
        if None in fused_records(calibrated):
            records[self.key] = fused_records(calibrated)[None]
        keep_fused_records(whole, records)
        return whole

    def only_here(self, value):
        """A structure like the outputs, with a value in this place."""
        empty = keras.tree.map_structure(lambda _: None, self.model.output)
        return self._replaced(empty, value)

    def part_of(self, values):
        """Labels or weights of this output, from those of all or of it.

        As in `fit`, a dict has the keys of the outputs, or the names of those
        in a list; and a list has the order in which Keras flattens a dict. A
        table whose columns have just these names is read as a dict.
        """
        outputs = self.model.output
        name = self.key
        if not isinstance(outputs, dict):
            name = self.model.output_names[name]
        columns = getattr(values, "columns", None)
        if columns is not None and {*columns} == {*output_keys(self.model)}:
            return values[name]
        if isinstance(values, dict):
            if name not in values:
                raise ValueError(
                    "Labels and weights are those of the output that is "
                    "calibrated, or a dict with it. Received: the keys "
                    f"{[*values]}, without {name!r}."
                )
            return values[name]
        if isinstance(values, list | tuple):
            places = [*range(len(outputs))]
            if isinstance(outputs, dict):
                places = keras.tree.flatten({key: key for key in outputs})
            # Labels of few samples are a list of numbers.
            numbers = all(is_number(value) for value in values)
            if len(values) == len(places) and not numbers:
                return values[places.index(self.key)]
        return values

    def mark(self, fingerprint):
        """A fingerprint of data that were used for this output."""
        own = f"{self.key!r} {fingerprint}"
        return hashlib.sha256(own.encode()).hexdigest()[:16]

    def _replaced(self, outputs, value):
        if isinstance(outputs, dict):
            return {**outputs, self.key: value}
        outputs = list(outputs)
        outputs[self.key] = value
        return outputs


def output_keys(model: keras.Model) -> dict[str, str | int]:
    """The names of the outputs of a graph, with the keys of `OneOutput`.

    There are none if the model has one output.
    """
    outputs = model.output
    if isinstance(outputs, dict):
        return {key: key for key in outputs}
    if isinstance(outputs, list | tuple):
        return {each: i for i, each in enumerate(model.output_names)}
    return {}


def one_output(model: Any, name: str | None) -> OneOutput | None:
    """An output by its key or, in a list, by Keras' name of it.

    Returns:
        `OneOutput`, or `None` without a name.

    Raises:
        ValueError: if the model has no such output, several of this name, or
            no graph that shows it; if the output is no tensor.
    """
    if name is None:
        return None
    if not endings.has_graph(model):
        raise ValueError(
            "`output_name` needs a Functional model, whose outputs have names. "
            f"Received: {type(model).__name__}."
        )
    keys = output_keys(model)
    if not keys:
        raise ValueError(
            "The model has one output: leave out `output_name`. Received: "
            f"output_name={name!r}."
        )
    if name not in keys:
        renamed = ""
        if any(each.startswith("probabilities") for each in keys):
            renamed = (
                " Outputs of a list keep their places, and those that were "
                "calibrated have these names."
            )
        raise ValueError(
            f"`output_name` must be one of {[*keys]}. Received: {name!r}."
            f"{renamed}"
        )
    _check_one_tensor(model, name, keys[name])
    return OneOutput(model, keys[name])


def _check_one_tensor(model, name, key):
    """Refuse a name of several outputs, or of a list or dict of them."""
    outputs = model.output
    # In a list, the names are those of all tensors, also of lists in it.
    parts = [outputs[key]] if isinstance(outputs, dict) else outputs
    nested = [part for part in parts if isinstance(part, list | tuple | dict)]
    if nested:
        raise ValueError(
            "Each output must be a tensor. Received: output_name="
            f"{name!r}, a {type(nested[0]).__name__} among the outputs. Pass "
            "`keras.Model(model.inputs, keras.tree.flatten(model.output))`."
        )
    number = 1 if isinstance(outputs, dict) else model.output_names.count(name)
    if number > 1:
        raise ValueError(
            "`output_name` must name one output. Received: "
            f"output_name={name!r}, which {number} outputs have. Pass a model "
            "that returns a dict, whose keys are the names."
        )
