"""Temperature scaling: one number that divides every logit."""

import warnings
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.layers._base import CalibrationLayer
from keras_calib.solvers.temperature_search import best_temperature
from keras_calib.solvers.temperature_search import ends_at

REASONS = {
    "all correct": (
        "every calibration sample is predicted correctly, so the negative "
        "log-likelihood falls as T goes to 0, and the prior log T ~ N(0, 1) "
        "decides. Use harder or more calibration data."
    ),
    "chance": (
        "the predictions on the calibration data are no better than chance, "
        "so the negative log-likelihood falls as T goes to infinity. Check "
        "that labels and logits belong together."
    ),
    "limit": (
        "the best temperature lies outside [0.01, 100]. Check the scale of the "
        "logits."
    ),
    "constant": "the logits do not differ between classes, so T has no effect.",
}


@keras.saving.register_keras_serializable(package="keras_calib")
class TemperatureScaling(CalibrationLayer):
    """Divide logits by a temperature: `z' = z / T`.

    `adapt` minimizes the negative log-likelihood, a convex problem in `1 / T`:

        mean_i -log softmax(z_i / T)[y_i]

    `T` stays in `[0.01, 100]`; a fit that stops at a bound warns and gives the
    reason. If every sample is predicted correctly, this has no minimum; the
    prior log T ~ N(0, 1) then decides, with a warning.

    Other objectives are minimized by a search, which for calibration errors
    stays in `[0.1, 10]` and warns at the ends of the range: with
    `"soft_binned_ece"` this is TS-SB-ECE, with `"ece"` TS-HB-ECE. Predicted
    classes do not change.

    Args:
        temperature: float > 0, the temperature before `adapt`; 1 is the
            identity.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Raises:
        ValueError: if `temperature` is not positive.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> logits = np.array([[2.0, 0], [2.0, 0], [2.0, 0], [0, 2.0]])
        >>> layer = kc.layers.TemperatureScaling()
        >>> layer = layer.adapt(logits, labels=[0, 0, 1, 1])  # 3 of 4 right
        >>> round(layer.temperature, 4)  # 2 / log 3
        1.8205

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        Section 4.2, eq. 9. TS-SB-ECE and TS-HB-ECE: Karandikar et al., "Soft
        Calibration Objectives for Neural Networks", NeurIPS 2021.
    """

    preserves_accuracy = True
    shift_invariant = True
    objectives = (
        "nll",
        "label_smoothing",
        "focal",
        "soft_binned_ece",
        "ece",
        "loss",
    )

    def __init__(self, *, temperature: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not temperature > 0:
            raise ValueError(
                "`temperature` divides logits and must be positive. "
                f"Received: temperature={temperature}."
            )
        self._initial_temperature = temperature

    def build(self, input_shape: tuple) -> None:
        self._add("log_temperature", np.log(self._initial_temperature))
        self.built = True

    @property
    def temperature(self) -> float:
        """The temperature as a float."""
        if not self.built:
            return float(self._initial_temperature)
        return float(np.exp(ops.convert_to_numpy(self.log_temperature)))

    def degrees_of_freedom(self, num_classes: int) -> int:
        return 1

    def as_affine(self, num_classes: int) -> tuple:
        return np.array(1 / self.temperature), np.zeros(num_classes)

    def solve(
        self, logits: Tensor, labels: Tensor, weights: Tensor, objective: Any
    ) -> tuple[dict, dict]:
        temperature, record = solve_temperature(
            logits, labels, weights, objective
        )
        return {"log_temperature": np.log(temperature)}, record

    def call(self, logits: Tensor) -> Tensor:
        return logits / ops.exp(self.log_temperature)

    def get_config(self) -> dict:
        # The start; the fitted temperature is a weight.
        return {
            **super().get_config(),
            "temperature": self._initial_temperature,
        }


def solve_temperature(logits, labels, weights, objective):
    """`best_temperature`, with a warning where it stops at a bound."""
    temperature, record = best_temperature(logits, labels, weights, objective)
    reason = record["stop_reason"]
    if reason is not None:
        text = REASONS[reason]
        if not objective.is_cross_entropy:
            text = (
                f"the objective {objective.title!r} is smallest there, and "
                f"beyond {ends_at(temperature, objective):g} nothing was "
                "tried. Check the scale of the logits, and that labels and "
                "logits belong together; predictions that are all right, or "
                "no better than chance, have no best temperature."
            )
        warnings.warn(
            f"The temperature was set to {temperature:.4g}: {text}",
            stacklevel=5,
        )
    return temperature, record
