"""Vector scaling: every class has its own scale and bias."""

import keras
import numpy as np

from keras_calib.layers._affine import AffineCalibration
from keras_calib.solvers.regression import RIDGE
from keras_calib.solvers.regression import DiagonalProblem


@keras.saving.register_keras_serializable(package="keras_calib")
class VectorScaling(AffineCalibration):
    """Scale and shift each class's logit: `z_k w_k + b_k`.

    `adapt` finds the one optimum of the likelihood: the problem is convex. A
    class without calibration samples stays at the common temperature.

    Args:
        regularization: `None`, the paper's map, whose fit to the likelihood is
            stopped, with a warning, where it has become right on every sample:
            there is no optimum then; a float, the strength of the penalty
            `sum_k (w_k T - 1)^2 + b_k^2` around temperature scaling (T is its
            temperature); or `"structured"`, the strength `num_classes / n`.
        normalize_logits: `None` for logits as they are, `"log_softmax"` or
            `"mean"` to subtract their log-sum-exp or mean first, so that
            `log p` gives the same result.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> logits = np.array([[2.0, 0], [2.0, 0], [2.0, 0], [0, 2.0]] * 5)
        >>> labels = np.array([0, 0, 1, 1] * 5)
        >>> labels[-1] = 0
        >>> layer = kc.layers.VectorScaling().adapt(logits, labels)
        >>> layer.record["nll_after"] < layer.record["nll_before"]
        True

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        Section 4.2. The structured penalty: "SVS" of the package probmetrics.
    """

    def __init__(self, regularization=None, normalize_logits=None, **kwargs):
        super().__init__(normalize_logits=normalize_logits, **kwargs)
        check_regularization(regularization)
        self.regularization = regularization

    def _add_weights(self, num_classes):
        self.scale = self.add_weight((num_classes,), "ones", name="scale")
        self.bias = self.add_weight((num_classes,), "zeros", name="bias")

    def _transform(self, x):
        return x * self.scale + self.bias

    def degrees_of_freedom(self, num_classes):
        return 2 * max(2, num_classes)

    def _matrix_and_bias(self):
        return (
            keras.ops.convert_to_numpy(self.scale),
            keras.ops.convert_to_numpy(self.bias),
        )

    def _problem(self, x, labels, share, smoothing, temperature, free, samples):
        num_classes = x.shape[1]
        strength = self.regularization or 0.0
        if strength == "structured":
            strength = num_classes / samples
        ridge = np.full((2, num_classes), RIDGE + strength)
        ridge[0] = RIDGE + strength * temperature**2
        start = self._start(np.full(num_classes, 1 / temperature))
        problem = DiagonalProblem(
            x,
            labels,
            share,
            smoothing,
            shared=False,
            free=np.stack([free, free]),
            ridge=ridge,
            center=start,
        )
        return problem, start

    def _weights(self, parameters):
        return {"scale": parameters[0], "bias": parameters[1]}

    def _findings(self, parameters):
        negative = np.flatnonzero(parameters[0] < 0)
        # A class whose logit says the opposite of what it should.
        return {"negative_scales": negative.tolist()} if len(negative) else {}

    def get_config(self):
        return {**super().get_config(), "regularization": self.regularization}


def check_regularization(value):
    """Raise unless it is `None`, `"structured"` or a float >= 0."""
    if value is None or value == "structured":
        return
    if isinstance(value, str) or not value >= 0:
        raise ValueError(
            '`regularization` must be None, "structured" or a number >= 0. '
            f"Received: regularization={value!r}."
        )
