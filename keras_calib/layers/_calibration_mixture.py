"""A weighted mean of the probabilities of several maps."""

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import Self

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs.arrays import as_floats
from keras_calib.inputs.calibration_rows import CalibrationRows
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._logit_ops import on_pairs
from keras_calib.layers._loss_objective import resolve_objective


@keras.saving.register_keras_serializable(package="keras_calib")
class CalibrationMixture(CalibrationLayer):
    """Average the probabilities of fitted calibration layers.

        q = sum_m w_m softmax(f_m(z)),    sum_m w_m = 1

    The output is `log q`. `adapt` fits every layer by likelihood; the weights
    stay. `kc.calibrate(method="auto", mixture=True)` chooses layers and
    weights.

    Args:
        maps: calibration layers.
        weights: floats >= 0, one for each layer, with a sum above 0.
        **kwargs: `record`, `name`, `dtype`, `trainable`.

    Raises:
        ValueError: if there is no layer, or the weights do not fit.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> maps = [kc.layers.TemperatureScaling(temperature=t) for t in (1, 2)]
        >>> layer = kc.layers.CalibrationMixture(maps=maps, weights=[0.5, 0.5])
        >>> q = keras.ops.exp(layer(np.log([[0.8, 0.2]])))
        >>> round(float(q[0, 0]), 4)  # the mean of 4 / 5 and 2 / 3
        0.7333
    """

    shift_invariant = True

    def __init__(
        self,
        *,
        maps: Sequence[CalibrationLayer],
        weights: Sequence[float],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        w = as_floats(weights, "`weights`", "float64")
        self.maps = list(maps) if isinstance(maps, Iterable) else []
        fits = self.maps and w.shape == (len(self.maps),)
        fits = fits and all(isinstance(m, CalibrationLayer) for m in self.maps)
        if not fits or not (w >= 0).all() or not 0 < w.sum() < np.inf:
            raise ValueError(
                "A mixture needs calibration layers as `maps`, and a weight "
                f">= 0 for each. Received: maps={maps!r}, weights={weights!r}."
            )
        names = [layer.name for layer in self.maps]
        if len(set(names)) < len(names):
            raise ValueError(
                "The layers of a mixture need names of their own, by which its "
                f"record tells them apart. Received: {names}. Pass `name=` to "
                "each, and no layer twice."
            )
        self._weights_of_maps = [float(value) for value in w / w.sum()]
        self.preserves_accuracy = all(m.preserves_accuracy for m in self.maps)
        self.shift_invariant = all(m.shift_invariant for m in self.maps)
        self.averages = all(m.averages for m in self.maps)
        self.binary_only = any(m.binary_only for m in self.maps)

    def build(self, input_shape: tuple) -> None:
        for layer in self.maps:
            if not layer.built:
                layer.build(input_shape)
        self.built = True

    def call(self, logits: Tensor) -> Tensor:
        def mix(z):
            logs = [
                log_softmax(layer(z)) + np.log(weight)
                for layer, weight in zip(
                    self.maps, self._weights_of_maps, strict=True
                )
                if weight
            ]
            return ops.logsumexp(ops.stack(logs), axis=0)

        return on_pairs(mix, logits)

    def degrees_of_freedom(self, num_classes: int) -> int:
        return sum(m.degrees_of_freedom(num_classes) for m in self.maps)

    def adapt_to_rows(self, rows: CalibrationRows, **options: Any) -> Self:
        resolve_objective(options.get("objective", "nll"), self)
        # All maps or none: they change when the last one is fitted.
        twins = self.twins()
        for twin in twins:
            twin.adapt_to_rows(rows, **options)
        return self.take(twins, rows)

    def twins(self) -> list[CalibrationLayer]:
        """Layers as those of the mixture, not fitted."""
        return [type(m).from_config(m.get_config()) for m in self.maps]

    def take(
        self, fitted: Sequence[CalibrationLayer], rows: CalibrationRows
    ) -> Self:
        """Take over the weights of `twins` that were fitted to `rows`.

        Raises:
            ValueError: if a map was built for other logits; all of them are
                then unchanged.
        """
        for layer, twin in zip(self.maps, fitted, strict=True):
            shapes, found = (
                [tuple(v.shape) for v in each.weights] for each in (layer, twin)
            )
            if layer.built and shapes != found:
                raise ValueError(
                    f"{type(layer).__name__} was built for other logits: its "
                    f"weights have the shapes {shapes}. Received: {found}. "
                    "Adapt a new layer."
                )
        self.build(rows.logits.shape)
        for layer, twin in zip(self.maps, fitted, strict=True):
            layer.set_weights(twin.get_weights())
        self.record = {
            "num_samples": rows.num_samples,
            "maps": {twin.name: twin.record for twin in fitted},
            "mixture_weights": {
                layer.name: weight
                for layer, weight in zip(
                    self.maps, self._weights_of_maps, strict=True
                )
            },
        }
        return self

    def get_config(self) -> dict:
        maps = map(keras.saving.serialize_keras_object, self.maps)
        return {
            **super().get_config(),
            # The mixture builds its maps.
            "maps": [{**m, "build_config": None} for m in maps],
            "weights": self._weights_of_maps,
        }

    @classmethod
    def from_config(cls, config: dict) -> "CalibrationMixture":
        config = dict(config)
        deserialize = keras.saving.deserialize_keras_object
        if isinstance(config["maps"], list | tuple):
            config["maps"] = [deserialize(layer) for layer in config["maps"]]
        return cls(**config)
