"""The base of maps whose fit starts from temperature scaling."""

import numpy as np

from keras_calib.layers._formula import FormulaCalibration
from keras_calib.layers._objectives import Objective
from keras_calib.layers._temperature_scaling import solve_temperature


class TemperedCalibration(FormulaCalibration):
    """Base of maps that are fitted after temperature scaling.

    A subclass has its fit (`_solve`, whose `tempered` is what
    `solve_temperature` returned) and its formula (`_map`).
    """

    # Whether `solve` is more than `_solve`, because it learns from folds.
    has_folds = False

    def solve(
        self,
        logits: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray,
        objective: Objective,
    ) -> tuple[dict, dict]:
        data = logits, labels, weights, objective
        return self._solve(*data, solve_temperature(*data))

    def _solve(self, logits, labels, weights, objective, tempered):
        """`solve`, after temperature scaling of the same data."""
        raise NotImplementedError
