"""Ensemble temperature scaling: a mixture of three softmaxes."""

import keras
import numpy as np
from keras import ops

from keras_calib.inputs import arrays
from keras_calib.inputs.arrays import TINY
from keras_calib.inputs.large import selected_rows
from keras_calib.inputs.tensors import maximum
from keras_calib.layers._logit_ops import keep_prediction
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._logit_ops import logaddexp
from keras_calib.layers._objectives import NegativeLogLikelihoodObjective
from keras_calib.layers._tempered import TemperedCalibration
from keras_calib.solvers.blocks import normalized_weights
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.mixture import fit_mixture

# With a smaller weight, the softmaxes vanish next to the uniform part in
# float32, and so does the prediction.
LEAST_SOFTMAX = 1e-6


@keras.saving.register_keras_serializable(package="keras_calib")
class EnsembleTemperatureScaling(TemperedCalibration):
    """Mix the tempered, the plain and the uniform distribution (ETS).

        q = w1 softmax(z / T) + w2 softmax(z) + w3 / num_classes

    Predicted classes do not change. `adapt` finds the temperature first, and
    then the weights: with `T` fixed, the negative log-likelihood is convex in
    them. The two extra parameters help with noisy labels: a temperature alone
    cannot give enough probability to labels that the network considers very
    unlikely. There is no `shrinkage`: three parameters hardly learn noise.

    Args:
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: `(..., num_classes)`, or `(..., 1)` before one sigmoid.

    Returns:
        Calibrated logits, of the shape of `logits`.

    Raises:
        ValueError: in `adapt`, for invalid input; the layer is then unchanged.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
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

    def _solve(self, logits, labels, weights, objective, tempered):
        temperature, record = tempered[0], dict(tempered[1])
        parts, weights = _log_parts(
            logits, labels, weights, objective, temperature
        )
        parts = np.exp(parts)
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

    def _log_q_with(self, found, logits, labels, rows, formula=None):
        # The labels alone: all classes would take three times as long.
        self._check_finite(found)
        temperature = np.exp(found["log_temperature"])
        log_p, _ = _log_parts(
            selected_rows(logits, rows),
            labels[rows],
            None,
            NegativeLogLikelihoodObjective(),
            temperature,
        )
        w1, w2, w3 = found["mixture"]
        mixed = np.logaddexp(
            log_p[:, 0] + np.log(max(w1, TINY)),
            log_p[:, 1] + np.log(max(w2, TINY)),
        )
        return np.logaddexp(mixed, log_p[:, 2] + np.log(w3)) if w3 else mixed

    def _map(self, logits, w, xp):
        log_w = xp.log(maximum(w.mixture, TINY, xp))
        tempered = logits / xp.exp(w.log_temperature)
        uniform = log_w[2] - np.log(logits.shape[-1])
        mixed = logaddexp(
            log_w[0] + log_softmax(tempered, xp),
            log_w[1] + log_softmax(logits, xp),
            xp,
        )
        # With weight 0, not even the floor of its logarithm is added.
        three = logaddexp(mixed, uniform, xp)
        mixed = xp.where(w.mixture[2] > 0, three, mixed)
        return keep_prediction(logits, mixed, xp)


def _log_parts(logits, labels, weights, objective, temperature):
    """Log-probabilities of labels in each part, `(rows, 3)`, and row weights.

    With smoothed labels, every class of a sample has a row.
    """
    n, num_classes = logits.shape
    weights = normalized_weights(weights, n)
    smoothing = objective.smoothing
    size = num_classes if smoothing else 1
    parts = np.full((n, size, 3), -np.log(num_classes))
    for rows in row_blocks(n, num_classes):
        z, y = np.asarray(logits[rows], "float64"), labels[rows]
        for column, scale in enumerate((1 / temperature, 1.0)):
            if smoothing:
                parts[rows, :, column] = arrays.log_softmax(z * scale)
            else:
                log_p = arrays.log_softmax_of_labels(z * scale, y)
                parts[rows, 0, column] = log_p
    if smoothing:
        targets = np.full((n, num_classes), smoothing / num_classes)
        targets[np.arange(n), labels] += 1 - smoothing
        weights = (weights[:, None] * targets).reshape(-1)
    return parts.reshape(-1, 3), weights
