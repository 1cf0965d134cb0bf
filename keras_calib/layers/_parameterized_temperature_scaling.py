"""Parameterized temperature scaling: every sample gets its own temperature."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs import arrays
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.large import by_rows
from keras_calib.inputs.tensors import maximum
from keras_calib.layers._dense_stack import DenseStack
from keras_calib.layers._dense_stack import check_training
from keras_calib.layers._dense_stack import network_weights
from keras_calib.layers._dense_stack import standardized
from keras_calib.layers._logit_ops import keep_prediction
from keras_calib.layers._logit_ops import log1pexp
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.solvers.blocks import normalized_weights
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.dense_network import DenseNetwork
from keras_calib.solvers.dense_network import inverse_softplus
from keras_calib.solvers.dense_network import softplus
from keras_calib.solvers.lbfgs import lbfgs
from keras_calib.solvers.loss_curves import LossCurves

# No temperature is smaller.
LEAST = 1e-3
# With more calibration samples, every second, third, ... trains the network.
MOST_SAMPLES = 200_000


@keras.saving.register_keras_serializable(package="keras_calib")
class ParameterizedTemperatureScaling(DenseStack):
    """Divide logits by a temperature that a small network computes (PTS).

        z' = z / T,  T = softplus(network(largest scores)) + 0.001

    Predicted classes do not change. `adapt` starts from the best common
    temperature and never increases the objective; it is deterministic, and the
    same on every backend.

    Args:
        num_scores: int, number of scores, the inputs of the network.
        hidden: ints, widths of the hidden layers.
        normalize_logits: `"log_softmax"`, the scores are log-probabilities, so
            that a constant added to logits changes nothing; or `None`, the
            scores are the logits, as in the paper.
        penalty: float >= 0, draws the fit toward one temperature, as a normal
            prior of variance `1 / penalty` on the kernels does.
        iterations: int, the maximum number of L-BFGS steps.
        seed: int, for the start of the hidden layers.
        shrinkage: `"auto"` for a mixture with temperature scaling, which few
            samples leave near temperature scaling; `None` for the map alone,
            the paper's with `penalty=0`.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: `(..., num_classes)`, or `(..., 1)` before one sigmoid.

    Returns:
        Calibrated logits, of the shape of `logits`.

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
        stochastic gradients, no penalty.
    """

    preserves_accuracy = True
    objectives = ("nll", "label_smoothing", "focal", "loss")
    settings = (
        "num_scores",
        "hidden",
        "normalize_logits",
        "penalty",
        "iterations",
        "seed",
        "shrinkage",
    )
    _rounds = True
    _starts_tempered = True
    caution = 1.0

    def __init__(
        self,
        *,
        num_scores: int = 10,
        hidden: tuple[int, ...] = (5, 5),
        normalize_logits: str | None = "log_softmax",
        penalty: float = 10.0,
        iterations: int = 100,
        seed: int = 0,
        shrinkage: str | None = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(shrinkage=shrinkage, **kwargs)
        require_one_of(("log_softmax", None), normalize_logits=normalize_logits)
        require_integer(1, num_scores=num_scores)
        check_training(hidden, penalty, iterations, seed)
        self.num_scores = num_scores
        self.hidden = tuple(hidden)
        self.penalty = penalty
        self.iterations = iterations
        self.seed = seed
        self.normalize_logits = normalize_logits
        self.shift_invariant = normalize_logits is not None

    def _add_weights(self, num_classes):
        network = self._network(num_classes)
        self._add_network(network, inverse_softplus(1 - LEAST))

    def degrees_of_freedom(self, num_classes: int) -> int:
        return self._network(num_classes).size

    def _network(self, num_classes):
        size = min(self.num_scores, num_classes)
        return DenseNetwork((size, *self.hidden, 1))

    def _solve(self, logits, labels, weights, objective, tempered):
        if not objective.per_sample:
            raise ValueError(
                "Every sample gets its own temperature, and so needs its own "
                "loss. Received: a loss with a statistic of the whole batch."
            )
        temperature, known = tempered
        u = -np.log(temperature)
        network = self._network(logits.shape[1])
        x, statistics = standardized(self._largest(logits), weights)
        start = network.start(
            self.seed, inverse_softplus(max(temperature - LEAST, LEAST))
        )
        part = slice(None, None, 1 + len(labels) // MOST_SAMPLES)
        theta = self._train(
            network,
            LossCurves(logits[part], labels[part], objective, u),
            x[part],
            weights[part],
            start,
        )

        def temperatures(theta):
            return by_rows(
                lambda x: softplus(network.forward(theta, x)[0]) + LEAST, x
            )

        def value(theta):
            temperature = temperatures(theta)
            losses = [
                objective.losses(logits[rows] / temperature[rows], labels[rows])
                for rows in row_blocks(*logits.shape)
            ]
            return float(np.average(np.concatenate(losses), weights=weights))

        # The fit used interpolated losses, and perhaps a part of the samples.
        values = value(start), value(theta)
        if not values[1] < values[0]:
            theta = start
        quartiles = np.quantile(temperatures(theta), (0.25, 0.5, 0.75))
        record = {"temperature_quartiles": quartiles.tolist()}
        if objective.is_plain_nll:
            record["nll_before"] = known["nll_before"]
            record["nll_after"] = min(values)
        return {**statistics, **network_weights(network, theta)}, record

    def _train(self, network, curves, x, weights, start):
        """The weights of the network that minimize loss and penalty."""
        ridge = self.penalty / weights.sum() * network.is_kernel
        weights = normalized_weights(weights, len(x))

        def function(theta):
            out, inputs = network.forward(theta, x)
            temperature = softplus(out) + LEAST
            losses, slopes = curves.at(-np.log(temperature[:, 0]))
            slopes = (
                -(weights * slopes)[:, None] * arrays.sigmoid(out) / temperature
            )
            return (
                weights @ losses + ridge @ theta**2 / 2,
                network.backward(theta, inputs, slopes) + ridge * theta,
            )

        found = lbfgs(function, start, max_iterations=self.iterations)
        return found.parameters

    def _largest(self, logits):
        """The inputs of the network, `(n, num_scores)`, NumPy."""
        size = min(self.num_scores, logits.shape[1])

        def sorted_rows(z):
            z = np.asarray(z, "float64")
            if self.normalize_logits is not None:
                z = arrays.log_softmax(z, "float64")
            largest = np.partition(z, z.shape[1] - size, axis=1)[:, -size:]
            return -np.sort(-largest, axis=1)

        return by_rows(sorted_rows, logits)

    def check_inputs(self, inputs: Any) -> None:
        super().check_inputs(inputs)
        given = inputs.shape[-1]
        if not self.built or given is None:
            return
        self._require_scores(max(self._least, given), inputs.shape)

    def _require_scores(self, given, shape):
        size = self.mean.shape[0]
        if given < size:
            raise ValueError(
                f"{type(self).__name__} was fitted to the {size} largest "
                f"scores. Received: inputs of shape {tuple(shape)}. Fit "
                "another layer to these."
            )

    def temperatures(self, logits: ArrayLike) -> Tensor:
        """The temperature of every sample, without shrinkage.

        Args:
            logits: `(..., num_classes)`, at least two classes.

        Returns:
            `(..., 1)`, at least 0.001.

        Raises:
            ValueError: if there are fewer classes than scores of the network.
        """
        scores = ops.convert_to_tensor(logits, self.compute_dtype)
        self.check_inputs(scores)
        self._require_scores(scores.shape[-1], scores.shape)
        if self.normalize_logits is not None:
            scores = log_softmax(scores)
        largest, _ = ops.top_k(scores, self.mean.shape[0], sorted=True)
        return self._temperatures(largest, self, ops)

    def _temperatures(self, largest, w, xp):
        return log1pexp(self._network_output(largest, w, xp), xp) + LEAST

    def _transform(self, logits, w, xp):
        if xp is np:
            largest = self._largest(logits).astype("float32")
            temperature = self._temperatures(largest, w, xp)
        else:
            temperature = self.temperatures(logits)
        # The gradient in the temperature of a class that is ruled out is 0.
        logits = maximum(logits, LOWEST, xp)
        out = logits <= LOWEST
        scaled = xp.where(out, 0.0, logits) / temperature
        return keep_prediction(logits, xp.where(out, LOWEST, scaled), xp)
