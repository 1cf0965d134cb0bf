"""Quadratic scaling: a parabola of the log-odds of two classes."""

import warnings

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.layers._binary_map import BinaryMap


@keras.saving.register_keras_serializable(package="keras_calib")
class QuadraticScaling(BinaryMap):
    """Bend the log-odds of a binary classifier.

        log-odds' = intercept + slope l + curvature l^2,    l = log-odds

    for logits of two classes or of one sigmoid unit. Beyond the range of `l` in
    the calibration data the map goes on along its tangent. Where the range
    contains the turning point `-slope / (2 curvature)`, the map is not
    monotone, and `adapt` warns.

    Args:
        shrinkage: `"auto"` for a mixture with temperature scaling, which few
            samples leave near temperature scaling; `None` for the parabola
            alone.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Raises:
        ValueError: for logits of more than two classes.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> logit = np.repeat([[-2.0], [0.0], [2.0]], 10, axis=0)
        >>> labels = np.repeat([1, 0, 1, 0, 1, 0], [2, 8, 5, 5, 6, 4])
        >>> layer = kc.layers.QuadraticScaling(shrinkage=None)
        >>> layer = layer.adapt(logit, labels)  # three values, all of them met
        >>> round(float(keras.ops.sigmoid(layer(logit))[-1, 0]), 3)
        0.6

    Reference:
        The quadratic logistic map of CalArena (arXiv 2605.30188), there
        without shrinkage and tangents.
    """

    identity = {"slope": 1.0, "intercept": 0.0, "curvature": 0.0}
    lower = (-float("inf"),) * 3
    settings = ("shrinkage",)

    def _add_weights(self, num_classes):
        super()._add_weights(num_classes)
        for name in ("lowest", "highest"):
            self._add(name, 0.0, trainable=False)

    def features(self, log_odds: np.ndarray) -> np.ndarray:
        ones = np.ones_like(log_odds)
        return np.stack([log_odds, ones, log_odds**2], axis=1)

    def transform(self, log_odds: Tensor) -> Tensor:
        x = ops.clip(log_odds, self.lowest, self.highest)
        slope = self.slope + 2 * self.curvature * x
        value = self.intercept + self.slope * x + self.curvature * x**2
        return value + slope * (log_odds - x)

    def _solve(self, logits, labels, weights, objective):
        found, record = super()._solve(logits, labels, weights, objective)
        log_odds = logits[:, 1].astype("float64") - logits[:, 0]
        found["lowest"], found["highest"] = log_odds.min(), log_odds.max()
        slopes = [
            found["slope"] + 2 * found["curvature"] * found[end]
            for end in ("lowest", "highest")
        ]
        if min(slopes) < 0 < max(slopes):
            turn = -found["slope"] / (2 * found["curvature"])
            warnings.warn(
                f"The parabola turns at a log-odds of {turn:.4g}, within those "
                f"of the calibration data, {found['lowest']:.4g} to "
                f"{found['highest']:.4g}: the map is not monotone.",
                stacklevel=5,
            )
        return found, record
