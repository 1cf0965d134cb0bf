"""Parameterised temperature scaling: every sample gets its own temperature."""

import keras
import numpy as np
from keras import ops

from keras_calib.inputs import arrays
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._logit_ops import keep_prediction
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._logit_ops import on_pairs
from keras_calib.layers._temperature_scaling import TemperatureScaling
from keras_calib.solvers.loss_curves import LossCurves
from keras_calib.solvers.quasi_newton import minimize
from keras_calib.solvers.small_network import SmallNetwork
from keras_calib.solvers.small_network import inverse_softplus
from keras_calib.solvers.small_network import mean_and_deviation
from keras_calib.solvers.small_network import softplus

# No temperature is smaller.
LEAST = 1e-3
# Scores that the network sees are cut here.
LIMIT = 100.0
# Of more calibration samples, every second, third, ... trains the network.
MOST_SAMPLES = 200_000
# Elements of one block of scores.
BLOCK = 1 << 18


@keras.saving.register_keras_serializable(package="keras_calib")
class ParameterizedTemperatureScaling(CalibrationLayer):
    """A small network looks at the largest scores and sets the temperature.

    `T = softplus(network(sorted scores)) + 0.001`, and logits are divided by
    it: predictions stay. `adapt` starts from the one best temperature, so that
    the objective can only get better; it is deterministic, and the same on
    every backend.

    Args:
        num_scores: int, how many of the largest scores the network sees.
        hidden: ints, widths of the hidden layers.
        normalize_logits: `"log_softmax"`, the network sees log-probabilities,
            so that a constant added to logits changes nothing; or `None`, it
            sees the logits as they are, as in the paper.
        penalty: float >= 0, pulls towards one temperature for all: as a
            normal prior of variance `1 / penalty` on the kernels does.
        iterations: int, the largest number of L-BFGS steps.
        seed: int, for the start of the hidden layers.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Raises:
        ValueError: for another `normalize_logits`.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(500, 3)) * 3
        >>> labels = (logits / 2 + rng.gumbel(size=(500, 3))).argmax(1)
        >>> layer = kc.layers.ParameterizedTemperatureScaling()
        >>> layer = layer.adapt(logits, labels)
        >>> layer.record["nll_after"] < layer.record["nll_before"]
        True

    Reference:
        Tomani, Cremers and Buettner, "Parameterized Temperature Scaling for
        Boosting the Expressive Power in Post-Hoc Uncertainty Calibration",
        ECCV 2022. There: absolute value instead of softplus, squared error,
        stochastic gradients.
    """

    preserves_accuracy = True
    objectives = ("nll", "label_smoothing", "focal", "loss")
    _rounds = True

    def __init__(
        self,
        num_scores=10,
        hidden=(5, 5),
        normalize_logits="log_softmax",
        penalty=10.0,
        iterations=100,
        seed=0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if normalize_logits not in ("log_softmax", None):
            raise ValueError(
                '`normalize_logits` must be "log_softmax" or None. '
                f"Received: normalize_logits={normalize_logits!r}."
            )
        self.num_scores = num_scores
        self.hidden = tuple(hidden)
        self.normalize_logits = normalize_logits
        self.penalty = penalty
        self.iterations = iterations
        self.seed = seed
        self.shift_invariant = normalize_logits is not None

    def build(self, input_shape):
        shapes = self._network(max(2, input_shape[-1])).shapes
        size = shapes[0][0]
        self.mean = self.add_weight(
            (size,), "zeros", trainable=False, name="mean"
        )
        self.deviation = self.add_weight(
            (size,), "ones", trainable=False, name="deviation"
        )
        start = inverse_softplus(1 - LEAST)
        for number, (a, b) in enumerate(shapes):
            last = number == len(shapes) - 1
            kernel = self.add_weight(
                (a, b),
                "zeros" if last else keras.initializers.GlorotUniform(number),
                name=f"kernel_{number}",
            )
            bias = self.add_weight(
                (b,),
                keras.initializers.Constant(start) if last else "zeros",
                name=f"bias_{number}",
            )
            setattr(self, f"kernel_{number}", kernel)
            setattr(self, f"bias_{number}", bias)
        self.built = True

    def degrees_of_freedom(self, num_classes):
        return self._network(num_classes).size

    def _network(self, num_classes):
        return SmallNetwork(
            (min(self.num_scores, num_classes), *self.hidden, 1)
        )

    def fit(self, logits, labels, weight, objective):
        if not objective.per_sample:
            raise ValueError(
                "Every sample gets its own temperature, and so needs its own "
                "loss. Received: a loss with a statistic of the whole batch."
            )
        tempered, known = TemperatureScaling().fit(
            logits, labels, weight, objective
        )
        u = -float(tempered["log_temperature"])
        network = self._network(logits.shape[1])
        x = self._largest(logits)
        mean, deviation = mean_and_deviation(x, weight)
        x = (x - mean) / deviation
        start = network.start(
            self.seed, inverse_softplus(max(np.exp(-u) - LEAST, LEAST))
        )
        step = 1 + len(labels) // MOST_SAMPLES
        every = np.ones(len(labels)) if weight is None else weight
        theta = self._train(
            network,
            LossCurves(logits[::step], labels[::step], objective, u),
            x[::step],
            every[::step],
            start,
        )

        def value(theta):
            temperature = softplus(network.forward(theta, x)[0]) + LEAST
            rows = max(1, BLOCK // logits.shape[1])
            losses = [
                objective.losses(
                    logits[i : i + rows] / temperature[i : i + rows],
                    labels[i : i + rows],
                )
                for i in range(0, len(labels), rows)
            ]
            return float(np.average(np.concatenate(losses), weights=weight))

        # The table is not exact, and a part of the samples not all of them.
        values = value(start), value(theta)
        if not values[1] < values[0]:
            theta = start
        temperature = softplus(network.forward(theta, x)[0]) + LEAST
        quartiles = np.quantile(temperature, (0.25, 0.5, 0.75))
        record = {"temperature_quartiles": quartiles.tolist()}
        if objective.is_plain_nll:
            record["nll_before"] = known["nll_before"]
            record["nll_after"] = min(values)
        weights = {"mean": mean, "deviation": deviation}
        for number, (kernel, bias) in enumerate(network.unpack(theta)):
            weights[f"kernel_{number}"] = kernel
            weights[f"bias_{number}"] = bias
        return weights, record

    def _train(self, network, curves, x, weight, start):
        """The weights of the network that minimise loss and penalty."""
        pull = self.penalty / weight.sum() * network.is_kernel
        share = weight / weight.sum()

        def function(theta):
            out, inputs = network.forward(theta, x)
            temperature = softplus(out) + LEAST
            losses, slopes = curves.at(-np.log(temperature[:, 0]))
            slopes = (
                -(share * slopes)[:, None] * arrays.sigmoid(out) / temperature
            )
            return (
                share @ losses + pull @ theta**2 / 2,
                network.backward(theta, inputs, slopes) + pull * theta,
            )

        return minimize(function, start, self.iterations)[0]

    def _largest(self, logits):
        """What the network sees, `(n, num_scores)`, NumPy."""
        size = min(self.num_scores, logits.shape[1])
        z = np.asarray(logits, "float64")
        if self.normalize_logits is not None:
            z = arrays.log_softmax(z, "float64")
        largest = np.partition(z, z.shape[1] - size, axis=1)[:, -size:]
        return np.clip(-np.sort(-largest, axis=1), -LIMIT, LIMIT)

    def temperatures(self, logits):
        """The temperature of every sample.

        Args:
            logits: `(..., num_classes)`, at least two classes.

        Returns:
            `(..., 1)`, at least 0.001.
        """
        logits = ops.convert_to_tensor(logits, self.compute_dtype)
        scores = (
            log_softmax(logits) if self.normalize_logits is not None else logits
        )
        x, _ = ops.top_k(scores, self.mean.shape[0], sorted=True)
        x = (ops.clip(x, -LIMIT, LIMIT) - self.mean) / self.deviation
        count = len(self.hidden) + 1
        for number in range(count):
            x = ops.matmul(x, getattr(self, f"kernel_{number}"))
            x = x + getattr(self, f"bias_{number}")
            if number < count - 1:
                x = ops.relu(x)
        return ops.softplus(x) + LEAST

    def call(self, logits):
        return on_pairs(self._divide, logits)

    def _divide(self, logits):
        temperature = self.temperatures(logits)
        return keep_prediction(logits, logits / temperature)

    def get_config(self):
        config = {
            "num_scores": self.num_scores,
            "hidden": list(self.hidden),
            "normalize_logits": self.normalize_logits,
            "penalty": self.penalty,
            "iterations": self.iterations,
            "seed": self.seed,
        }
        return {**super().get_config(), **config}
