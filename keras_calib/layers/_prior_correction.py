"""Calibrated logits for other class frequencies (label shift)."""

from typing import Any

import keras
import numpy as np

from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import in_class_order
from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import as_floats
from keras_calib.layers._logit_ops import on_pairs
from keras_calib.layers._recorded import RecordedLayer


@keras.saving.register_keras_serializable(package="keras_calib")
class PriorCorrection(RecordedLayer):
    """Move calibrated logits from one prior of the classes to another.

    For label shift, where the inputs of each class are distributed as before
    and only the class frequencies move from a source prior s to a target prior
    q, the correction of calibrated logits is a bias per class:

        z'_k = z_k + log q_k - log s_k

    A class with `q_k = 0` gets a logit of -1e30, so that its probability is 0.
    `kc.adjust_prior` puts this layer into a model.

    Args:
        source_prior: list of floats, s, `(num_classes,)`; two for one sigmoid
            unit. It sums to one. Or a dict or pandas Series by class id.
        target_prior: list of floats, q, of the same shape.
        **kwargs: `record`, `name`, `dtype`, `trainable`.

    Call arguments:
        logits: calibrated logits or log-probabilities, `(..., num_classes)`,
            or `(..., 1)` before one sigmoid.

    Returns:
        The corrected logits, in the shape of the input.

    Raises:
        ValueError: if the priors are no probabilities of the same classes.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> layer = kc.layers.PriorCorrection(
        ...     source_prior=[0.5, 0.5], target_prior=[0.9, 0.1]
        ... )
        >>> logits = layer(np.log([[0.3, 0.7]]))
        >>> p = np.exp(logits) / np.exp(logits).sum()
        >>> round(float(p[0, 0]), 6)
        0.794118

    Reference:
        Saerens et al., "Adjusting the Outputs of a Classifier to New a Priori
        Probabilities", Neural Computation 14, 2002.
    """

    # The output is logits.
    ends_in = "linear"
    of_classes = True
    settings = ("source_prior", "target_prior")

    def __init__(
        self,
        *,
        source_prior: Any,
        target_prior: Any,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("trainable", False)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.source_prior = as_prior(source_prior, "source_prior").tolist()
        self.target_prior = as_prior(
            target_prior, "target_prior", len(self.source_prior)
        ).tolist()

    def build(self, input_shape: tuple) -> None:
        num_classes = len(self.source_prior)
        if max(2, input_shape[-1]) != num_classes:
            raise ValueError(
                f"The priors are those of {num_classes} classes. Received: "
                f"logits of shape {tuple(input_shape)}."
            )
        self._add("bias", self._bias())
        self.built = True

    def _bias(self):
        """`log q_k - log s_k`; a class without probability is ruled out."""
        source, target = np.array(self.source_prior), self.target_prior
        with np.errstate(divide="ignore", invalid="ignore"):
            bias = np.log(target) - np.log(source)
        return np.where((source > 0) & np.isfinite(bias), bias, LOWEST)

    def call(self, logits: Tensor) -> Tensor:
        return on_pairs(lambda z: z + self.bias, logits)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape


def as_prior(prior: Any, name: str, num_classes: int | None = None) -> Any:
    """Probabilities of the classes, float64 with the sum 1, or `ValueError`."""
    received = in_class_order(prior, name)
    received = as_floats(received, f"`{name}`", "float64")
    shape = received.shape
    if len(shape) != 1 or shape[0] < 2 or num_classes not in (None, shape[0]):
        wanted = "a probability for each class"
        if num_classes is not None:
            wanted += f", {num_classes} of them"
        given = f"an array of shape {shape}"
        if len(shape) == 1:
            given = f"{shape[0]} numbers"
        raise ValueError(f"`{name}` must be {wanted}. Received: {given}.")
    total = received.sum()
    if not (received >= 0).all() or not abs(total - 1) < 1e-3:
        raise ValueError(
            f"`{name}` must not be negative and must sum to 1. Received: "
            f"values from {received.min():.6g} with the sum {total:.6g}. "
            "Divide counts by their sum."
        )
    return received / total
