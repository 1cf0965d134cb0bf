"""The layer that replaces a rejected one."""

import keras
import numpy as np

from keras_calib.layers._base import CalibrationLayer

# The method of a model that stays as it is.
UNCHANGED = "no_calibration"


@keras.saving.register_keras_serializable(package="keras_calib")
class NoCalibration(CalibrationLayer):
    """Logits as they are: no map on the calibration data was better.

    It carries the record of what was tried.

    Args:
        **kwargs: see `CalibrationLayer`.
    """

    preserves_accuracy = True
    shift_invariant = True

    def degrees_of_freedom(self, num_classes):
        return 0

    def as_affine(self, num_classes):
        return np.array(1.0), np.zeros(num_classes)

    def solve(self, logits, labels, weights, objective):
        return {}, {}

    def call(self, logits):
        return logits
