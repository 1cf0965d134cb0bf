"""The base of all layers that `adapt` fits: variables, settings, a record."""

from typing import Any

import keras
import numpy as np
from keras import ops


class RecordedLayer(keras.layers.Layer):
    """A layer that computes in float32, and keeps a record of its fit.

    Args:
        record: dict of JSON values about the fit, which is saved with the
            layer; `None` before `adapt`.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Attributes:
        record: see above.
        settings: names of the arguments that `get_config` saves.
    """

    settings: tuple[str, ...] = ()

    def __init__(self, *, record: dict | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self.record = record

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
