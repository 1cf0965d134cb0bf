"""What the linear maps share: scores `x W + b`, fitted as a regression."""

import warnings

import numpy as np
from keras import ops

from keras_calib.inputs import arrays
from keras_calib.inputs.arrays import LOWEST
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._logit_ops import on_pairs
from keras_calib.layers._objectives import NegativeLogLikelihood
from keras_calib.solvers import regression
from keras_calib.solvers.regression import RIDGE
from keras_calib.solvers.temperature import BOUNDS
from keras_calib.solvers.temperature import fit_temperature
from keras_calib.solvers.weights import number_of_samples

NORMALIZATIONS = (None, "log_softmax", "mean")
# Newton stops at a gradient this small, in units of the logits.
TOLERANCE = {"float32": 1e-6, "float64": 1e-9}


class AffineCalibration(CalibrationLayer):
    """Base of the maps `x W + b` of logits, or of normalized logits `x`.

    A subclass says what its parameters are; the fit is here. One sigmoid unit
    is two classes with the logits `(0, z)`, before and after.

    Args:
        normalize_logits: `None` for the logits as they are; `"log_softmax"` or
            `"mean"` to subtract their log-sum-exp or mean first. Adding a
            constant to all logits of a sample then changes nothing, so that
            `log p` serves as well.
        **kwargs: `record`, `name`, `dtype`, `trainable`.
    """

    objectives = ("nll", "label_smoothing", "focal", "loss")

    def __init__(self, normalize_logits=None, **kwargs):
        super().__init__(**kwargs)
        if normalize_logits not in NORMALIZATIONS:
            raise ValueError(
                f"`normalize_logits` must be one of {NORMALIZATIONS}. "
                f"Received: {normalize_logits!r}."
            )
        self.normalize_logits = normalize_logits
        self.shift_invariant = normalize_logits is not None

    def build(self, input_shape):
        self._add_weights(max(2, input_shape[-1]))
        self.built = True

    def _add_weights(self, num_classes):
        """Create the variables, at the identity."""
        raise NotImplementedError

    def _transform(self, x):
        """The map itself, on normalized logits of at least two classes."""
        raise NotImplementedError

    def _matrix_and_bias(self):
        """The parameters as NumPy: a scalar, a diagonal or a matrix; bias."""
        raise NotImplementedError

    def _problem(self, x, labels, share, smoothing, temperature, free, samples):
        """The regression to solve, and where it starts."""
        raise NotImplementedError

    def _weights(self, parameters):
        """Parameters of the regression as the layer's weights."""
        raise NotImplementedError

    def call(self, logits):
        return on_pairs(
            lambda z: self._transform(_normalized(z, self.normalize_logits)),
            logits,
        )

    def as_affine(self, num_classes):
        if self.normalize_logits == "log_softmax":
            return None
        matrix, bias = self._matrix_and_bias()
        if self.normalize_logits == "mean":
            size = len(bias)
            if matrix.ndim < 2:
                matrix = np.eye(size) * matrix
            matrix = (np.eye(size) - 1 / size) @ matrix
        if num_classes == 1:
            if matrix.ndim < 2:
                matrix = np.eye(2) * matrix
            return matrix[1, 1:] - matrix[1, :1], bias[1:] - bias[:1]
        return matrix, bias

    def fit(self, logits, labels, weight, objective):
        n, num_classes = logits.shape
        if n < 2:
            raise ValueError(
                f"{type(self).__name__} learns several numbers and needs at "
                "least 2 samples. Received: 1. Use `TemperatureScaling`."
            )
        likelihood = NegativeLogLikelihood()
        if isinstance(objective, NegativeLogLikelihood):
            likelihood = objective
        x = self._inputs(logits)
        share = np.ones(n) if weight is None else weight
        share = share / share.sum()
        begin = fit_temperature(logits, labels, weight, likelihood.smoothing)
        if begin.stop_reason == "all correct":
            return self._separated(begin, num_classes)
        temperature = begin.temperature
        absent = np.zeros(num_classes, bool)
        if not likelihood.smoothing:
            absent = np.bincount(labels, minlength=num_classes) == 0
        problem, start = self._problem(
            x,
            labels,
            share,
            likelihood.smoothing,
            temperature,
            1.0 - absent,
            number_of_samples(labels, weight),
        )
        scale = float(np.sqrt(np.mean(np.square(x[:1000]))))
        scale = min(max(scale, 1.0), 100.0)
        tolerance = TOLERANCE[x.dtype.name] * scale
        held = likelihood.smoothing or problem.ridge.max() > RIDGE
        # Against a class that stays, the others cannot be scaled up.
        held = held or absent.any()
        found = self._minimize(
            problem, start, tolerance, None if held else labels
        )
        if likelihood is not objective:
            found = _other_objective(
                objective, problem, labels, weight, found, self._bounded
            )
        self._tell(found, absent, scale)
        record = {
            "nll_before": begin.nll_before,
            "nll_after": found.value - problem.penalty(found.parameters),
            "iterations": found.iterations,
            "largest_gradient": found.gradient,
        }
        if not objective.is_plain_nll:
            record = {**record, "objective_value": found.value}
            del record["nll_before"], record["nll_after"]
        if found.separated:
            record["stop_reason"] = "all correct"
        if absent.any():
            record["absent_classes"] = np.flatnonzero(absent).tolist()
        parameters = problem.settle(found.parameters)
        return self._weights(parameters), {
            **record,
            **self._findings(parameters),
        }

    # Whether slopes stay within what a temperature may be.
    _bounded = False

    def _findings(self, parameters):
        """What is worth telling of the parameters, for the record."""
        return {}

    def _inputs(self, logits):
        """What the regression sees, wide enough for its sums."""
        if logits.size <= regression.SMALL:
            logits = logits.astype("float64")
        if self.normalize_logits == "log_softmax":
            return arrays.log_softmax(logits)
        if self.normalize_logits == "mean":
            self._refuse_ruled_out(logits)
            return logits - logits.mean(axis=1, keepdims=True)
        if np.isneginf(logits.min()):
            # So that a probability of 0 times this is 0.
            return np.maximum(logits, LOWEST)
        return logits

    def _refuse_ruled_out(self, logits):
        if np.isneginf(logits.min()):
            raise ValueError(
                f"{type(self).__name__} mixes the logits of all classes, and "
                "cannot mix a logit of minus infinity. Use "
                "`DirichletScaling`, or give such classes a finite logit."
            )

    def _minimize(self, problem, start, tolerance, labels):
        if not self._bounded:
            return regression.minimize(problem, start, tolerance, labels)
        return _minimize_within_bounds(problem, start, tolerance)

    def _separated(self, begin, num_classes):
        warnings.warn(
            "Every calibration sample is predicted correctly, so the "
            "likelihood grows without end. The map was set to a temperature "
            f"of {begin.temperature:.4g}; use harder or more calibration data.",
            stacklevel=4,
        )
        w = np.full(num_classes, 1 / begin.temperature)
        record = {
            "nll_before": begin.nll_before,
            "nll_after": begin.nll_after,
            "stop_reason": begin.stop_reason,
        }
        return self._weights(self._start(w)), record

    def _start(self, w):
        """Parameters of the map that only scales."""
        return np.stack([w, np.zeros_like(w)])

    def _tell(self, found, absent, scale):
        if absent.any():
            warnings.warn(
                f"{absent.sum()} classes have no calibration sample (first: "
                f"{absent.argmax()}): their own parameters stay at the common "
                "temperature.",
                stacklevel=4,
            )
        if found.separated:
            warnings.warn(
                f"{type(self).__name__} has become right on every calibration "
                "sample, from where the likelihood grows without end. The fit "
                "was stopped there; use regularization or more calibration "
                "data.",
                stacklevel=4,
            )
        elif not found.converged and found.gradient > 1e-4 * scale:
            warnings.warn(
                f"The fit of {type(self).__name__} stopped at a gradient of "
                f"{found.gradient:.1e}. Classes may be separable: use more "
                "calibration data or regularization.",
                stacklevel=4,
            )

    def get_config(self):
        return {
            **super().get_config(),
            "normalize_logits": self.normalize_logits,
        }


def _normalized(logits, normalize_logits):
    if normalize_logits == "log_softmax":
        return ops.log_softmax(logits, axis=-1)
    if normalize_logits == "mean":
        return logits - ops.mean(logits, axis=-1, keepdims=True)
    return logits


def _minimize_within_bounds(problem, start, tolerance):
    """Hold the slopes that leave the bounds, release those that want back."""
    low, high = 1 / BOUNDS[1], 1 / BOUNDS[0]
    free = problem.free
    for _ in range(20):
        found = regression.minimize(problem, start, tolerance)
        w = found.parameters[0]
        outside = (problem.free[0] > 0) & ((w < low) | (w > high))
        held = (problem.free[0] == 0) & (free[0] > 0)
        back = held
        if held.any():
            slope = problem.slopes(found.parameters)[0]
            inwards = np.where(w <= low, slope < -tolerance, slope > tolerance)
            back = held & inwards
        if not (outside.any() or back.any()):
            break
        start = found.parameters.copy()
        start[0] = np.clip(w, low, high)
        mask = problem.free.copy()
        mask[0] = np.where(outside, 0.0, np.where(back, 1.0, mask[0]))
        problem.free = mask
    return found


def _other_objective(objective, problem, labels, weight, begin, bounded):
    """Minimise a smooth objective from the optimum of the likelihood."""

    def function(parameters):
        value, gradient = objective.value_and_gradient(
            problem.scores(parameters), labels, weight
        )
        value += problem.penalty(parameters)
        return value, problem.chain(gradient, parameters)

    found = regression.lbfgs(function, begin.parameters, problem.precondition)
    if bounded:
        found.parameters[0] = np.clip(
            found.parameters[0], 1 / BOUNDS[1], 1 / BOUNDS[0]
        )
    return found
