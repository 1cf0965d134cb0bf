"""Class-based temperature scaling: one temperature per class."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.layers._affine import AffineCalibration
from keras_calib.layers._affine import check_regularization
from keras_calib.layers._objectives import Objective
from keras_calib.solvers.class_temperatures import search_class_temperatures


@keras.saving.register_keras_serializable(package="keras_calib")
class ClassTemperatureScaling(AffineCalibration):
    """Divide each class's logit by its own temperature (CTS).

    The likelihood is convex in the inverse temperatures, which stay in
    `[0.01, 100]`; a fit that stops at a bound warns. With `objective="ece"` it
    is the original, greedy search over `T_k = 0.1, ..., 10.0`.

    Args:
        regularization: `"auto"` for the average, by their evidence, of ridge
            fits around temperature scaling, which few samples leave near
            temperature scaling; `None` for the papers' map, the one
            optimum of the likelihood, where a class without calibration
            samples keeps the common temperature.
        normalize_logits: `None` for logits as they are, `"log_softmax"` or
            `"mean"` to subtract their log-sum-exp or mean first, so that
            `log p` gives the same result; `"auto"` is `"log_softmax"` with
            `regularization="auto"`, else `None`.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: `(..., num_classes)`, or `(..., 1)` before one sigmoid.

    Returns:
        Calibrated logits, of the shape of `logits`.

    Raises:
        ValueError: for another `regularization` or `normalize_logits`. In
            `adapt`: for invalid input; the layer is then unchanged.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> logits = np.array([[4.0, 0]] * 3 + [[0, 4.0]] * 4)
        >>> layer = kc.layers.ClassTemperatureScaling(regularization=None)
        >>> layer = layer.adapt(logits, labels=[0, 0, 1, 1, 1, 1, 0])
        >>> layer.temperatures.round(4)  # 4 / log 2, 4 / log 3
        array([5.7708, 3.641 ], dtype=float32)

    Reference:
        Frenkel and Goldberger, "Network Calibration by Class-based Temperature
        Scaling", EUSIPCO 2021; by the likelihood as in Jung et al., "Scaling of
        Class-wise Training Losses for Post-hoc Calibration", ICML 2023, eq. 15.
    """

    objectives = ("nll", "label_smoothing", "focal", "ece", "loss")
    _slopes_bounded = True
    _paths = ((True, False),)

    def __init__(
        self,
        *,
        regularization: str | None = "auto",
        normalize_logits: str | None = "auto",
        **kwargs: Any,
    ) -> None:
        check_regularization(regularization, ("auto",), numbers=False)
        super().__init__(
            regularization=regularization,
            normalize_logits=normalize_logits,
            **kwargs,
        )

    def _add_weights(self, num_classes):
        self._add("log_temperature", np.zeros(num_classes))

    def _transform(self, x, w, xp):
        return x / xp.exp(w.log_temperature)

    @property
    def temperatures(self) -> np.ndarray:
        """The temperatures as a NumPy array, `(num_classes,)`."""
        return np.exp(ops.convert_to_numpy(self.log_temperature))

    def degrees_of_freedom(self, num_classes: int) -> int:
        return max(2, num_classes)

    def _matrix_and_bias(self):
        scale = 1 / self.temperatures
        return scale, np.zeros_like(scale)

    def _free(self, present):
        return np.stack([present, np.zeros_like(present)])

    def solve(
        self,
        logits: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray,
        objective: Objective,
    ) -> tuple[dict, dict]:
        if not objective.of_confidence:
            return super().solve(logits, labels, weights, objective)
        temperatures, value = search_class_temperatures(
            self._inputs(logits), labels, weights, objective
        )
        record = {"objective_value": value}
        return {"log_temperature": np.log(temperatures)}, record

    def _weights(self, parameters):
        return {"log_temperature": -np.log(parameters[0])}
