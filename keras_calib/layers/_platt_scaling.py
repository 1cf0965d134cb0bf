"""Platt scaling: a logistic regression on the log-odds of two classes."""

import keras
import numpy as np
from keras import ops

from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.tensors import at_least_float32
from keras_calib.layers._base import CalibrationLayer
from keras_calib.solvers.binary_logistic import fit_logistic
from keras_calib.solvers.binary_logistic import platt_targets


class BinaryMap(CalibrationLayer):
    """Base of maps of one number: the log-odds of the second class."""

    shift_invariant = True
    binary_only = True

    def bend(self, log_odds):
        """The map itself, of log-odds of any shape."""
        raise NotImplementedError

    def build(self, input_shape):
        if input_shape[-1] > 2:
            raise ValueError(
                f"{type(self).__name__} is for two classes, or one sigmoid "
                f"unit. Received: logits of {input_shape[-1]} classes."
            )
        self.build_weights()
        self.built = True

    def call(self, logits):
        logits = at_least_float32(logits)
        # A class that is ruled out; infinity minus infinity is no number.
        logits = ops.maximum(logits, LOWEST)
        if logits.shape[-1] == 1:
            return self.bend(logits)
        half = self.bend(logits[..., 1:] - logits[..., :1]) / 2
        # Around 0: next to a large logit the digits would be lost.
        return ops.concatenate([-half, half], axis=-1)


def log_odds_of(logits, labels):
    """Log-odds of both classes' rows, and labels as float64.

    Raises:
        ValueError: if only one class is among the labels.
    """
    if labels.min() == labels.max():
        raise ValueError(
            "A binary map needs calibration samples of both classes. "
            f"Received: {len(labels)} samples of class {labels[0]} only."
        )
    # Minus infinity rules a class out; float64 keeps what is left apart.
    logits = np.maximum(np.asarray(logits, "float64"), LOWEST)
    return logits[:, 1] - logits[:, 0], labels.astype("float64")


def binary_nll(log_odds, targets, weight):
    """Mean of `log(1 + exp(s)) - t s`."""
    losses = np.logaddexp(0.0, log_odds) - targets * log_odds
    return float(np.average(losses, weights=weight))


@keras.saving.register_keras_serializable(package="keras_calib")
class PlattScaling(BinaryMap):
    """Scale and shift the log-odds of a binary classifier.

    `log-odds' = slope * log-odds + intercept`, for logits of two classes or of
    one sigmoid unit. A slope below 0 says that the classifier prefers the
    wrong class; then, order is reversed.

    Args:
        smooth_targets: bool, whether to fit to Platt's targets
            `(n1 + 1) / (n1 + 2)` and `1 / (n0 + 2)` rather than 1 and 0. They
            give a finite answer also for data that a threshold separates.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Raises:
        ValueError: for logits of more than two classes.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> logit = np.array([[2.0], [2.0], [2.0], [2.0], [-2.0], [-2.0]])
        >>> layer = kc.layers.PlattScaling(smooth_targets=False)
        >>> layer = layer.adapt(logit, [1, 1, 1, 0, 1, 0])
        >>> round(float(keras.ops.sigmoid(layer(logit))[0, 0]), 4)  # 3 of 4
        0.75

    Reference:
        Platt, "Probabilistic Outputs for Support Vector Machines and
        Comparisons to Regularized Likelihood Methods", 1999.
    """

    def __init__(self, smooth_targets=True, **kwargs):
        super().__init__(**kwargs)
        self.smooth_targets = smooth_targets

    def build_weights(self):
        self.slope = self.add_weight((), "ones", name="slope")
        self.intercept = self.add_weight((), "zeros", name="intercept")

    def degrees_of_freedom(self, num_classes):
        return 2

    def as_affine(self, num_classes):
        slope, intercept = (
            float(ops.convert_to_numpy(w)) for w in (self.slope, self.intercept)
        )
        if num_classes == 1:
            return np.array(slope), np.array([intercept])
        half = np.array([-0.5, 0.5])
        return slope * np.outer([-1.0, 1.0], half), intercept * half

    def fit(self, logits, labels, weight, objective):
        log_odds, targets = log_odds_of(logits, labels)
        features = np.stack([log_odds, np.ones_like(log_odds)], axis=1)
        smooth = self.smooth_targets
        while True:
            aims = platt_targets(labels, weight) if smooth else targets
            theta, _ = fit_logistic(features, aims, [1.0, 0.0], weight)
            nll = binary_nll(features @ theta, targets, weight)
            if smooth or nll > 1e-8:
                break
            smooth = True  # separable: the slope would grow without end
        nll_before = binary_nll(log_odds, targets, weight)
        if nll > nll_before:  # smooth targets can ask for that
            theta, nll = (1.0, 0.0), nll_before
        slope, intercept = theta
        record = {
            "slope": float(slope),
            "intercept": float(intercept),
            "smooth_targets": smooth,
            "nll_before": nll_before,
            "nll_after": nll,
        }
        return {"slope": slope, "intercept": intercept}, record

    def bend(self, log_odds):
        return self.slope * log_odds + self.intercept

    def get_config(self):
        config = {"smooth_targets": self.smooth_targets}
        return {**super().get_config(), **config}
