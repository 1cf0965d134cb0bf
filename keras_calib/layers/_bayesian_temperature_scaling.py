"""Temperature scaling, averaged over the posterior of the temperature."""

import keras
import numpy as np
from keras import ops

from keras_calib.inputs.arrays import TINY
from keras_calib.inputs.large import by_rows
from keras_calib.inputs.tensors import maximum
from keras_calib.layers._logit_ops import keep_prediction
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._logit_ops import logaddexp
from keras_calib.layers._tempered import TemperedCalibration
from keras_calib.solvers.temperature import ALL_CORRECT
from keras_calib.solvers.temperature_posterior import NODES
from keras_calib.solvers.temperature_posterior import effective_weights
from keras_calib.solvers.temperature_posterior import temperature_nodes
from keras_calib.solvers.temperature_posterior import uniform_weight

# Logits below this, minus infinity, rule a class out.
IMPOSSIBLE = -3e38


@keras.saving.register_keras_serializable(package="keras_calib")
class BayesianTemperatureScaling(TemperedCalibration):
    """Average temperature scaling over what few samples leave open.

        q = sum_m w_m softmax(z / T_m) + w_0 / num_classes,    sum w = 1

    The temperatures and their weights stand for the posterior of one
    temperature, with the prior `log T ~ N(0, 1)`. The weight of the uniform
    part is its posterior mean after that; half of its prior is on 0, half is
    Beta(1, 49). Predicted classes do not change.

    With few samples, temperature scaling can make wrong predictions nearly
    certain: a temperature that is a little too low is almost as likely as the
    right one. The average gives other classes more probability. With many
    samples it becomes temperature scaling, but for labels that are unlikely at
    every temperature, which keep the uniform part. Classes with a logit of
    minus infinity have no part of it.

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
        >>> layer = kc.layers.BayesianTemperatureScaling()
        >>> layer = layer.adapt(logits, labels)
        >>> q = keras.ops.softmax(layer(logits))  # 7 of 8 right
        >>> round(float(q[0, 0]), 2)
        0.87

    Reference:
        This library's own: `SHRINKING.md` beside it. An average over a
        posterior in place of one best guess: MacKay, "Information Theory,
        Inference, and Learning Algorithms", 2003, chapter 41.
    """

    preserves_accuracy = True
    averages = True
    shift_invariant = True

    def build(self, input_shape: tuple) -> None:
        start = np.eye(NODES)[0]
        self._add("log_temperatures", np.zeros(NODES), trainable=False)
        self._add("shares", start, trainable=False)
        self._add("uniform", 0.0, trainable=False)
        self.built = True

    @property
    def temperatures(self) -> np.ndarray:
        """The temperatures of the average, NumPy."""
        if not self.built:
            return np.ones(NODES)
        return np.exp(ops.convert_to_numpy(self.log_temperatures))

    @property
    def weights_of_mixture(self) -> np.ndarray:
        """The weights of the temperatures and of the uniform part, NumPy."""
        if not self.built:
            return np.eye(NODES + 1)[0]
        shares = ops.convert_to_numpy(self.shares)
        return np.append(shares, ops.convert_to_numpy(self.uniform))

    def degrees_of_freedom(self, num_classes: int) -> int:
        return 2

    def _solve(self, logits, labels, weights, objective, tempered):
        effective, dispersion = effective_weights(
            logits, labels, weights, tempered[0], group=self._groups
        )
        if tempered[1]["stop_reason"] == ALL_CORRECT:
            # The posterior would be of temperatures that only sharpen.
            log_temperatures = np.full(NODES, np.log(tempered[0]))
            shares, width = np.eye(NODES)[0], 0.0
        else:
            log_temperatures, shares, width = temperature_nodes(
                logits, labels, effective
            )
        found = {"log_temperatures": log_temperatures, "uniform": 0.0}
        found["shares"] = shares
        rows = np.arange(len(labels))
        log_q = self._log_q_with(found, logits, labels, rows)
        num_classes = by_rows(lambda z: (z > IMPOSSIBLE).sum(axis=1), logits)
        c = uniform_weight(log_q, num_classes, effective)
        found |= {"uniform": c, "shares": (1 - c) * shares}
        log_q = self._log_q_with(found, logits, labels, rows)
        return found, {
            **tempered[1],
            "log_temperature_width": width,
            "uniform_weight": c,
            "dispersion": dispersion,
            "nll_after": -float(np.average(log_q, weights=weights)),
        }

    def _map(self, logits, w, xp):
        log_shares = xp.log(maximum(w.shares, TINY, xp))
        scales = xp.exp(-w.log_temperatures)
        mixed = None
        for m in range(NODES):
            part = log_softmax(logits * scales[m], xp) + log_shares[m]
            mixed = part if mixed is None else logaddexp(mixed, part, xp)
        # The uniform part is over the classes that are not ruled out.
        possible = xp.where(
            logits > IMPOSSIBLE, xp.ones_like(logits), xp.zeros_like(logits)
        )
        num_classes = xp.sum(possible, axis=-1, keepdims=True)
        log_uniform = xp.log(maximum(w.uniform, TINY, xp)) - xp.log(num_classes)
        # With weight 0, not even the floor of its logarithm is added.
        added = possible * w.uniform > 0
        mixed = xp.where(added, logaddexp(mixed, log_uniform, xp), mixed)
        return keep_prediction(logits, mixed, xp)
