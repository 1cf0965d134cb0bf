"""Temperature scaling: one number that divides every logit."""

import dataclasses
from collections.abc import Callable
from typing import Any
from typing import Self

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib._warning import warn
from keras_calib.inputs.arguments import require_positive
from keras_calib.inputs.arrays import two_classes
from keras_calib.inputs.calibration_rows import checked_rows
from keras_calib.inputs.predictions import as_samples
from keras_calib.inputs.tensors import at_least_float32
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._objectives import Objective
from keras_calib.solvers.temperature import ALL_CORRECT
from keras_calib.solvers.temperature import fit_temperature
from keras_calib.solvers.temperature_search import ends_at
from keras_calib.solvers.temperature_search import search_temperature
from keras_calib.solvers.temperature_stream import fit_temperature_in_stream

REASONS = {
    ALL_CORRECT: (
        "every calibration sample is predicted correctly, so the negative "
        "log-likelihood falls as T goes to 0. T is then at most 1, and as low "
        "as so many right predictions allow. Use samples that the network was "
        "not trained on, or more of them."
    ),
    "chance": (
        "the predictions on the calibration data are no better than chance, "
        "so the negative log-likelihood falls as T goes to infinity. Check "
        "that labels and logits belong together."
    ),
    "limit": (
        "the best temperature lies outside [0.01, 100]. Check the scale of the "
        "logits."
    ),
    "constant": "the logits do not differ between classes, so T has no effect.",
}


@keras.saving.register_keras_serializable(package="keras_calib")
class TemperatureScaling(CalibrationLayer):
    """Divide logits by a temperature: `z' = z / T`.

    `adapt` minimizes the negative log-likelihood, a convex problem in `1 / T`:

        mean_i -log softmax(z_i / T)[y_i]

    `T` stays in `[0.01, 100]`; a fit that stops at a bound warns and gives the
    reason. If all `n` samples are predicted correctly, this has no minimum.
    Then `1 / (2 (n + 1))` of each label is spread over the classes, `T` is at
    most 1, and a warning says so.

    Other objectives are minimized by a search, which for calibration errors
    stays in `[0.1, 10]` and warns at the ends of the range: with
    `"soft_binned_ece"` this is TS-SB-ECE, with `"ece"` TS-HB-ECE. Predicted
    classes do not change.

    Args:
        temperature: float > 0, the temperature before `adapt`; 1 is the
            identity.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: `(..., num_classes)`, or `(..., 1)` before one sigmoid.

    Returns:
        Calibrated logits, of the shape of `logits`.

    Raises:
        ValueError: if `temperature` is not positive.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> logits = np.array([[2.0, 0], [2.0, 0], [2.0, 0], [0, 2.0]])
        >>> layer = kc.layers.TemperatureScaling()
        >>> layer = layer.adapt(logits, labels=[0, 0, 1, 1])  # 3 of 4 right
        >>> round(layer.temperature, 4)  # 2 / log 3
        1.8205

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        Section 4.2, eq. 9. TS-SB-ECE and TS-HB-ECE: Karandikar et al., "Soft
        Calibration Objectives for Neural Networks", NeurIPS 2021.
    """

    preserves_accuracy = True
    shift_invariant = True
    by_element = True
    objectives = (
        "nll",
        "label_smoothing",
        "focal",
        "soft_binned_ece",
        "ece",
        "loss",
    )

    def __init__(self, *, temperature: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require_positive(temperature=temperature)
        self._initial_temperature = temperature

    def build(self, input_shape: tuple) -> None:
        self._add("log_temperature", np.log(self._initial_temperature))
        self.built = True

    @property
    def temperature(self) -> float:
        """The temperature as a float."""
        if not self.built:
            return float(self._initial_temperature)
        return float(np.exp(ops.convert_to_numpy(self.log_temperature)))

    def degrees_of_freedom(self, num_classes: int) -> int:
        return 1

    def as_affine(self, num_classes: int) -> tuple:
        return np.array(1 / self.temperature), np.zeros(num_classes)

    def solve(
        self,
        logits: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray,
        objective: Objective,
    ) -> tuple[dict, dict]:
        temperature, record = solve_temperature(
            logits, labels, weights, objective
        )
        return {"log_temperature": np.log(temperature)}, record

    def adapt_to_blocks(
        self, read: Callable, *, ignore_class: int | None = None
    ) -> Self:
        """`adapt` to logits that no memory holds, such as those of tokens.

        The result is that of `adapt` by NLL. Every step of the fit reads all
        blocks again, three or four times as a rule, and keeps none.

        Args:
            read: function without arguments that returns an iterable of blocks
                `(logits, labels)` or `(logits, labels, sample_weight)`, see
                `adapt`; the same samples at every call. Weights of all blocks
                are on one scale.
            ignore_class: samples with this label are ignored.

        Returns:
            The layer itself.

        Raises:
            ValueError: for invalid input, soft labels, or if there is no
                sample; the layer is then unchanged.

        Example:
            >>> import numpy as np, keras_calib as kc
            >>> def read():
            ...     rng = np.random.default_rng(0)
            ...     for _ in range(8):
            ...         z = 2 * rng.normal(size=(4, 16, 1000))
            ...         yield z, (z / 2 + rng.gumbel(size=z.shape)).argmax(-1)
            >>> layer = kc.layers.TemperatureScaling().adapt_to_blocks(read)
            >>> bool(1.8 < layer.temperature < 2.2)
            True
        """

        def checked():
            for block in read():
                yield _checked(block, ignore_class)

        return self.adapt_to_checked_blocks(checked)

    def adapt_to_checked_blocks(self, read: Callable) -> Self:
        """`adapt_to_blocks` to `(logits, labels, weights)` that were read.

        Args:
            read: see `adapt_to_blocks`; rows as in `CalibrationRows`.

        Returns:
            The layer itself.

        Raises:
            ValueError: if there is no sample; the layer is then unchanged.
        """
        temperature, record = solve_temperature_in_blocks(read)
        self._assign({"log_temperature": np.log(temperature)}, 1)
        self.record = record
        return self

    def call(self, logits: Tensor) -> Tensor:
        return at_least_float32(logits) / ops.exp(self.log_temperature)

    def get_config(self) -> dict:
        # The start; the fitted temperature is a weight.
        return {
            **super().get_config(),
            "temperature": self._initial_temperature,
        }


def solve_temperature(logits, labels, weights, objective, start=None):
    """The temperature that minimizes an objective, and the record of its fit.

    Newton's method for a cross-entropy, otherwise a search. Warns where either
    stops at a bound. With a `start`, a temperature near the minimizer, the
    record lacks the NLL before.
    """
    data = logits, labels, weights
    if not objective.is_cross_entropy:
        temperature, value = search_temperature(*data, objective)
        end = ends_at(temperature, objective)
        if end is not None:
            text = (
                f"the objective {objective.title!r} is smallest there, and "
                f"beyond {end:g} nothing was tried. Check the scale of the "
                "logits, and that labels and logits belong together; "
                "predictions that are all right, or no better than chance, "
                "have no best temperature."
            )
            _warn(temperature, text)
        return temperature, {
            "temperature": temperature,
            "objective_value": value,
            "stop_reason": "limit" if end else None,
        }
    before = start is None
    found = fit_temperature(*data, objective.smoothing, start, before=before)
    if found.stop_reason is not None:
        _warn(found.temperature, REASONS[found.stop_reason])
    record = dataclasses.asdict(found)
    if objective.smoothing:
        # The minimum is not an NLL.
        record["objective_value"] = record.pop("nll_after")
        del record["nll_before"]
    return found.temperature, record


def solve_temperature_in_blocks(read):
    """Temperature and record of a fit by NLL; see `adapt_to_checked_blocks`."""
    counts = []

    def blocks():
        counts.clear()
        for logits, labels, weights in read():
            counts.append(len(labels))
            if logits.shape[1] == 1:
                logits = two_classes(logits)
            if len(labels):
                yield logits, labels, weights
        if not sum(counts):
            raise ValueError(
                "There is no calibration sample to fit to. Received: "
                f"{len(counts)} blocks without a sample that has a weight "
                "above 0 and a label that counts. `read` must return a new "
                "iterator at every call."
            )

    found, num_passes = fit_temperature_in_stream(blocks)
    if found.stop_reason is not None:
        _warn(found.temperature, REASONS[found.stop_reason])
    return found.temperature, {
        "num_samples": sum(counts),
        "objective": "nll",
        "objective_arguments": {},
        "class_loss_scaling": None,
        **dataclasses.asdict(found),
        "num_passes": num_passes,
    }


def _warn(temperature, text):
    warn(f"The temperature was set to {temperature:.4g}: {text}")


def _checked(block, ignore_class):
    """A block's rows that count, and their weights as they came."""
    logits, labels, weights, *_ = as_samples(*block, ignore_class=ignore_class)
    if labels.ndim > 1:
        raise ValueError(
            "A fit in blocks needs one class per sample. Received: soft "
            "labels. Pass class ids, or all samples to `adapt`."
        )
    if weights is None:
        weights = np.ones(len(labels))
    if len(labels):
        logits = checked_rows(logits, labels).logits
    return logits, labels, weights
