"""The base of maps whose formula tensors and arrays share."""

import types
from typing import Any

import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs import arrays
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._class_loss_scaling import resolve_scaling
from keras_calib.layers._logit_ops import on_pairs
from keras_calib.layers._objectives import NegativeLogLikelihoodObjective
from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import row_blocks


class FormulaCalibration(CalibrationLayer):
    """Base of maps that can be fitted and applied without their variables.

    Folds need many small fits of which only the likelihood of some labels
    remains. They use NumPy: layers, and tensors of ever other sizes, would take
    most of the time.

    A subclass has its formula (`_map`).
    """

    def _map(self, logits, w, xp):
        """The map of two or more logits.

        Args:
            logits: tensor, `(..., num_classes)`, or float32 array.
            w: has the weights as attributes: the layer, or arrays.
            xp: `keras.ops` for tensors, `numpy` for arrays.
        """
        raise NotImplementedError

    def call(self, logits: Tensor) -> Tensor:
        return on_pairs(lambda z: self._map(z, self, ops), logits)

    def _log_q_without(
        self, inside: Any, rows: Any, outside: np.ndarray, scaling: Any = None
    ) -> np.ndarray:
        """Log-probabilities of labels that the map was not fitted to.

        The layer stays as it is.

        Args:
            inside: `CalibrationRows`, to which the map is fitted by likelihood.
            rows: `CalibrationRows`.
            outside: int indices of some of the rows, `(m,)`.
            scaling: as `class_loss_scaling` of `adapt`.

        Returns:
            float64, `(m,)`.

        Raises:
            ValueError: if the map cannot be fitted.
        """
        objective = NegativeLogLikelihoodObjective()
        scaling = resolve_scaling(scaling, self, objective)
        found, _ = self._found(inside, objective, scaling)
        logits = arrays.at_least_two(rows.logits)
        return self._log_q_with(found, logits, rows.labels, outside)

    def _log_q_with(self, found, logits, labels, rows, formula=None):
        """Log-probabilities of the labels of some rows, in NumPy.

        Args:
            found: the weights, as a fit returns them.
            logits: `(n, num_classes)`, at least two classes.
            labels: int class ids, `(n,)`.
            rows: int indices, `(m,)`.
            formula: in place of `_map`.

        Returns:
            float64, `(m,)`.

        Raises:
            ValueError: if a weight is not a finite number.
        """
        self._check_finite(found)
        w = types.SimpleNamespace(
            **{name: np.asarray(v, "float32") for name, v in found.items()}
        )
        formula = formula or self._map

        def scores(z):
            # As the layer, in float32, and as quiet about infinity.
            with np.errstate(all="ignore"):
                return formula(np.asarray(z, "float32"), w, np)

        return log_q_of_rows(scores, logits, labels, rows)


def tempered_log_q(logits, labels, rows, temperature):
    """Log-probabilities of the labels of some rows by temperature scaling."""
    return log_q_of_rows(lambda z: z / temperature, logits, labels, rows)


def log_q_of_rows(scores, logits, labels, rows):
    """Log-probabilities of the labels of some rows, block by block.

    Args:
        scores: function of logits.
        logits: `(n, num_classes)`.
        labels: int class ids, `(n,)`.
        rows: int indices, `(m,)`.

    Returns:
        float64, `(m,)`.
    """
    log_q = np.empty(len(rows))
    for block in row_blocks(len(rows), logits.shape[1], IN_CACHE):
        z, y = logits[rows[block]], labels[rows[block]]
        log_q[block] = arrays.log_softmax_of_labels(scores(z), y, "float64")
    return log_q
