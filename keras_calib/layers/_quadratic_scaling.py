"""Quadratic scaling: a parabola of the log-odds of two classes."""

from typing import Any

import keras
import numpy as np

from keras_calib._typing import Tensor
from keras_calib._warning import warn
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import RULED_OUT
from keras_calib.inputs.arrays import TIMES
from keras_calib.inputs.arrays import largest_seen
from keras_calib.inputs.tensors import maximum
from keras_calib.inputs.tensors import minimum
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

    Call arguments:
        logits: of two classes, `(..., 2)`, or before one sigmoid, `(..., 1)`.

    Returns:
        Calibrated logits, of the shape of `logits`.

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

    # The curvature in units of the largest log-odds, squared: raw squares
    # would overflow.
    identity = {"slope": 1.0, "intercept": 0.0, "scaled_curvature": 0.0}
    lower = (-np.inf,) * 3
    settings = ("shrinkage",)

    def _add_weights(self, num_classes):
        super()._add_weights(num_classes)
        for name, value in RANGE.items():
            self._add(name, value, trainable=False)

    def features(self, log_odds: np.ndarray) -> np.ndarray:
        scale, *ends = _scale_and_ends(log_odds)
        x = np.clip(log_odds, *ends) / scale
        return np.stack([log_odds, np.ones_like(x), x**2], axis=1)

    def transform(self, log_odds: Tensor, w: Any, xp: Any) -> Tensor:
        inside = minimum(maximum(log_odds, w.lowest, xp), w.highest, xp)
        x, beyond = inside / w.scale, (log_odds - inside) / w.scale
        # A class that is ruled out stays so, whichever way the tangent falls.
        most = xp.maximum(RULED_OUT, TIMES * w.scale)
        beyond = xp.where(xp.abs(log_odds) < most, beyond, 0.0)
        curved = w.scaled_curvature * (x**2 + 2 * x * beyond)
        return w.intercept + w.slope * log_odds + curved

    def _solve(self, logits, labels, weights, objective, tempered):
        found, record = super()._solve(
            logits, labels, weights, objective, tempered
        )
        logits = np.maximum(np.asarray(logits, "float64"), LOWEST)
        scale, *ends = _scale_and_ends(logits[:, 1] - logits[:, 0])
        found |= dict(zip(RANGE, (scale, *ends), strict=True))
        curvature = float(record.pop("scaled_curvature") / scale**2)
        record["curvature"] = curvature
        low, high = (found["slope"] + 2 * curvature * e for e in ends)
        if low * high < 0:
            turn = -found["slope"] / (2 * curvature)
            warn(
                f"The parabola turns at a log-odds of {turn:.4g}, within those "
                f"of the calibration data, {ends[0]:.4g} to {ends[1]:.4g}: the "
                "map is not monotone."
            )
        return found, record


# Variables that the data decide: the unit of the curvature, and the range.
RANGE = {"scale": 1.0, "lowest": 0.0, "highest": 0.0}


def _scale_and_ends(log_odds):
    """Of the samples of which no class is ruled out."""
    distances = np.abs(log_odds)
    x = log_odds[distances < largest_seen(distances)]
    low, high = (x.min(), x.max()) if len(x) else (0.0, 0.0)
    return max(-low, high) or 1.0, low, high
