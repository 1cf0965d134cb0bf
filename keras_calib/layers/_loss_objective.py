"""Loss objects as objectives, and the objective that `adapt` is given."""

from typing import Any

import keras
from keras import ops

from keras_calib.inputs.arguments import require_kind
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.tensors import maximum
from keras_calib.layers._objectives import NAMES
from keras_calib.layers._objectives import Array
from keras_calib.layers._objectives import Objective
from keras_calib.ops.gradients import value_and_gradient
from keras_calib.solvers.blocks import normalized_weights


class LossObjective(Objective):
    """Any loss object, on logits or on the probabilities it expects.

    All calibration samples are one batch, so a statistic of the batch is that
    of the calibration data.

    Args:
        loss: a `keras.losses.Loss`.

    Raises:
        ValueError: if `loss` is no loss object.
    """

    name = "loss"

    def __init__(self, loss: keras.losses.Loss) -> None:
        require_kind(keras.losses.Loss, "a loss object", loss=loss)
        self.loss: Any = loss
        config = loss.get_config()
        self.from_logits = config.get("from_logits", False)
        # Class ids for Keras' sparse losses, and for losses that read both.
        self.sparse = "sparse" in type(loss).__name__.lower() or (
            "ignore_class" in config
        )
        self.per_sample = not _has_batch_statistic(loss)

    @property
    def title(self) -> str:
        return type(self.loss).__name__

    def losses(self, scores: Array, labels: Array) -> Array:
        targets, predictions = self._loss_inputs(
            ops.convert_to_tensor(scores), labels
        )
        values = as_array(self.loss.call(targets, predictions))
        if values.shape != (len(labels),):
            raise ValueError(
                "Class-wise loss scaling needs one loss per sample. Received: "
                f"values of shape {values.shape} from "
                f"{type(self.loss).__name__}."
            )
        return values.astype("float64")

    def value(
        self, scores: Array, labels: Array, sample_weight: Array | None = None
    ) -> float:
        scores = ops.convert_to_tensor(scores)
        return float(as_array(self._mean(scores, labels, sample_weight)))

    def value_and_gradient(
        self, scores: Array, labels: Array, sample_weight: Array | None = None
    ) -> tuple[float, Array]:
        value, gradient = value_and_gradient(
            lambda tensor: self._mean(tensor, labels, sample_weight), scores
        )
        return float(value), gradient

    def _loss_inputs(self, scores, labels):
        targets = ops.convert_to_tensor(labels)
        # A target of 0 times minus infinity would not be a number.
        scores = maximum(scores, LOWEST)
        if not self.sparse:
            targets = ops.one_hot(targets, scores.shape[-1])
        if not self.from_logits:
            # This softmax carries its logits, so a Keras loss stays exact.
            scores = keras.activations.softmax(scores)
        return targets, scores

    def _mean(self, scores, labels, weights):
        if weights is not None:
            weights = len(labels) * normalized_weights(weights, len(labels))
            weights = weights.astype("float32")
        value = self.loss(*self._loss_inputs(scores, labels), weights)
        if self.loss.reduction == "sum":
            return value / len(labels)
        return ops.mean(value)


def resolve_objective(objective, layer):
    """The argument `objective` of `adapt` as an object.

    Args:
        objective: a name, an `Objective` or a `keras.losses.Loss`.
        layer: the calibration layer, which lists the supported objectives.

    Returns:
        `Objective`.

    Raises:
        ValueError: if the objective is unknown or not supported.
    """
    if isinstance(objective, str) and objective in NAMES:
        objective = NAMES[objective]()
    elif isinstance(objective, keras.losses.Loss):
        objective = LossObjective(objective)
    elif not isinstance(objective, Objective):
        raise ValueError(
            f"`objective` must be one of {sorted(NAMES)} or a loss object. "
            f"Received: objective={objective!r}."
        )
    if objective.name not in layer.objectives:
        supported = ", ".join(
            "a loss object" if name == "loss" else f'"{name}"'
            for name in layer.objectives
        )
        raise ValueError(
            f"{type(layer).__name__} cannot minimize this objective. "
            f'Received: objective="{objective.name}". It can minimize: '
            f"{supported}."
        )
    return objective


def _has_batch_statistic(loss):
    """Whether a loss, or the primary inside it, is one number per batch."""
    while loss is not None:
        if getattr(loss, "batch_statistic", False):
            return True
        loss = getattr(loss, "primary", None)
    return False
