"""Dirichlet scaling: a full linear map of the log-probabilities."""

from typing import Any

import keras
import numpy as np

from keras_calib.inputs.arguments import require_at_least
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.arrays import TINY
from keras_calib.inputs.tensors import maximum
from keras_calib.layers._affine import AffineCalibration
from keras_calib.layers._matrix_scaling import MatrixScaling

KINDS = ("auto", "odir", "l2")


@keras.saving.register_keras_serializable(package="keras_calib")
class DirichletScaling(MatrixScaling):
    """A full linear map of the log-probabilities: `log p W + b`.

    Predicted classes can change. A ridge fit minimizes the mean loss plus a
    penalty, a convex problem.

    Args:
        regularization: `"auto"` for the average, by their evidence, of ridge
            fits around temperature scaling, as in `MatrixScaling`. For K
            classes, `"odir"` is the paper's penalty of off-diagonal entries
            and intercepts (ODIR), `strength / (K (K - 1)) sum_(j != k) W_jk^2
            + bias_strength / K sum_k b_k^2`, and `"l2"` is
            `strength (sum_jk W_jk^2 + sum_k b_k^2)`.
        strength: float >= 0. `None` is `100 K (K - 1) / n` for `"odir"`, so
            that each off-diagonal entry has the weight `100 / n` for n samples
            and any number of classes, and `0.01` for `"l2"`.
        bias_strength: float >= 0; `strength` by default. For `"odir"`.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: `(..., num_classes)`, or `(..., 1)` before one sigmoid.

    Returns:
        Calibrated logits, of the shape of `logits`.

    Raises:
        ValueError: if an argument is out of range, or a strength is passed with
            `regularization="auto"`.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(200, 3))
        >>> labels = (logits @ rng.normal(size=(3, 3))).argmax(axis=1)
        >>> layer = kc.layers.DirichletScaling().adapt(logits, labels)
        >>> layer.record["nll_after"] < layer.record["nll_before"]
        True

    Reference:
        Kull et al., "Beyond temperature scaling: Obtaining well-calibrated
        multiclass probabilities with Dirichlet calibration", NeurIPS 2019.
    """

    settings = ("regularization", "strength", "bias_strength")

    def __init__(
        self,
        *,
        regularization: str = "auto",
        strength: float | None = None,
        bias_strength: float | None = None,
        **kwargs: Any,
    ) -> None:
        require_one_of(KINDS, regularization=regularization)
        given = strength is not None or bias_strength is not None
        if regularization == "auto" and given:
            raise ValueError(
                'With `regularization="auto"` there is no strength to choose. '
                f"Received: strength={strength}, bias_strength="
                f'{bias_strength}. Use "odir" or "l2".'
            )
        super().__init__(
            regularization=None, normalize_logits="log_softmax", **kwargs
        )
        if strength is not None:
            require_at_least(0, strength=strength)
        if bias_strength is not None:
            require_at_least(0, bias_strength=bias_strength)
        self.regularization = regularization
        self.strength = strength
        self.bias_strength = bias_strength

    # A class that is ruled out has the smallest probability, here and there.
    _map = AffineCalibration._map

    def _transform(self, x, w, xp):
        # A probability of 0 is the smallest float32, as in the fit.
        return super()._transform(maximum(x, float(np.log(TINY)), xp), w, xp)

    def _check(self, logits):
        self._refuse_too_large(logits)

    def _inputs(self, logits):
        return self._narrow(self._log_probabilities, logits)

    def _log_probabilities(self, logits):
        x = AffineCalibration._inputs(self, logits)
        return np.maximum(x, np.log(TINY))

    def _penalty(self, start, temperature, num_samples):
        """ODIR, or `strength (sum_jk W_jk^2 + sum_k b_k^2)`, around 0.

        strength / (K (K - 1)) sum_(j != k) W_jk^2
        + bias_strength / K sum_k b_k^2
        """
        num_classes = start.shape[1]
        pairs = num_classes * (num_classes - 1)
        odir = self.regularization == "odir"
        strength, bias = self.strength, self.bias_strength
        if strength is None:
            strength = 100 * pairs / num_samples if odir else 0.01
        ridge = np.full(start.shape, strength)
        if odir:
            ridge[:-1] /= pairs
            np.fill_diagonal(ridge, 0.0)
            ridge[-1] = (strength if bias is None else bias) / num_classes
        return ridge, np.zeros_like(start)
