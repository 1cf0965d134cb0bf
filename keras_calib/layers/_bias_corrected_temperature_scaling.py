"""Bias-corrected temperature scaling: one temperature, a bias per class."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.layers._affine import AffineCalibration
from keras_calib.layers._affine import check_regularization


@keras.saving.register_keras_serializable(package="keras_calib")
class BiasCorrectedTemperatureScaling(AffineCalibration):
    """Divide logits by a temperature, then shift classes: `z / T + b` (BCTS).

    The biases correct how often a class is predicted, which also serves under
    a shift of the class frequencies. The likelihood is convex in `1 / T` and
    the biases. `T` stays in `[0.01, 100]`; a fit that stops at a bound warns.

    Args:
        regularization: `"auto"` for the average, by their evidence, of ridge
            fits around temperature scaling, which few samples leave near
            temperature scaling; `None` for the paper's map, the one
            optimum of the likelihood, where a class without calibration
            samples gets no bias.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: `(..., num_classes)`, or `(..., 1)` before one sigmoid.

    Returns:
        Calibrated logits, of the shape of `logits`.

    Raises:
        ValueError: for another `regularization`. In `adapt`: for
            invalid input; the layer is then unchanged.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> logits = np.array([[4.0, 0]] * 3 + [[0, 4.0]] * 3)
        >>> layer = kc.layers.BiasCorrectedTemperatureScaling(
        ...     regularization=None
        ... )
        >>> layer = layer.adapt(logits, labels=[0, 0, 1, 1, 1, 0])
        >>> round(layer.temperature, 4)  # 4 / log 2: two of three right
        5.7708

    Reference:
        Alexandari et al., "Maximum Likelihood with Bias-Corrected Calibration
        is Hard-To-Beat at Label Shift Adaptation", ICML 2020.
    """

    settings = ("regularization",)
    _options = {"shared": True}
    _slopes_bounded = True
    _paths = ((False, True),)

    def __init__(
        self, *, regularization: str | None = "auto", **kwargs: Any
    ) -> None:
        check_regularization(regularization, ("auto",), numbers=False)
        super().__init__(
            regularization=regularization, normalize_logits=None, **kwargs
        )
        self.shift_invariant = True

    def _add_weights(self, num_classes):
        self._add("log_temperature", 0.0)
        self._add("bias", np.zeros(num_classes))

    def _transform(self, x, w, xp):
        return x / xp.exp(w.log_temperature) + w.bias

    @property
    def temperature(self) -> float:
        """The temperature as a float."""
        return float(np.exp(ops.convert_to_numpy(self.log_temperature)))

    def degrees_of_freedom(self, num_classes: int) -> int:
        return 1 + max(2, num_classes)

    def _matrix_and_bias(self):
        return 1 / self.temperature, self.bias

    def _free(self, present):
        return np.stack([np.ones_like(present), present])

    def _weights(self, parameters):
        return {
            "log_temperature": -np.log(parameters[0, 0]),
            "bias": parameters[1],
        }

    def _findings(self, parameters):
        return {"temperature": float(1 / parameters[0, 0])}
