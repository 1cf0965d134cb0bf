"""A trained model and calibration data -> a calibrated model."""

from keras_calib.calibration._calibrate import calibrate
from keras_calib.calibration._calibrate import calibration_record
from keras_calib.keras_graph.calibrated_model import CalibratedModel

__all__ = ["CalibratedModel", "calibrate", "calibration_record"]
