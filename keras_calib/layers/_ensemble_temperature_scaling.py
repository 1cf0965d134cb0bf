"""Ensemble temperature scaling: a mixture of three softmaxes."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs import arrays
from keras_calib.inputs.arrays import TINY
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._logit_ops import keep_prediction
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._logit_ops import on_pairs
from keras_calib.layers._temperature_scaling import solve_temperature
from keras_calib.solvers.blocks import normalized_weights
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.mixture import fit_mixture

# With a smaller weight, the softmaxes vanish next to the uniform part in
# float32, and so does the prediction.
LEAST_SOFTMAX = 1e-6


@keras.saving.register_keras_serializable(package="keras_calib")
class EnsembleTemperatureScaling(CalibrationLayer):
    """Mix the tempered, the plain and the uniform distribution (ETS).

        q = w1 softmax(z / T) + w2 softmax(z) + w3 / num_classes

    Predicted classes do not change. `adapt` finds the temperature first, and
    then the weights: with `T` fixed, the negative log-likelihood is convex in
    them. The two extra parameters help with noisy labels: a temperature alone
    cannot give enough probability to labels that the network considers very
    unlikely.

    Args:
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> logits = 6 * np.eye(3)[[0, 1, 2, 0, 1, 2, 0, 1]]
        >>> labels = [0, 1, 2, 0, 1, 2, 0, 0]
        >>> layer = kc.layers.EnsembleTemperatureScaling()
        >>> layer = layer.adapt(logits, labels)
        >>> q = keras.ops.softmax(layer(logits))  # 7 of 8 right
        >>> round(float(q[0, 0]), 4)
        0.875

    Reference:
        Zhang et al., "Mix-n-Match: Ensemble and Compositional Methods for
        Uncertainty Calibration in Deep Learning", ICML 2020, Section 4.1.
        Their default minimizes squared error; here it is NLL. The variant
        of Jung et al. (ICML 2023), a weighted sum of logits, is equivalent to
        temperature scaling.
    """

    preserves_accuracy = True
    shift_invariant = True
    objectives = ("nll", "label_smoothing", "focal")

    def build(self, input_shape: tuple) -> None:
        self._add("log_temperature", 0.0)
        self._add("mixture", [1.0, 0.0, 0.0])
        self.built = True

    @property
    def temperature(self) -> float:
        """The temperature of the first part, a float."""
        if not self.built:
            return 1.0
        return float(np.exp(ops.convert_to_numpy(self.log_temperature)))

    @property
    def weights_of_mixture(self) -> np.ndarray:
        """The weights of the tempered, plain and uniform parts, NumPy."""
        if not self.built:
            return np.array([1.0, 0.0, 0.0])
        return np.asarray(ops.convert_to_numpy(self.mixture))

    def degrees_of_freedom(self, num_classes: int) -> int:
        return 3

    def solve(
        self, logits: Tensor, labels: Tensor, weights: Tensor, objective: Any
    ) -> tuple[dict, dict]:
        temperature, record = solve_temperature(
            logits, labels, weights, objective
        )
        parts, weights = _parts(logits, labels, weights, objective, temperature)
        mixture = fit_mixture(parts, weights, getattr(objective, "gamma", 0.0))
        softmaxes = mixture[:2].sum()
        if softmaxes < LEAST_SOFTMAX:
            mixture[0] += LEAST_SOFTMAX - softmaxes
            mixture[2] = 1 - LEAST_SOFTMAX
        record["mixture"] = mixture.tolist()
        if objective.is_plain_nll:
            record["nll_after"] = -float(weights @ np.log(parts @ mixture))
        found = {"log_temperature": np.log(temperature), "mixture": mixture}
        return found, record

    def call(self, logits: Tensor) -> Tensor:
        return on_pairs(self._mix, logits)

    def _mix(self, logits):
        log_w = ops.log(ops.maximum(self.mixture, TINY))
        tempered = logits / ops.exp(self.log_temperature)
        uniform = log_w[2] - np.log(logits.shape[-1])
        mixed = ops.logaddexp(
            log_w[0] + log_softmax(tempered), log_w[1] + log_softmax(logits)
        )
        # With weight 0, not even the floor of its logarithm is added.
        mixed = ops.where(
            self.mixture[2] > 0, ops.logaddexp(mixed, uniform), mixed
        )
        return keep_prediction(logits, mixed)


def _parts(logits, labels, weights, objective, temperature):
    """Probabilities of the labels in each part, `(rows, 3)`, and row weights.

    With smoothed labels, every class of a sample has a row.
    """
    n, num_classes = logits.shape
    weights = normalized_weights(weights, n)
    smoothing = objective.smoothing
    parts = np.full((n, num_classes if smoothing else 1, 3), 1 / num_classes)
    for rows in row_blocks(n, num_classes):
        z, y = np.asarray(logits[rows], "float64"), labels[rows, None]
        for column, scale in enumerate((1 / temperature, 1.0)):
            p = np.exp(arrays.log_softmax(z * scale))
            if not smoothing:
                p = np.take_along_axis(p, y, axis=1)
            parts[rows, :, column] = p
    if smoothing:
        targets = np.full((n, num_classes), smoothing / num_classes)
        targets[np.arange(n), labels] += 1 - smoothing
        weights = (weights[:, None] * targets).reshape(-1)
    return parts.reshape(-1, 3), weights
