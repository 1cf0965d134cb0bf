"""Spline calibration: confidence corrected by a smooth curve."""

import keras
import numpy as np
from keras import ops

from keras_calib.inputs.arrays import LOWEST
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._logit_ops import keep_prediction
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._logit_ops import on_pairs
from keras_calib.layers._logit_ops import probabilities
from keras_calib.layers._logit_ops import probabilities_seen
from keras_calib.layers._piecewise_linear import UNUSED
from keras_calib.layers._piecewise_linear import interpolate
from keras_calib.layers._piecewise_linear import padded
from keras_calib.layers._piecewise_linear import table_size
from keras_calib.solvers.isotonic import isotonic_regression
from keras_calib.solvers.weights import number_of_samples

TINY = 1e-30


@keras.saving.register_keras_serializable(package="keras_calib")
class SplineCalibration(CalibrationLayer):
    """Correct the confidence by the slope of the cumulative calibration error.

    With samples in order of confidence, the cumulative sum of `correct -
    confidence` is a curve over the fraction of samples; a natural cubic spline
    fits it by least squares, and its derivative is what to add to the
    confidence. No bins, no iterations.

    The confidence is calibrated, not the other classes: they share what is
    left in their old proportions. Predictions stay: where the calibrated
    confidence would fall below the runner-up's share, both are made equal
    but for the last digit.

    Args:
        num_knots: int >= 3, knots of the spline, equally spaced.
        num_points: int >= 4, points of the piecewise linear function of
            confidence that the layer keeps; all samples, if there are fewer.
        monotone: bool, whether to make calibrated confidence increase with
            confidence, by isotonic regression.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Raises:
        ValueError: if `num_knots` is below 3 or `num_points` below 4.

    Example:
        >>> import numpy as np, keras_calib as kc
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
    parametric = False
    fitted_by = "frequencies"

    def __init__(self, num_knots=6, num_points=1023, monotone=False, **kwargs):
        super().__init__(**kwargs)
        if num_knots < 3:
            raise ValueError(
                "A natural cubic spline has at least 3 knots. "
                f"Received: num_knots={num_knots}."
            )
        if num_points < 4:
            raise ValueError(
                "`num_points` must be at least 4. "
                f"Received: num_points={num_points}."
            )
        self.num_knots = num_knots
        self.num_points = num_points
        self.monotone = monotone

    def build(self, input_shape):
        size = table_size(self.num_points)
        self.points = self.add_weight(
            (1, size), keras.initializers.Constant(UNUSED), name="points"
        )
        self.corrections = self.add_weight(
            (1, size), "zeros", name="corrections"
        )
        # Confidence stays at least this far from 0 and 1.
        self.margin = self.add_weight((), "zeros", name="margin")
        self.built = True

    def degrees_of_freedom(self, num_classes):
        return self.num_knots

    def fit(self, logits, labels, weight, objective):
        if len(labels) < self.num_knots:
            raise ValueError(
                f"A spline with {self.num_knots} knots needs at least as many "
                f"calibration samples. Received: {len(labels)}."
            )
        confidence = probabilities_seen(logits).max(axis=1).astype("float64")
        predicted = np.asarray(logits, "float32").argmax(axis=1)
        correct = (predicted == labels).astype("float64")
        points, calibrated = spline_map(
            confidence, correct, self.num_knots, weight, self.monotone
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
        margin = 1 / (number_of_samples(labels, weight) + 1)
        weights = {
            "points": points[None],
            "corrections": corrections[None],
            "margin": margin,
        }
        return weights, {"num_knots": self.num_knots, "margin": margin}

    def call(self, logits):
        return on_pairs(self._correct, logits)

    def _correct(self, logits):
        index = ops.argmax(logits, axis=-1)
        predicted = ops.one_hot(index, logits.shape[-1], dtype="bool")
        p = probabilities(logits)
        confidence = ops.max(p, axis=-1, keepdims=True)
        # Not as 1 - confidence, which loses all digits near 1.
        rest = ops.sum(ops.where(predicted, 0.0, p), axis=-1, keepdims=True)
        added = interpolate(self.points, self.corrections, confidence)
        rest = ops.maximum(rest - added, self.margin)
        rest = ops.minimum(rest, 1 - self.margin)
        others = log_softmax(ops.where(predicted, LOWEST, logits))
        log_q = ops.where(
            predicted,
            ops.log1p(-rest),
            others + ops.log(ops.maximum(rest, TINY)),
        )
        return keep_prediction(logits, log_softmax(log_q))

    def get_config(self):
        config = {
            "num_knots": self.num_knots,
            "num_points": self.num_points,
            "monotone": self.monotone,
        }
        return {**super().get_config(), **config}


def spline_map(confidence, correct, num_knots=6, weight=None, monotone=False):
    """Calibrated confidence at every confidence among the samples.

    Args:
        confidence: `(n,)`.
        correct: 0 or 1, `(n,)`.
        num_knots: int.
        weight: `None`, or weights > 0, `(n,)`.
        monotone: bool, whether the result must increase.

    Returns:
        points: the different confidences, ascending.
        calibrated: as many, in `[0, 1]`.
    """
    order = np.argsort(confidence, kind="stable")
    s, a = confidence[order], correct[order]
    w = np.ones(len(s)) if weight is None else np.asarray(weight)[order]
    # Equal confidences have no order: each gets their mean.
    starts = np.flatnonzero(np.append(True, s[1:] > s[:-1]))
    group = np.repeat(
        np.arange(len(starts)), np.diff(np.append(starts, len(s)))
    )
    a = (np.add.reduceat(w * a, starts) / np.add.reduceat(w, starts))[group]
    error = np.cumsum(w * (a - s)) / w.sum()
    before = np.cumsum(w) - w
    u = before / before[-1]
    design, slope = natural_spline(u, num_knots)
    root = np.sqrt(w)
    height = np.linalg.lstsq(design * root[:, None], error * root, rcond=None)[
        0
    ]
    calibrated = s + slope @ height
    calibrated = np.add.reduceat(w * calibrated, starts)
    calibrated /= np.add.reduceat(w, starts)
    points = s[starts]
    if monotone:
        blocks = isotonic_regression(
            points, calibrated, np.add.reduceat(w, starts)
        )
        index = np.searchsorted(blocks.last, points, "left")
        calibrated = blocks.level[index]
    return points, np.clip(calibrated, 0.0, 1.0)


def natural_spline(u, num_knots):
    """Values and slopes at `u` of the natural cubic splines on `[0, 1]`.

    Column `j` is the spline that is 1 at knot `j` and 0 at the others; knots
    are equally spaced. The second derivatives `m` solve
    `m[j-1] + 4 m[j] + m[j+1] = 6 / h^2 (y[j-1] - 2 y[j] + y[j+1])`, and are
    0 at the ends.

    Args:
        u: `(n,)`, in `[0, 1]`.
        num_knots: int >= 3.

    Returns:
        Two arrays, `(n, num_knots)`.
    """
    h = 1 / (num_knots - 1)
    inner = num_knots - 2
    left = 4 * np.eye(inner) + np.eye(inner, k=1) + np.eye(inner, k=-1)
    right = np.zeros((inner, num_knots))
    for shift, factor in enumerate((1, -2, 1)):
        right[range(inner), range(shift, inner + shift)] = factor
    second = np.zeros((num_knots, num_knots))
    second[1:-1] = np.linalg.solve(left, right * 6 / h**2)
    j = np.clip((u / h).astype(int), 0, num_knots - 2)
    t = (u - j * h)[:, None]
    unit = np.eye(num_knots)
    m0, m1, y0, y1 = second[j], second[j + 1], unit[j], unit[j + 1]
    values = (
        m0 * (-(t**3) / (6 * h) + t**2 / 2 - h * t / 3)
        + m1 * (t**3 / (6 * h) - h * t / 6)
        + y0 * (1 - t / h)
        + y1 * t / h
    )
    slopes = (
        m0 * (-(t**2) / (2 * h) + t - h / 3)
        + m1 * (t**2 / (2 * h) - h / 6)
        + (y1 - y0) / h
    )
    return values, slopes
