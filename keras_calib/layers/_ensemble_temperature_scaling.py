"""Ensemble temperature scaling: a mixture of three softmaxes."""

import itertools

import keras
import numpy as np
from keras import ops

from keras_calib.inputs import arrays
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._logit_ops import keep_prediction
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._logit_ops import on_pairs
from keras_calib.layers._temperature_scaling import TemperatureScaling

# Below, the two softmaxes are lost in the uniform part, and so is the
# prediction.
LEAST_SOFTMAX = 1e-6
TINY = 1e-30


@keras.saving.register_keras_serializable(package="keras_calib")
class EnsembleTemperatureScaling(CalibrationLayer):
    """Mix the tempered, the plain and the uniform distribution (ETS).

        q = w1 softmax(z / T) + w2 softmax(z) + w3 / num_classes

    Predictions stay. `adapt` finds the temperature first, and then the exact
    weights: with T fixed, the negative log-likelihood is convex in them. Two
    numbers more than a temperature, they help where labels are noisy: then no
    temperature gives hopeless samples their share of the uniform part.

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
        There, squared error is minimised by default; here, NLL. The variant
        of Jung et al. (ICML 2023), a weighted sum of logits, is temperature
        scaling under another name, and is not offered.
    """

    preserves_accuracy = True
    shift_invariant = True
    objectives = ("nll", "label_smoothing", "focal")

    def build(self, input_shape):
        self.log_temperature = self.add_weight(
            (), "zeros", name="log_temperature"
        )
        first = np.array([1.0, 0.0, 0.0])
        self.mixture = self.add_weight(
            (3,), lambda shape, dtype: ops.cast(first, dtype), name="mixture"
        )
        self.built = True

    @property
    def temperature(self):
        """The temperature of the first part, a float."""
        if not self.built:
            return 1.0
        return float(np.exp(ops.convert_to_numpy(self.log_temperature)))

    @property
    def weights_of_mixture(self):
        """The weights of the tempered, plain and uniform parts, NumPy."""
        if not self.built:
            return np.array([1.0, 0.0, 0.0])
        return np.asarray(ops.convert_to_numpy(self.mixture))

    def degrees_of_freedom(self, num_classes):
        return 3

    def fit(self, logits, labels, weight, objective):
        tempered, record = TemperatureScaling().fit(
            logits, labels, weight, objective
        )
        temperature = np.exp(float(tempered["log_temperature"]))
        parts, share = _parts(logits, labels, weight, objective, temperature)
        mixture = fit_mixture(parts, share, getattr(objective, "gamma", 0.0))
        softmaxes = mixture[:2].sum()
        if softmaxes < LEAST_SOFTMAX:
            mixture[0] += LEAST_SOFTMAX - softmaxes
            mixture[2] = 1 - LEAST_SOFTMAX
        record = {
            **record,
            "temperature": float(temperature),
            "mixture": mixture.tolist(),
        }
        if objective.is_plain_nll:
            record["nll_after"] = -float(share @ np.log(parts @ mixture))
        weights = {"log_temperature": np.log(temperature), "mixture": mixture}
        return weights, record

    def call(self, logits):
        return on_pairs(self._mix, logits)

    def _mix(self, logits):
        log_w = ops.log(ops.maximum(self.mixture, TINY))
        tempered = logits / ops.exp(self.log_temperature)
        uniform = log_w[2] - np.log(logits.shape[-1])
        mixed = ops.logaddexp(
            log_w[0] + log_softmax(tempered), log_w[1] + log_softmax(logits)
        )
        # Without a uniform part, no class gets a share that is not its own.
        mixed = ops.where(
            self.mixture[2] > 0, ops.logaddexp(mixed, uniform), mixed
        )
        return keep_prediction(logits, mixed)


def _parts(logits, labels, weight, objective, temperature):
    """What each part gives the label: `(rows, 3)`, and the rows' shares.

    Smoothed labels put a row for every class of a sample.
    """
    n, num_classes = logits.shape
    share = np.ones(n) if weight is None else np.asarray(weight, "float64")
    share = share / share.sum()
    smoothing = getattr(objective, "smoothing", 0.0)
    size = n * num_classes if smoothing else n
    parts = np.full((size, 3), 1 / num_classes)
    rows = max(1, (1 << 18) // num_classes)
    for start in range(0, n, rows):
        z, y = logits[start : start + rows], labels[start : start + rows]
        for column, scale in enumerate((1 / temperature, 1.0)):
            p = np.exp(arrays.log_softmax(np.asarray(z, "float64") * scale))
            if smoothing:
                part = slice(start * num_classes, None)
                parts[part][: p.size, column] = p.reshape(-1)
            else:
                chosen = p[np.arange(len(y)), y]
                parts[start : start + len(y), column] = chosen
    if smoothing:
        targets = np.full((n, num_classes), smoothing / num_classes)
        targets[np.arange(n), labels] += 1 - smoothing
        share = (share[:, None] * targets).reshape(-1)
    return parts, share


def fit_mixture(parts, share, gamma=0.0, iterations=100):
    """Minimise `sum_i share_i phi(parts_i @ w)` over the simplex of `w`.

    `phi(q) = -(1 - q)^gamma log q`: the likelihood, or the focal loss. Each
    step minimises the quadratic model on the simplex, exactly, and is halved
    until the value falls. With gamma 0 the problem is convex and the steps
    are Newton's.

    Args:
        parts: probabilities, `(n, 3)`.
        share: weights that sum to 1, `(n,)`.
        gamma: float >= 0.
        iterations: int, the largest number of steps.

    Returns:
        Weights >= 0 that sum to 1, `(3,)`.
    """
    parts = np.maximum(parts, 1e-300)

    def value(w):
        q = np.minimum(parts @ w, 1.0)
        return -float(share @ ((1 - q) ** gamma * np.log(q)))

    corners = np.vstack([np.eye(3), np.full(3, 1 / 3)])
    w = min(corners, key=value)
    best = value(w)
    # A corner has an infinite slope where its part gives a label nothing.
    inside = 0.999 * w + 0.001 / 3
    if np.isfinite(value(inside)):
        w, best = inside, value(inside)
    for _ in range(iterations):
        first, second = _slopes(np.minimum(parts @ w, 1.0), gamma)
        gradient = parts.T @ (share * first)
        curvature = (parts * (share * second)[:, None]).T @ parts
        target = minimize_on_simplex(curvature, curvature @ w - gradient)
        step = target - w
        decrease = -float(gradient @ step)
        if decrease < 1e-15:
            break
        length = 1.0
        while value(w + length * step) > best - 1e-4 * length * decrease:
            length /= 2
            if length < 1e-10:
                break
        else:
            w = w + length * step
            best = value(w)
            continue
        break
    start = np.array([1.0, 0.0, 0.0])
    w = np.maximum(w, 0.0)
    w /= w.sum()
    return start if value(start) <= value(w) else w


def _slopes(q, gamma):
    """First derivative of `phi`, and a second one that is never negative."""
    if not gamma:
        return -1 / q, 1 / q**2
    rest = np.maximum(1 - q, 1e-12)
    log_q = np.log(q)
    first = gamma * rest ** (gamma - 1) * log_q - rest**gamma / q
    second = (
        rest**gamma / q**2
        + 2 * gamma * rest ** (gamma - 1) / q
        - gamma * (gamma - 1) * rest ** (gamma - 2) * log_q
    )
    return first, np.maximum(second, 1e-12)


def minimize_on_simplex(matrix, vector):
    """The `w` on the simplex that minimises `w' matrix w / 2 - vector' w`.

    Tries every set of weights that could be positive.
    """
    size = len(vector)
    best, lowest = None, np.inf
    for count in range(1, size + 1):
        for chosen in itertools.combinations(range(size), count):
            chosen = list(chosen)
            system = np.zeros((count + 1, count + 1))
            system[:-1, :-1] = matrix[np.ix_(chosen, chosen)]
            system[-1, :-1] = system[:-1, -1] = 1.0
            right = np.append(vector[chosen], 1.0)
            solution = np.linalg.lstsq(system, right, rcond=1e-14)[0]
            w = np.zeros(size)
            w[chosen] = solution[:-1]
            if w.min() < -1e-12 or abs(w.sum() - 1) > 1e-6:
                continue
            w = np.maximum(w, 0.0)
            w /= w.sum()
            value = w @ matrix @ w / 2 - vector @ w
            if value < lowest:
                best, lowest = w, value
    return best
