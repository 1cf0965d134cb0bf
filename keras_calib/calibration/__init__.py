"""A trained model and calibration data -> a calibrated model."""

from keras_calib.calibration.calibrate import calibrate
from keras_calib.calibration.calibrate import calibration_record
from keras_calib.calibration.model import CalibratedModel

__all__ = ["CalibratedModel", "calibrate", "calibration_record"]
