"""Platt scaling: a logistic regression on the log-odds of two classes."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import require_flags
from keras_calib.layers._binary_map import BinaryMap


@keras.saving.register_keras_serializable(package="keras_calib")
class PlattScaling(BinaryMap):
    """Scale and shift the log-odds of a binary classifier.

        log-odds' = slope * log-odds + intercept

    for logits of two classes or of one sigmoid unit. A slope below 0 reverses
    the order: the classifier prefers the wrong class. Only with
    `shrinkage=None` can it be fused (`fuse=True`).

    Args:
        smooth_targets: bool, whether to fit to Platt's targets
            `(n1 + 1) / (n1 + 2)` and `1 / (n0 + 2)` rather than 1 and 0, with
            which the optimum is finite also for classes that a threshold
            separates.
        shrinkage: `"auto"` for a mixture with temperature scaling, which few
            samples leave near temperature scaling; `None` for the paper's map.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: of two classes, `(..., 2)`, or before one sigmoid, `(..., 1)`.

    Returns:
        Calibrated logits, of the shape of `logits`.

    Raises:
        ValueError: for logits of more than two classes.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> logit = np.array([[2.0], [2.0], [2.0], [2.0], [-2.0], [-2.0]])
        >>> layer = kc.layers.PlattScaling(
        ...     smooth_targets=False, shrinkage=None
        ... )
        >>> layer = layer.adapt(logit, [1, 1, 1, 0, 1, 0])
        >>> round(float(keras.ops.sigmoid(layer(logit))[0, 0]), 4)  # 3 of 4
        0.75

    Reference:
        Platt, "Probabilistic Outputs for Support Vector Machines and
        Comparisons to Regularized Likelihood Methods", 1999.
    """

    identity = {"slope": 1.0, "intercept": 0.0}
    lower = (-np.inf, -np.inf)
    settings = ("smooth_targets", "shrinkage")

    def __init__(
        self,
        *,
        smooth_targets: bool = True,
        shrinkage: str | None = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(shrinkage=shrinkage, **kwargs)
        require_flags(smooth_targets=smooth_targets)
        self.smooth_targets = smooth_targets

    def as_affine(self, num_classes: int) -> tuple | None:
        if self.shrinkage is not None:
            return None
        slope, intercept = (
            float(ops.convert_to_numpy(w)) for w in (self.slope, self.intercept)
        )
        if num_classes == 1:
            return np.array(slope), np.array([intercept])
        half = np.array([-0.5, 0.5])
        return slope * np.outer([-1.0, 1.0], half), intercept * half

    def features(self, log_odds: np.ndarray) -> np.ndarray:
        return np.stack([log_odds, np.ones_like(log_odds)], axis=1)

    def transform(self, log_odds: Tensor, w: Any, xp: Any) -> Tensor:
        return w.slope * log_odds + w.intercept
