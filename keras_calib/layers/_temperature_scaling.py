"""Temperature scaling: one number that divides every logit."""

import warnings

import keras
import numpy as np
from keras import ops

from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._objectives import NegativeLogLikelihood
from keras_calib.solvers.temperature import fit_temperature
from keras_calib.solvers.temperature_search import ends_at
from keras_calib.solvers.temperature_search import search_temperature

REASONS = {
    "all correct": (
        "every calibration sample is predicted correctly, so the likelihood "
        "grows without end as T goes to 0. Use harder or more calibration "
        "data."
    ),
    "chance": (
        "the predictions on the calibration data are no better than chance, "
        "so the likelihood grows without end as T goes to infinity. Check "
        "that labels and logits belong together."
    ),
    "limit": (
        "the best temperature lies outside [0.01, 100]. Check the scale of the "
        "logits."
    ),
    "constant": "the logits do not differ between classes, so T means nothing.",
}


@keras.saving.register_keras_serializable(package="keras_calib")
class TemperatureScaling(CalibrationLayer):
    """Divide logits by a temperature: calibrated confidence, same prediction.

    `adapt` finds the temperature with the smallest negative log-likelihood,
    exactly: the problem is convex in `1 / T`, and the solver is bracketed, so
    it cannot diverge. T stays in `[0.01, 100]`; a fit that stops at a bound
    warns and says why. Other objectives are searched, and warn at the end of
    the range, which for calibration errors is `[0.1, 10]`: with
    `"soft_binned_ece"` this is TS-SB-ECE, with `"ece"` TS-HB-ECE.

    Args:
        temperature: float > 0, where to start; 1 is the identity.
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

    def __init__(self, temperature=1.0, **kwargs):
        super().__init__(**kwargs)
        if not temperature > 0:
            raise ValueError(
                "`temperature` divides logits and must be positive. "
                f"Received: temperature={temperature}."
            )
        self._initial_temperature = temperature

    def build(self, input_shape):
        start = keras.initializers.Constant(np.log(self._initial_temperature))
        self.log_temperature = self.add_weight(
            (), start, name="log_temperature"
        )
        self.built = True

    @property
    def temperature(self):
        """The temperature as a float."""
        if not self.built:
            return float(self._initial_temperature)
        return float(np.exp(ops.convert_to_numpy(self.log_temperature)))

    def degrees_of_freedom(self, num_classes):
        return 1

    def as_affine(self, num_classes):
        return np.array(1 / self.temperature), np.zeros(num_classes)

    def fit(self, logits, labels, weight, objective):
        if isinstance(objective, NegativeLogLikelihood):
            return self._fit_likelihood(
                logits, labels, weight, objective.smoothing
            )
        temperature, value = search_temperature(
            logits, labels, weight, objective
        )
        end = ends_at(temperature, objective)
        if end is not None:
            warnings.warn(
                f"The temperature was set to {temperature:.4g}, and beyond "
                f"{end:g} nothing was tried: the objective "
                f"{objective.title!r} is smallest there. Check the scale of "
                "the logits, and that labels and logits belong together; "
                "predictions that are all right, or no better than chance, "
                "have no best temperature.",
                stacklevel=3,
            )
        record = {
            "temperature": temperature,
            "objective_value": value,
            "stop_reason": None if end is None else "limit",
        }
        return {"log_temperature": np.log(temperature)}, record

    def _fit_likelihood(self, logits, labels, weight, smoothing):
        found = fit_temperature(logits, labels, weight, smoothing)
        if found.stop_reason is not None:
            warnings.warn(
                f"The temperature was set to {found.temperature:.4g}: "
                f"{REASONS[found.stop_reason]}",
                stacklevel=4,
            )
        record = {
            "temperature": found.temperature,
            "nll_before": found.nll_before,
            "nll_after": found.nll_after,
            "stop_reason": found.stop_reason,
        }
        if smoothing:
            # What was minimised is not the NLL.
            record["objective_value"] = record.pop("nll_after")
            del record["nll_before"]
        return {"log_temperature": np.log(found.temperature)}, record

    def call(self, logits):
        return logits / ops.exp(self.log_temperature)

    def get_config(self):
        config = super().get_config()
        return {**config, "temperature": self._initial_temperature}
