"""The base of the layers that turn calibrated logits into decisions."""

from typing import Any
from typing import Self

import numpy as np
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs import arrays
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.calibration_rows import read_rows
from keras_calib.inputs.tensors import at_least_float32
from keras_calib.layers._recorded import RecordedLayer
from keras_calib.layers._recorded import plain_values

# Fraction of the rows on which a setting is chosen, where one is.
TUNING = 0.2


class DecisionLayer(RecordedLayer):
    """Base of the layers that put calibrated logits to use.

    A guarantee holds for rows like those of `adapt`, which must be independent
    of everything that was fitted before: the network, its temperature, and the
    choice of the calibration layer.

    Args:
        **kwargs: `record`, `name`, as in `RecordedLayer`.
    """

    # A threshold for some classes says nothing of others.
    of_classes = True
    # Whether the first output is class scores.
    gives_scores = False

    def adapt(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        ignore_class: int | None = None,
    ) -> Self:
        """Fit the layer to data that nothing else was fitted to.

        Args:
            logits: calibrated logits, `(n, num_classes)`, or `(n, 1)` before
                one sigmoid.
            labels: class ids, `(n,)`, or one-hot rows.
            sample_weight: `None`, or weights that are all equal or 0: rows of
                weight 0 are left out.
            ignore_class: rows with this label are left out.

        Returns:
            The layer itself.

        Raises:
            ValueError: for invalid input, several rows per sample (pixels,
                tokens), soft labels or unequal weights, which void the
                guarantee; the layer is then unchanged.
        """
        scores: Any = as_array(logits)
        if scores.ndim > 2:
            raise ValueError(
                "The guarantee needs independent rows, which the pixels of an "
                "image and the tokens of a text are not. Received: logits of "
                f"shape {scores.shape}. Pass one row per sample."
            )
        rows = read_rows(scores, labels, sample_weight, ignore_class)
        self.check_inputs(rows.logits)
        if len(rows.labels) != rows.num_samples:
            raise ValueError(
                "The guarantee is about labels that are right or wrong. "
                "Received: soft labels. Pass class ids."
            )
        if rows.weights is not None:
            raise ValueError(
                "The guarantee holds for samples of equal weight. Received: "
                "unequal `sample_weight`. Leave it out."
            )
        z = rows.logits.astype("float64")
        if z.shape[1] == 1:
            z = arrays.two_classes(z)
        weights, record = self.solve(z, rows.labels)
        if not self.built:
            self.build((None, rows.logits.shape[1]))
        for name, value in weights.items():
            getattr(self, name).assign(value)
        self.record = {"num_samples": rows.num_samples, **plain_values(record)}
        return self

    def solve(self, logits: np.ndarray, labels: np.ndarray) -> tuple:
        """Find the weights without setting them.

        Args:
            logits: float64, `(n, num_classes)`.
            labels: int32, `(n,)`.

        Returns:
            weights: dict from weight name to a number.
            record: dict of JSON values.
        """
        raise NotImplementedError


def classes(logits: Tensor) -> Tensor:
    """Logits of two classes or more, as floats."""
    # Keras does not cast what are no floats.
    logits = at_least_float32(logits)
    if logits.shape[-1] > 1:
        return logits
    return ops.concatenate([ops.zeros_like(logits), logits], axis=-1)
