"""The base of all layers that `adapt` fits: variables, settings, a record."""

from types import NoneType
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.inputs import rules
from keras_calib.inputs.arguments import require_kind
from keras_calib.inputs.arrays import holds_numbers
from keras_calib.keras_graph import endings


def plain_values(value):
    """A record's value with Python's numbers and lists instead of NumPy's."""
    if isinstance(value, dict):
        return {key: plain_values(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_values(each) for each in value]
    is_numpy = isinstance(value, (np.ndarray, np.generic))
    return value.tolist() if is_numpy else value


class LayerOfScores(keras.layers.Layer):
    """A layer that is called with one tensor of scores, and refuses others.

    It computes in float32, or in float64 if that is its `dtype`.

    Args:
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Raises:
        ValueError: for a `dtype` of half precision.
    """

    def __init__(self, **kwargs: Any) -> None:
        # `None` is Keras' policy, which may be of half precision.
        if kwargs.get("dtype") is None:
            kwargs["dtype"] = "float32"
        super().__init__(**kwargs)
        if self.compute_dtype not in ("float32", "float64"):
            raise ValueError(
                f"{type(self).__name__} computes in float32 or float64, also "
                "behind a network of half precision: calibration is lost in "
                f"its digits. Received: dtype={kwargs['dtype']!r}. Leave "
                "`dtype` out."
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args:
            self.check_call(args[0])
        return super().__call__(*args, **kwargs)

    def check_call(self, inputs: Any) -> None:
        """Raise `ValueError` for what the layer cannot be called with."""
        self.check_inputs(inputs)

    def check_inputs(self, inputs: Any) -> None:
        """Raise `ValueError` for what is no tensor with an axis."""
        shape = getattr(inputs, "shape", None)
        axis = shape is not None and len(shape) > 0 and shape[-1] != 0
        if not axis or not holds_numbers(inputs):
            found = type(inputs).__name__
            if shape is not None:
                found += f" of shape {tuple(shape)} and dtype {inputs.dtype}"
            raise ValueError(
                f"{type(self).__name__} takes one tensor of numbers, with a "
                f"class axis. Received: inputs of type {found}. Pass `(n, "
                "num_classes)`."
            )


class RecordedLayer(LayerOfScores):
    """A layer that computes in float32, and keeps a record of its fit.

    Args:
        record: dict of JSON values about the fit, which is saved with the
            layer; `None` before `adapt`.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Attributes:
        record: see above.
        settings: names of the arguments that `get_config` saves.
        of_classes: whether it has weights of each class, so that scores of
            other classes are refused.
        by_element: whether each score becomes what it would be alone, so that
            shapes do not matter.
    """

    settings: tuple[str, ...] = ()
    of_classes = False
    by_element = False
    # One column is the score of a sigmoid, and stands for two classes.
    _least = 2

    def __init__(self, *, record: dict | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require_kind((dict, NoneType), "a dict, or None", record=record)
        self.record = record

    def check_call(self, inputs: Any) -> None:
        super().check_call(inputs)
        self.refuse_probabilities(inputs)

    def refuse_probabilities(self, inputs: Any) -> None:
        """Raise `ValueError` for probabilities in place of logits."""
        if isinstance(inputs, keras.KerasTensor):
            endings.refuse_probabilities(inputs, type(self).__name__)
        elif isinstance(inputs, np.ndarray) and inputs.size:
            # To look at the values of a tensor may be to wait for a device.
            rows = inputs.reshape(-1, inputs.shape[-1])
            rules.refuse_probabilities(rows, rows.min(), rows.max())

    def check_inputs(self, inputs: Any) -> None:
        super().check_inputs(inputs)
        given = inputs.shape[-1]
        # A layer that says of itself that it is built has no such shape.
        known = (self.get_build_config() or {}).get("input_shape")
        if not self.built or given is None or known is None:
            return
        built, least = known[-1], self._least
        if built == 1 and len(inputs.shape) == 1 and not self.by_element:
            # They would be the scores of as many classes, of one sample.
            raise ValueError(
                f"{type(self).__name__} was fitted to scores of one sigmoid "
                "unit and takes them as a column, `(n, 1)`. Received: inputs "
                f"of shape {tuple(inputs.shape)}."
            )
        if not self.of_classes:
            return
        if max(least, given) != max(least, built):
            raise ValueError(
                f"{type(self).__name__} has weights for scores with {built} "
                f"columns. Received: inputs of shape {tuple(inputs.shape)}. "
                "Fit another layer to these."
            )

    def _add(self, name, start, trainable=True):
        """Create the variable `name` with the value `start`."""
        start = np.asarray(start, "float32")
        variable = self.add_weight(
            start.shape,
            lambda shape, dtype: ops.array(start, dtype),
            trainable=trainable,
            name=name,
        )
        setattr(self, name, variable)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "record": self.record,
            **{name: getattr(self, name) for name in self.settings},
        }
