"""Vector scaling: every class has its own scale and bias."""

from typing import Any

import keras
import numpy as np

from keras_calib.layers._affine import AffineCalibration
from keras_calib.layers._affine import check_regularization
from keras_calib.solvers.regression_problems import RIDGE


@keras.saving.register_keras_serializable(package="keras_calib")
class VectorScaling(AffineCalibration):
    """Scale and shift the logit of each class: `z'_k = w_k z_k + b_k`.

    Before `adapt`, `w = 1` and `b = 0`. Predicted classes can change. With the
    fitted temperature `T` and a strength `s`, a ridge fit minimizes (a convex
    problem)

        mean_i -log softmax(z'_i)[y_i] + s sum_k ((T w_k - 1)^2 + b_k^2)

    Args:
        regularization: `"auto"` for the average, by their evidence, of ridge
            fits around temperature scaling, which few samples leave near
            temperature scaling; `None` (`s = 0`) for the paper's map; a
            float `s >= 0`, or `"structured"` (`s = num_classes /
            num_samples`). With a number or `None`, a class without calibration
            samples keeps `w_k = 1 / T`, `b_k = 0`; with `None` and separable
            data the fit stops, with a warning, once every sample is correct:
            no optimum exists.
        normalize_logits: `None`, or `"log_softmax"` or `"mean"` to subtract the
            log-sum-exp or the mean of each row first, so that logits and
            log-probabilities give the same result; `"auto"` is `"log_softmax"`
            with `regularization="auto"`, else `None`. Only with `None` and
            `"mean"` can it be fused (`fuse=True`).
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: `(..., num_classes)`, or `(..., 1)` before one sigmoid.

    Returns:
        Calibrated logits, of the shape of `logits`.

    Raises:
        ValueError: for another `regularization` or `normalize_logits`. In
            `adapt`: for invalid input; the layer is then unchanged.

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

    _paths = ((True, False), (False, True), (True, True))

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
        self._add("scale", np.ones(num_classes))
        self._add("bias", np.zeros(num_classes))

    def _transform(self, x, w, xp):
        return x * w.scale + w.bias

    def _matrix_and_bias(self):
        return self.scale, self.bias

    def _penalty(self, start, temperature, num_samples):
        """`s sum_k ((T w_k - 1)^2 + b_k^2)` as `sum ridge (w - start)^2`.

        `start` is `1 / T` for each `w_k` and 0 for each `b_k`.
        """
        strength = self.regularization or 0.0
        if strength == "structured":
            strength = start.shape[1] / num_samples
        ridge = np.full(start.shape, RIDGE + strength)
        ridge[0] = RIDGE + strength * temperature**2
        return ridge, start

    def _weights(self, parameters):
        return {"scale": parameters[0], "bias": parameters[1]}

    def _findings(self, parameters):
        # A negative scale reverses the meaning of the class's logit.
        negative = np.flatnonzero(parameters[0] < 0)
        return {"negative_scales": negative.tolist()} if len(negative) else {}
