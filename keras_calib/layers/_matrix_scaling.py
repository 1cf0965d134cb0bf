"""Matrix scaling: a full linear map of the logits."""

from typing import Any

import keras
import numpy as np

from keras_calib.inputs import large
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import RULED_OUT
from keras_calib.inputs.arrays import TIMES
from keras_calib.inputs.tensors import matmul
from keras_calib.inputs.tensors import maximum
from keras_calib.inputs.tensors import row_max
from keras_calib.layers._affine import AffineCalibration
from keras_calib.layers._affine import check_regularization
from keras_calib.layers._logit_ops import normalized
from keras_calib.layers._vector_scaling import VectorScaling
from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.matrix_evidence import MAX_CLASSES
from keras_calib.solvers.matrix_evidence import average_matrices
from keras_calib.solvers.matrix_evidence import bytes_needed
from keras_calib.solvers.matrix_evidence import fits_matrix
from keras_calib.solvers.matrix_evidence import minimize_matrix_around
from keras_calib.solvers.memory import refuse_too_large
from keras_calib.solvers.regression_problems import DIGITS
from keras_calib.solvers.regression_problems import RIDGE
from keras_calib.solvers.regression_problems import FullProblem


@keras.saving.register_keras_serializable(package="keras_calib")
class MatrixScaling(AffineCalibration):
    """A full linear map of the logits: `z' = z W + b`.

    Predicted classes can change. With the fitted temperature `T`, K classes
    and n samples, a ridge fit minimizes (a convex problem)

        mean_i -log softmax(z'_i)[y_i] + s sum_k ((T W_kk - 1)^2 + b_k^2)
            + r sum_(j != k) (T W_jk)^2

    Args:
        regularization: `"auto"` for the average, by their evidence, of ridge
            fits around temperature scaling, which few samples leave near
            temperature scaling; above 100 classes it is that of
            `VectorScaling`. `None` (`s = r = 0`) for the paper's map;
            `"structured"` (`s = K / n`, `r = K (K - 1) / n`), or a float
            `s = r >= 0`. With `None` and separable data the fit stops, with a
            warning, once every sample is correct: no optimum exists.
        normalize_logits: `None`, or `"log_softmax"` or `"mean"` to subtract the
            log-sum-exp or the mean of each row first, so that logits and
            log-probabilities give the same result; `"auto"` is `"log_softmax"`
            with `regularization="auto"`, else `None`. Only with `None` and
            `"mean"` can it be fused (`fuse=True`).
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: `(..., num_classes)`, or `(..., 1)` before one sigmoid. A class
            that is ruled out, by minus infinity (which no fit takes) or by a
            mask of -1e9, stays so and adds nothing to the others.

    Returns:
        Calibrated logits, of the shape of `logits`.

    Raises:
        ValueError: for another `regularization` or `normalize_logits`. In
            `adapt`: for invalid input; the layer is then unchanged.

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

    _paths = VectorScaling._paths
    _average = staticmethod(average_matrices)
    _minimize_around = staticmethod(minimize_matrix_around)
    _problem = FullProblem
    _rounds = True

    def __init__(
        self,
        *,
        regularization: str | float | None = "auto",
        normalize_logits: str | None = "auto",
        **kwargs: Any,
    ) -> None:
        check_regularization(regularization, ("auto", "structured"))
        super().__init__(
            regularization=regularization,
            normalize_logits=normalize_logits,
            **kwargs,
        )

    def _add_weights(self, num_classes):
        self._add("kernel", np.eye(num_classes))
        self._add("bias", np.zeros(num_classes))

    def _map(self, logits, w, xp):
        # A class that is ruled out adds nothing to others, and stays so.
        logits = maximum(logits, LOWEST, xp)
        top = row_max(logits, xp, keepdims=True)
        usual = maximum(TIMES * xp.abs(top), RULED_OUT, xp)
        out = xp.logical_or(top - logits > usual, logits <= LOWEST)
        if self.normalize_logits == "mean":
            seen = xp.where(out, 0.0, logits)
            count = xp.sum(xp.where(out, 0.0, 1.0), axis=-1, keepdims=True)
            mean = xp.sum(seen, axis=-1, keepdims=True) / count
            logits = xp.where(out, mean, logits)
        x = normalized(logits, self.normalize_logits, xp)
        scores = self._transform(xp.where(out, 0.0, x), w, xp)
        return xp.where(out, LOWEST, scores)

    def _transform(self, x, w, xp):
        return matmul(x, w.kernel) + w.bias

    def _matrix_and_bias(self):
        return self.kernel, self.bias

    def _check(self, logits):
        self._refuse_ruled_out(logits)
        self._refuse_too_large(logits)

    def _refuse_too_large(self, logits):
        auto = self.regularization == "auto"
        refuse_too_large(
            bytes_needed(*logits.shape, around_temperature=auto),
            f"The fit of {type(self).__name__} to {logits.shape[0]} x "
            f"{logits.shape[1]} logits",
            "Use fewer samples, or `VectorScaling`.",
        )

    def _findings(self, parameters):
        if self.regularization != "auto" or fits_matrix(len(parameters) - 1):
            return {}
        return {"matrix": f"left out: more than {MAX_CLASSES} classes"}

    def _inputs(self, logits):
        return self._narrow(super()._inputs, logits)

    def _narrow(self, inputs, logits):
        """Inputs, in float32 where the regression keeps no more digits."""
        if logits.size < DIGITS:
            return inputs(logits)
        if self.normalize_logits is None and logits.dtype == "float32":
            return logits
        x = large.empty(logits.shape, "float32")
        for rows in row_blocks(*logits.shape, IN_CACHE):
            x[rows] = inputs(logits[rows])
        return x

    def _scaled(self, num_classes, temperature):
        identity = np.eye(num_classes) / temperature
        return np.concatenate([identity, np.zeros((1, num_classes))])

    def _free(self, present):
        return present

    def _penalty(self, start, temperature, num_samples):
        """The penalty of the class, as `sum ridge (W - start)^2`.

        s sum_k ((T W_kk - 1)^2 + b_k^2) + r sum_(j != k) (T W_jk)^2
        where `start` is `1 / T` for each `W_kk`, else 0.
        """
        num_classes = start.shape[1]
        strength = off_diagonal = self.regularization or 0.0
        if strength == "structured":
            strength = num_classes / num_samples
            off_diagonal = (num_classes - 1) * strength
        ridge = np.full(start.shape, off_diagonal * temperature**2)
        np.fill_diagonal(ridge, strength * temperature**2)
        ridge[-1] = strength
        return ridge + RIDGE, start

    def _weights(self, parameters):
        return {"kernel": parameters[:-1], "bias": parameters[-1]}
