"""The base of the affine maps: scores `x W + b`, fitted as a regression."""

import dataclasses
from typing import Any

import numpy as np
from keras import ops

from keras_calib._warning import warn
from keras_calib.inputs import arrays
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.large import by_rows
from keras_calib.layers._formula import FormulaCalibration
from keras_calib.layers._logit_ops import normalized
from keras_calib.layers._objectives import NegativeLogLikelihoodObjective
from keras_calib.layers._objectives import Objective
from keras_calib.solvers import multinomial_regression as regression
from keras_calib.solvers.blocks import normalized_weights
from keras_calib.solvers.evidence import average_by_evidence
from keras_calib.solvers.evidence import minimize_around
from keras_calib.solvers.regression_problems import RIDGE
from keras_calib.solvers.regression_problems import SMALL
from keras_calib.solvers.regression_problems import DiagonalProblem
from keras_calib.solvers.temperature import ALL_CORRECT
from keras_calib.solvers.temperature import fit_temperature
from keras_calib.solvers.temperature_posterior import cautious_scale
from keras_calib.solvers.temperature_posterior import effective_weights

NORMALIZATIONS = ("auto", None, "log_softmax", "mean")
# Newton stops at a gradient this small, in units of the logits.
TOLERANCE = {"float32": 1e-6, "float64": 1e-9}


class AffineCalibration(FormulaCalibration):
    """Base of the maps `x W + b` of logits, or of normalized logits `x`.

    The fit is here. A subclass creates its variables, at the identity
    (`_add_weights`), applies them (`_transform`, `_matrix_and_bias`), and
    computes them from the parameters of the regression (`_weights`). One
    sigmoid unit is two classes with the logits `(0, z)`, before and after.

    Args:
        normalize_logits: `None` for the logits as they are; `"log_softmax"` or
            `"mean"` to subtract their log-sum-exp or mean first. Adding a
            constant to all logits of a sample then changes nothing, so that
            `log p` can replace logits. `"auto"` is `"log_softmax"` with
            `regularization="auto"`, else `None`.
        regularization: `"auto"` for the average of ridge fits around
            temperature scaling (`solvers.evidence`); the subclasses document
            other values.
        **kwargs: `record`, `name`, `dtype`, `trainable`.
    """

    objectives: tuple[str, ...] = ("nll", "label_smoothing", "focal", "loss")
    settings: tuple[str, ...] = ("regularization", "normalize_logits")
    of_classes = True
    # Which deviations from temperature scaling, of slopes and of biases, are
    # free together in the ridge fits of `regularization="auto"`.
    _paths: tuple = ()
    # The regression, and arguments of it.
    _problem: Any = DiagonalProblem
    _options: dict = {}
    _average: Any = staticmethod(average_by_evidence)
    _minimize_around: Any = staticmethod(minimize_around)
    # Newton steps of a fit without slopes that are bounded.
    most_steps = regression.MAX_ITERATIONS
    # Whether slopes stay within the bounds of a temperature.
    _slopes_bounded = False

    def __init__(
        self,
        *,
        regularization: Any = None,
        normalize_logits: str | None = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.regularization = regularization
        require_one_of(NORMALIZATIONS, normalize_logits=normalize_logits)
        if normalize_logits == "auto":
            shrinks = regularization == "auto"
            normalize_logits = "log_softmax" if shrinks else None
        self.normalize_logits = normalize_logits
        self.shift_invariant = normalize_logits is not None

    def build(self, input_shape: tuple) -> None:
        self._add_weights(max(2, input_shape[-1]))
        self.built = True

    def degrees_of_freedom(self, num_classes: int) -> int:
        return self._scaled(max(2, num_classes), 1.0).size

    def _scaled(self, num_classes, temperature):
        """The parameters that are temperature scaling."""
        w = np.full(num_classes, 1 / temperature)
        return np.stack([w, np.zeros_like(w)])

    def _free(self, present):
        """1.0 for each parameter that the classes with samples determine."""
        return np.stack([present, present])

    def _penalty(self, start, temperature, num_samples):
        """Strength of the penalty on each parameter, and its center."""
        return np.full(start.shape, RIDGE), start

    def _findings(self, parameters):
        """What the record contains of the parameters."""
        return {}

    def _map(self, logits, w, xp):
        x = normalized(logits, self.normalize_logits, xp)
        return self._transform(x, w, xp)

    def as_affine(self, num_classes: int) -> tuple | None:
        if self.normalize_logits == "log_softmax":
            return None
        matrix, bias = map(ops.convert_to_numpy, self._matrix_and_bias())
        mean, unit = self.normalize_logits == "mean", num_classes == 1
        if matrix.ndim < 2 and (mean or unit):
            matrix = np.eye(len(bias)) * matrix
        if mean:
            matrix = matrix - matrix.mean(axis=0)
        if unit:
            return matrix[1, 1:] - matrix[1, :1], bias[1:] - bias[:1]
        return matrix, bias

    def solve(
        self,
        logits: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray,
        objective: Objective,
    ) -> tuple[dict, dict]:
        n, num_classes = logits.shape
        if n < 2:
            raise ValueError(
                f"{type(self).__name__} learns several numbers and needs at "
                "least 2 samples. Received: 1. Use `TemperatureScaling`."
            )
        self._check(logits)
        smoothing = objective.smoothing
        tempered = fit_temperature(logits, labels, weights, smoothing)
        correct = tempered.stop_reason == ALL_CORRECT
        absent = np.zeros(num_classes, bool)
        if not smoothing:
            absent = np.bincount(labels, minlength=num_classes) == 0
        if self.regularization == "auto" and not correct:
            found, record = self._around_temperature(
                logits, labels, weights, objective, tempered
            )
            return found, {**record, **_named(absent)}
        start = self._scaled(num_classes, tempered.temperature)
        if correct:
            return self._weights(start), self._all_correct(tempered)
        x = self._inputs(logits)
        problem = self._regression(
            x,
            labels,
            weights,
            smoothing,
            start,
            tempered.temperature,
            1.0 - absent,
        )
        # Against a class that stays, the others cannot be scaled up.
        has_optimum = smoothing or problem.ridge.max() > RIDGE or absent.any()
        scale = regression.unit_of(x)
        tolerance = TOLERANCE[x.dtype.name] * scale
        data = objective, labels, weights
        found = self._solve(problem, start, tolerance, has_optimum, *data)
        parameters = problem.settle(found.parameters)
        limits = self._limits(parameters, absent)
        self._warn(found, absent, scale, limits)
        record = self._record(objective, problem, tempered, found)
        if limits:
            record["stop_reason"] = "limit"
        record |= {**_named(absent), **self._findings(parameters)}
        return self._weights(parameters), record

    def _around_temperature(self, logits, labels, weights, objective, tempered):
        """The average of ridge fits; temperature scaling is among them."""
        temperature = tempered.temperature

        def inputs():
            x = self._inputs(logits)
            return by_rows(lambda rows: rows / x.dtype.type(temperature), x)

        smoothing = objective.smoothing
        bounds = -np.inf, np.inf
        if self._slopes_bounded:
            bounds = tuple(temperature * slope for slope in regression.SLOPES)
        factor = 1.0
        if objective.is_plain_nll and tempered.stop_reason is None:
            effective, _ = effective_weights(
                logits, labels, weights, temperature, group=self._groups
            )
            factor = cautious_scale(logits, labels, effective, temperature)
        # Nothing here holds the inputs, so that the fit can let them go.
        average = self._average(
            inputs(),
            labels,
            weights,
            self._paths,
            smoothing=smoothing,
            bounds=bounds,
            factor=factor,
            group=self._groups,
        )
        parameters, value = average.parameters, average.value
        if not isinstance(objective, NegativeLogLikelihoodObjective):
            found = self._minimize_around(
                inputs(), labels, weights, objective, average
            )
            parameters, value = found.parameters, found.value
            if self._slopes_bounded:
                parameters[0] = np.clip(parameters[0], *bounds)
        parameters[:-1] /= temperature
        record = {"objective_value": value}
        if objective.is_plain_nll:
            record = {"nll_before": tempered.nll_before, "nll_after": value}
        limits = self._limits(parameters, np.zeros(logits.shape[1], bool))
        if limits:
            self._warn_of_limits(limits)
            record["stop_reason"] = "limit"
        return self._weights(parameters), {
            **record,
            "iterations": average.iterations,
            "temperature_scaling_probability": average.plain,
            "log_evidence": average.log_evidence,
            "scale_width": average.scale_width,
            "bias_width": average.bias_width,
            "matrix_width": average.matrix_width,
            "dispersion": average.dispersion,
            "scale_factor": factor,
            **self._findings(parameters),
        }

    def _regression(
        self, x, labels, weights, smoothing, start, temperature, present
    ):
        """The regression problem, which starts from temperature scaling."""
        ridge, center = self._penalty(start, temperature, float(weights.sum()))
        return self._problem(
            x,
            labels,
            normalized_weights(weights, len(x)),
            smoothing,
            free=self._free(present),
            ridge=ridge,
            center=center,
            **self._options,
        )

    def _solve(
        self, problem, start, tolerance, has_optimum, objective, labels, weights
    ):
        """Minimize the likelihood, and from there any other objective."""
        if self._slopes_bounded:
            found = regression.fit_within_bounds(problem, start, tolerance)
        else:
            found = regression.fit_regression(
                problem,
                start,
                tolerance,
                None if has_optimum else labels,
                self.most_steps,
            )
        if not isinstance(objective, NegativeLogLikelihoodObjective):
            found = regression.fit_objective(
                problem, objective, labels, weights, found.parameters
            )
            if self._slopes_bounded:
                slopes = np.clip(found.parameters[0], *regression.SLOPES)
                if (slopes != found.parameters[0]).any():
                    found.parameters[0] = slopes
                    value, _ = objective.value_and_gradient(
                        problem.scores(found.parameters), labels, weights
                    )
                    value += problem.penalty(found.parameters)
                    found = dataclasses.replace(found, value=value)
        return found

    def _limits(self, parameters, absent):
        """The temperatures at which a bound stopped the fit."""
        if not self._slopes_bounded:
            return []
        slopes = parameters[0][~absent]
        return [
            1 / bound
            for bound in regression.SLOPES
            if np.isclose(slopes, bound, rtol=1e-9).any()
        ]

    def _warn(self, found, absent, scale, limits):
        name = type(self).__name__
        if absent.any():
            warn(
                f"{absent.sum()} classes have no calibration sample (first: "
                f"{absent.argmax()}): their own parameters stay at the common "
                "temperature."
            )
        if found.separated:
            warn(
                f"{name} now classifies every calibration sample correctly, so "
                "the negative log-likelihood has no minimum. The fit was "
                "stopped there; use regularization or more calibration data."
            )
        elif limits:
            self._warn_of_limits(limits)
        elif not found.converged and found.gradient > 1e-4 * scale:
            warn(
                f"The fit of {name} stopped at a gradient of "
                f"{found.gradient:.1e}. Classes may be separable: use more "
                "calibration data or regularization."
            )

    def _warn_of_limits(self, limits):
        shown = " and ".join(f"{limit:g}" for limit in limits)
        warn(
            f"{type(self).__name__} was stopped at a temperature of {shown}: "
            "the best one lies outside [0.01, 100]. Check the scale of the "
            "logits, and that labels and logits belong together."
        )

    def _record(self, objective, problem, tempered, found):
        record = {"objective_value": found.value}
        if objective.is_plain_nll:
            penalty = problem.penalty(found.parameters)
            record = {
                "nll_before": tempered.nll_before,
                "nll_after": found.value - penalty,
            }
        record["iterations"] = found.iterations
        record["largest_gradient"] = found.gradient
        if found.separated:
            record["stop_reason"] = ALL_CORRECT
        return record

    def _all_correct(self, tempered):
        warn(
            "All calibration samples are predicted correctly, so the negative "
            "log-likelihood has no minimum (it falls to 0 with the "
            f"temperature). The temperature {tempered.temperature:.4g} is "
            "used, at most 1. Add harder or more calibration data."
        )
        return {
            "nll_before": tempered.nll_before,
            "nll_after": tempered.nll_after,
            "stop_reason": tempered.stop_reason,
        }

    def _check(self, logits):
        """Raise if the fit is impossible."""
        if self.normalize_logits == "mean":
            self._refuse_ruled_out(logits)

    def _inputs(self, logits):
        """The inputs of the regression, as float64 unless they are large."""
        if logits.size <= SMALL:
            logits = logits.astype("float64")
        if self.normalize_logits == "log_softmax":
            return arrays.log_softmax(logits)
        if self.normalize_logits == "mean":
            return by_rows(lambda rows: normalized(rows, "mean", np), logits)
        if np.isneginf(logits.min()):
            # A probability of 0 times this is 0.
            return by_rows(lambda rows: np.maximum(rows, LOWEST), logits)
        return logits

    def _refuse_ruled_out(self, logits):
        if np.isneginf(logits.min()):
            raise ValueError(
                f"{type(self).__name__} mixes the logits of all classes, and "
                "cannot mix a logit of minus infinity. Use "
                "`DirichletScaling`, or give such classes a finite logit."
            )


def _named(absent):
    """The part of a record that names classes without a sample."""
    found = np.flatnonzero(absent).tolist()
    return {"absent_classes": found} if found else {}


def check_regularization(value, names, *, numbers=True):
    """Raise unless it is `None`, one of the names, or a number >= 0."""
    if value is None or (isinstance(value, str) and value in names):
        return
    if not numbers or not is_number(value) or not value >= 0:
        allowed = ", ".join(["None", *(f'"{name}"' for name in names)])
        allowed += " or a number >= 0" if numbers else ""
        raise ValueError(
            f"`regularization` must be one of {allowed}. "
            f"Received: regularization={value!r}."
        )
