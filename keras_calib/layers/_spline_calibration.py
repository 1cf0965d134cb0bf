"""Spline calibration: confidence corrected by a smooth curve."""

from typing import Any

import keras
import numpy as np

from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import TINY
from keras_calib.inputs.large import by_rows
from keras_calib.inputs.tensors import maximum
from keras_calib.inputs.tensors import minimum
from keras_calib.inputs.tensors import row_max
from keras_calib.layers._logit_ops import keep_prediction
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._logit_ops import probabilities_seen
from keras_calib.layers._piecewise_linear import UNUSED
from keras_calib.layers._piecewise_linear import interpolate
from keras_calib.layers._piecewise_linear import padded
from keras_calib.layers._piecewise_linear import table_size
from keras_calib.layers._shrunk import ShrunkCalibration
from keras_calib.ops.confidence import is_first_largest
from keras_calib.solvers.spline import spline_map


@keras.saving.register_keras_serializable(package="keras_calib")
class SplineCalibration(ShrunkCalibration):
    """Correct the confidence by the slope of the cumulative calibration error.

        c' = c + S'(u),  S(u) = sum_(c_i <= c) (correct_i - c_i) / n

    with `u` the fraction of samples of confidence at most `c`. `S` is a
    natural cubic spline, fitted by least squares.

    Only the confidence (the largest probability) is calibrated. The other
    probabilities are rescaled so that each row sums to 1. Predicted classes do
    not change: if the calibrated confidence is below the second largest
    probability, both become equal except for the last digit.

    Args:
        num_knots: int >= 3, knots of the spline, equally spaced.
        num_points: int >= 4, points of the piecewise linear function of
            confidence that the layer keeps; all samples, if there are fewer.
        monotone: bool, whether calibrated confidence increases with
            confidence, by isotonic regression.
        shrinkage: `"auto"` for a mixture with temperature scaling, which few
            samples leave near temperature scaling; `None` for the paper's map.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: `(..., num_classes)`, or `(..., 1)` before one sigmoid.

    Returns:
        Calibrated logits, of the shape of `logits`.

    Raises:
        ValueError: if `num_knots` is below 3 or `num_points` below 4.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> confidence = rng.uniform(0.5, 1.0, 4000)
        >>> labels = (rng.uniform(size=4000) > confidence**2).astype(int)
        >>> logits = np.log(np.stack([confidence, 1 - confidence], axis=1))
        >>> layer = kc.layers.SplineCalibration().adapt(logits, labels)
        >>> q = keras.ops.exp(layer(np.log([[0.9, 0.1]])))
        >>> bool(abs(float(q[0, 0]) - 0.81) < 0.03)
        True

    Reference:
        Gupta et al., "Calibration of Neural Networks using Splines", ICLR
        2021, Section 4. The authors' code interpolates between samples with
        the two weights exchanged; here they are not.
    """

    preserves_accuracy = True
    shift_invariant = True
    fitted_by = "frequencies"
    settings = ("num_knots", "num_points", "monotone", "shrinkage")

    def __init__(
        self,
        *,
        num_knots: int = 6,
        num_points: int = 1023,
        monotone: bool = False,
        shrinkage: str | None = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(shrinkage=shrinkage, **kwargs)
        # Fewer are no natural cubic spline.
        require_integer(3, num_knots=num_knots)
        require_integer(4, num_points=num_points)
        require_flags(monotone=monotone)
        self.num_knots = num_knots
        self.num_points = num_points
        self.monotone = monotone

    def _add_weights(self, num_classes):
        size = table_size(self.num_points)
        self._add("points", np.full((1, size), UNUSED))
        self._add("corrections", np.zeros((1, size)))
        # Confidence stays at least this far from 0 and 1.
        self._add("margin", 0.0)

    def degrees_of_freedom(self, num_classes: int) -> int:
        return self.num_knots

    def _seen(self, logits):
        """Confidence and predicted class, float64, `(n, 2)`."""

        def seen(z):
            confidence = probabilities_seen(z).max(axis=1)
            predicted = np.asarray(z, "float32").argmax(axis=1)
            return np.stack([confidence, predicted], axis=1, dtype="float64")

        return by_rows(seen, logits)

    def _solve(self, logits, labels, weights, objective, tempered):
        rest = labels, weights, objective, tempered
        return self._solve_seen(self._seen(logits), *rest)

    def _solve_seen(self, seen, labels, weights, objective, tempered):
        if len(labels) < self.num_knots:
            raise ValueError(
                f"A spline with {self.num_knots} knots needs at least as many "
                f"calibration samples. Received: {len(labels)}."
            )
        confidence, predicted = seen.T
        correct = (predicted == labels).astype("float64")
        points, calibrated = spline_map(
            confidence, correct, self.num_knots, weights, self.monotone
        )
        keep = np.linspace(0, len(points) - 1, self.num_points - 2)
        keep = np.unique(np.round(keep).astype(int))
        points, calibrated = points[keep], calibrated[keep]
        # Constant outside the samples.
        points = np.concatenate([[0.0], points, [1.0]])
        calibrated = calibrated[[0, *range(len(calibrated)), -1]]
        points, corrections = padded(
            points, calibrated - points, table_size(self.num_points)
        )
        margin = 1 / (float(weights.sum()) + 1)
        found = {
            "points": points[None],
            "corrections": corrections[None],
            "margin": margin,
        }
        return found, {"num_knots": self.num_knots, "margin": margin}

    def _transform(self, logits, w, xp):
        predicted = is_first_largest(logits, xp)
        largest = row_max(logits, xp, keepdims=True)
        e = xp.exp(maximum(logits - largest, LOWEST, xp))
        total = xp.sum(e, axis=-1, keepdims=True)
        # 1 - confidence would lose all digits near 1.
        rest = xp.sum(xp.where(predicted, 0.0, e), axis=-1, keepdims=True)
        # As `probabilities_seen` rounds it: corrections can be steep.
        confidence = xp.exp(-xp.log(total))
        added = interpolate(w.points, w.corrections, confidence, xp)
        rest = maximum(rest / total - added, w.margin, xp)
        # Not `1 - margin`: OpenVINO does not know PyTorch's `subtract`.
        rest = minimum(rest, xp.negative(w.margin) + 1, xp)
        others = log_softmax(xp.where(predicted, LOWEST, logits), xp)
        log_q = xp.where(
            predicted,
            xp.log(1 - rest),
            others + xp.log(maximum(rest, TINY, xp)),
        )
        # The sum is not 1 where all other classes are ruled out.
        return keep_prediction(logits, log_softmax(log_q, xp), xp)
