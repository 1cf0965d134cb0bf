"""The base of the calibration layers, which adapt to data after training."""

from typing import Any
from typing import Self

import keras
import numpy as np
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import at_least_two
from keras_calib.inputs.arrays import log_softmax_of_labels
from keras_calib.inputs.calibration_rows import CalibrationRows
from keras_calib.inputs.calibration_rows import read_rows
from keras_calib.layers._class_loss_scaling import ClassLossScaling
from keras_calib.layers._class_loss_scaling import resolve_scaling
from keras_calib.layers._class_loss_scaling import solve_with_scaling
from keras_calib.layers._loss_objective import resolve_objective
from keras_calib.layers._objectives import NegativeLogLikelihoodObjective
from keras_calib.layers._objectives import Objective
from keras_calib.layers._recorded import RecordedLayer
from keras_calib.layers._recorded import plain_values
from keras_calib.solvers.blocks import TENSOR_BLOCK
from keras_calib.solvers.blocks import one_blas_thread
from keras_calib.solvers.blocks import row_blocks

# Smaller differences between recorded and computed NLL are float32 rounding.
ROUNDING = 1e-6


class CalibrationLayer(RecordedLayer):
    """Base of the calibration layers: logits in, calibrated logits out.

    A subclass starts as the identity and implements `solve`, which returns new
    weights instead of setting them. A failed fit therefore leaves the layer
    unchanged, also if it was not built.

    A Keras mask is passed on: it says which samples or tokens are used, and
    calibration does not change that. Layers compute in float32 also behind a
    network of half precision, or in float64 if that is their `dtype`.

    Args:
        record: dict of JSON values about the fit, which is saved with the
            layer; `None` before `adapt`.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Attributes:
        record: see above.
        preserves_accuracy: whether predictions never change.
        shift_invariant: whether a constant added to all logits of a sample
            changes nothing, so that `log p` can replace logits.
        binary_only: whether the layer is for two classes (or one sigmoid).
        objectives: names of the objectives that `solve` can minimize; `"loss"`
            is any loss object.
        fitted_by: `"likelihood"` if `solve` minimizes a mean of losses, so
            that class-wise loss scaling is defined; `"frequencies"` if it
            counts how often classes or predictions are correct.
        averages: whether the map is a mean over the temperatures that the
            samples leave open, so that its NLL on them is not the least.
        settings: names of the arguments that `get_config` saves.
        ends_in: `"linear"`, because the output is logits; `keras_graph`
            reads it.
    """

    preserves_accuracy = False
    shift_invariant = False
    binary_only = False
    objectives: tuple[str, ...] = ("nll",)
    fitted_by = "likelihood"
    averages = False
    ends_in = "linear"
    # Whether float32 can change the output so much that the record needs the
    # NLL of the output instead of the NLL of the float64 fit.
    _rounds = False
    # Ids of groups of rows, while a fit runs: folds keep them together, and
    # evidence counts them as less than their rows.
    _groups = None

    def __init__(self, *, record: dict | None = None, **kwargs: Any) -> None:
        super().__init__(record=record, **kwargs)
        self.supports_masking = True

    def degrees_of_freedom(self, num_classes: int) -> int:
        """Number of learned parameters, for the rule on sample size."""
        raise NotImplementedError

    def as_affine(self, num_classes: int) -> tuple | None:
        """The map as `logits @ matrix + bias`, for fusing into a head.

        Returns:
            matrix: a scalar, a diagonal `(num_classes,)` or
                `(num_classes, num_classes)`; NumPy.
            bias: `(num_classes,)`. Or `None` if the layer is not affine.
        """
        return None

    def solve(
        self,
        logits: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray,
        objective: Objective,
    ) -> tuple[dict, dict]:
        """Find the best weights without setting them.

        The layer may not be built yet.

        Args:
            logits: float array, `(n, num_classes)`, one row per sample.
            labels: int32 class ids, `(n,)`.
            weights: float64, `(n,)`; the sum is the number of samples, which
                is less than `n` for soft labels.
            objective: one of those in `objectives`.

        Returns:
            weights: dict from weight name to NumPy array.
            record: dict of JSON values about the fit, e.g. the temperature.
        """
        raise NotImplementedError

    def adapt(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        objective: str | Objective | keras.losses.Loss = "nll",
        class_loss_scaling: str | ClassLossScaling | None = None,
        ignore_class: int | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit the layer to calibration data, held out from training.

        Args:
            logits: network outputs before softmax, `(..., num_classes)`; or
                `(..., 1)` or `(n,)` before one sigmoid. Arrays, tensors,
                memory maps.
            labels: class ids, `(...)` or `(..., 1)`, or rows, `(...,
                num_classes)`: one-hot, or soft, for which the expected
                objective is minimized.
            sample_weight: `None`, or weights >= 0, which broadcast to `(...)`
                from the left. A constant factor changes nothing. Maps that
                shrink take unequal weights as fewer samples.
            objective: what to minimize: `"nll"`, `"label_smoothing"`,
                `"focal"`, `"soft_binned_ece"`, `"ece"`, an `Objective`, or a
                `keras.losses.Loss`; `objectives` lists the supported ones.
            class_loss_scaling: `None`; or `"normal"`, `"min_max"` or
                `"centered"`, or a `ClassLossScaling`, to weight each class's
                loss by its size relative to the other classes.
            ignore_class: samples with this label are ignored.
            groups: `None`, or the id of the group of each sample (patient,
                document), `(n,)`. Layers that learn from folds (`shrinkage=
                "auto"`) keep groups together, and those that average by
                evidence (`regularization="auto"`, `HistogramBinning`,
                `BayesianTemperatureScaling`) count a group whose samples are
                wrong together as less than its samples; by default the
                elements of a sample, such as the pixels of an image, are one.

        Returns:
            The layer itself.

        Raises:
            ValueError: for invalid input; the layer is then unchanged.

        Reference:
            Class-wise loss scaling: Jung et al., "Scaling of Class-wise
            Training Losses for Post-hoc Calibration", ICML 2023.
        """
        return self.adapt_to_rows(
            read_rows(logits, labels, sample_weight, ignore_class, groups),
            objective=objective,
            class_loss_scaling=class_loss_scaling,
        )

    def adapt_to_rows(
        self,
        rows: CalibrationRows,
        *,
        objective: str | Objective | keras.losses.Loss = "nll",
        class_loss_scaling: str | ClassLossScaling | None = None,
    ) -> Self:
        """`adapt` to data that is read once for several fits.

        Args:
            rows: `CalibrationRows`, see `read_rows`.
            objective: see `adapt`.
            class_loss_scaling: see `adapt`.

        Returns:
            The layer itself.

        Raises:
            ValueError: as `adapt`; the layer is then unchanged.
        """
        objective = resolve_objective(objective, self)
        scaling = resolve_scaling(class_loss_scaling, self, objective)
        found, record = self._found(rows, objective, scaling)
        check_value(record, objective)
        given, num_units = rows.logits, rows.logits.shape[-1]
        again = self._rounds and scaling is None and "nll_after" in record
        if again:
            as_it_was = self if self.built else self._unfitted(num_units)
            old = as_it_was.get_weights()
        self._assign(found, num_units)
        if again:
            try:
                nll = self._nll(given, rows.labels, rows.full_weights)
            except BaseException:
                self.set_weights(old)
                raise
            if abs(nll - record["nll_after"]) > ROUNDING:
                record["nll_after"] = nll
        self.record = {
            "num_samples": rows.num_samples,
            "objective": objective.title,
            "objective_arguments": objective.arguments(),
            "class_loss_scaling": scaling and scaling.normalization,
            **plain_values(record),
        }
        return self

    def _found(self, rows, objective, scaling):
        """Weights and record that fit the rows; the layer stays as it is."""
        given, num_units = rows.logits, rows.logits.shape[-1]
        check_objective(given, objective)
        if self.binary_only and num_units > 2:
            raise ValueError(
                f"{type(self).__name__} is for two classes. Received: logits "
                f"of {num_units} classes."
            )
        data = at_least_two(given), rows.labels, rows.full_weights, objective
        self._groups = rows.group
        try:
            with one_blas_thread():
                if scaling is None:
                    return self.solve(*data)
                # This layer stays as it is, also not built, until then.
                twin = self._unfitted(num_units)
                return solve_with_scaling(
                    self,
                    *data,
                    scaling,
                    lambda found, part: twin._scores(found, given[part]),
                )
        finally:
            self._groups = None

    def _unfitted(self, num_units):
        """A layer of the same settings, built."""
        twin = type(self).from_config(self.get_config())
        twin.build((None, num_units))
        return twin

    def _scores(self, weights, logits):
        """The output with other weights, which the layer does not keep."""
        self._check_finite(weights)
        values = [
            [weights.get(variable.name, variable) for variable in variables]
            for variables in (
                self.trainable_variables,
                self.non_trainable_variables,
            )
        ]
        # `stateless_call` does not cast its inputs.
        logits = ops.convert_to_tensor(logits, self.compute_dtype)
        scores, _ = self.stateless_call(*values, logits)
        return at_least_two(as_array(scores))

    def _nll(self, logits, labels, weights):
        """Mean negative log-likelihood of the output."""
        likelihood = NegativeLogLikelihoodObjective()
        losses = [
            likelihood.losses(
                at_least_two(as_array(self(logits[part]))), labels[part]
            )
            for part in row_blocks(*logits.shape)
        ]
        return float(np.average(np.concatenate(losses), weights=weights))

    def log_q_of_labels(
        self, logits: np.ndarray, labels: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """Log-probabilities that the map gives to the labels of some rows.

        In blocks of one size, because some backends compile for each size.

        Args:
            logits: `(n, num_classes)`, or one column for a sigmoid unit.
            labels: int class ids, `(n,)`.
            rows: int indices, `(m,)`.

        Returns:
            float64, `(m,)`.
        """
        size = 1 << (len(labels) // 5).bit_length()
        size = min(size, max(1, TENSOR_BLOCK // logits.shape[1]))
        log_q = np.empty(len(rows))
        for start in range(0, len(rows), size):
            block = np.resize(rows[start : start + size], size)
            scores = at_least_two(as_array(self(logits[block])))
            found = log_softmax_of_labels(scores, labels[block], "float64")
            log_q[start : start + size] = found[: len(rows) - start]
        return log_q

    def _check_finite(self, weights):
        for name, value in weights.items():
            if not np.isfinite(np.asarray(value, "float32")).all():
                raise ValueError(
                    f"The fit of {type(self).__name__} failed: its weight "
                    f"`{name}` is not a finite number. Check the calibration "
                    "data."
                )

    def _assign(self, weights, num_units):
        """Set weights by name: all of them, or none if one is invalid."""
        self._check_finite(weights)
        if not self.built:
            self.build((None, num_units))
        unknown = [name for name in weights if not hasattr(self, name)]
        if unknown:
            raise ValueError(
                f"`solve` of {type(self).__name__} must return weights that "
                f"`build` makes. Received: {', '.join(map(repr, unknown))}."
            )
        for name, value in weights.items():
            shape = tuple(getattr(self, name).shape)
            if np.shape(value) != shape:
                raise ValueError(
                    f"{type(self).__name__} was built for other logits: its "
                    f"weight `{name}` has shape {shape}. Received: "
                    f"{np.shape(value)}. Adapt a new layer."
                )
        for name, value in weights.items():
            getattr(self, name).assign(value)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape


def check_value(record, objective):
    """Raise if the objective has no finite value at what was found.

    Loss objects see minus infinity as a finite number, which is as large.
    """
    value = record.get("objective_value", 0.0)
    if not abs(value) < -LOWEST / 1e10:
        raise ValueError(
            "The objective must be a finite number. Received: "
            f"objective={objective.title!r}, whose value on the calibration "
            f"data is {value:.3g} at its best: it may ask for a class that the "
            "network rules out."
        )


def check_objective(logits, objective):
    """Raise if a class that is ruled out has a positive target."""
    if objective.smoothing and np.isneginf(logits.min()):
        raise ValueError(
            "Smoothed labels give every class a positive probability, also "
            "one that the network rules out: every loss is infinite. Received: "
            f'a logit of minus infinity, objective="{objective.name}". Use '
            'objective="nll", or give such classes a finite logit.'
        )
