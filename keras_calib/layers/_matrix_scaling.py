"""Matrix scaling: a full linear map of the logits."""

import keras
import numpy as np

from keras_calib.layers._affine import AffineCalibration
from keras_calib.layers._vector_scaling import check_regularization
from keras_calib.solvers.regression import RIDGE
from keras_calib.solvers.regression import FullProblem


@keras.saving.register_keras_serializable(package="keras_calib")
class MatrixScaling(AffineCalibration):
    """A full linear map of the logits: `z W + b`.

    With `num_classes^2` parameters it overfits unless it is held back, so a
    penalty around temperature scaling is the default: it grows with the number
    of classes and fades with the number of samples. `adapt` finds the one
    optimum: the problem is convex.

    Args:
        regularization: `"structured"`, the penalty
            `K / n sum_k (T W_kk - 1)^2 + K (K - 1) / n sum_(j != k) (T W_jk)^2
            + K / n sum_k b_k^2` around temperature scaling (K classes, n
            samples, T its temperature); a float, one strength for all three
            sums; or `None`, the paper's map, whose fit to the likelihood is
            stopped, with a warning, where it has become right on every sample:
            there is no optimum then.
        normalize_logits: `None` for logits as they are, `"log_softmax"` or
            `"mean"` to subtract their log-sum-exp or mean first, so that
            `log p` gives the same result.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(200, 3))
        >>> labels = (logits @ rng.normal(size=(3, 3))).argmax(axis=1)
        >>> layer = kc.layers.MatrixScaling().adapt(logits, labels)
        >>> layer.record["nll_after"] < layer.record["nll_before"]
        True

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        Section 4.2. The structured penalty: "SMS" of the package probmetrics.
    """

    _rounds = True

    def __init__(
        self, regularization="structured", normalize_logits=None, **kwargs
    ):
        super().__init__(normalize_logits=normalize_logits, **kwargs)
        check_regularization(regularization)
        self.regularization = regularization

    def _add_weights(self, num_classes):
        self.kernel = self.add_weight(
            (num_classes, num_classes), "identity", name="kernel"
        )
        self.bias = self.add_weight((num_classes,), "zeros", name="bias")

    def _transform(self, x):
        return keras.ops.matmul(x, self.kernel) + self.bias

    def degrees_of_freedom(self, num_classes):
        num_classes = max(2, num_classes)
        return num_classes * (num_classes + 1)

    def _matrix_and_bias(self):
        return (
            keras.ops.convert_to_numpy(self.kernel),
            keras.ops.convert_to_numpy(self.bias),
        )

    def _inputs(self, logits):
        if self.normalize_logits != "log_softmax":
            self._refuse_ruled_out(logits)
        return super()._inputs(logits)

    def _problem(self, x, labels, share, smoothing, temperature, free, samples):
        num_classes = x.shape[1]
        start = self._start(np.full(num_classes, 1 / temperature))
        strength = self.regularization or 0.0
        off = strength
        if strength == "structured":
            strength = num_classes / samples
            off = (num_classes - 1) * strength
        ridge = np.full(start.shape, off * temperature**2)
        np.fill_diagonal(ridge, strength * temperature**2)
        ridge[-1] = strength
        problem = FullProblem(
            x, labels, share, smoothing, free, ridge + RIDGE, start
        )
        return problem, start

    def _start(self, w):
        return np.concatenate([np.diag(w), np.zeros((1, len(w)))])

    def _weights(self, parameters):
        return {"kernel": parameters[:-1], "bias": parameters[-1]}

    def get_config(self):
        return {**super().get_config(), "regularization": self.regularization}
