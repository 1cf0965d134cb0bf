"""A trained model and calibration data -> a calibrated model."""

from keras_calib.calibration._adjust_prior import adjust_prior
from keras_calib.calibration._calibrate import calibrate
from keras_calib.calibration._preprocessed import PreprocessedModel
from keras_calib.calibration._read_record import calibration_record
from keras_calib.keras_graph.calibrated_model import CalibratedModel

__all__ = [
    "CalibratedModel",
    "PreprocessedModel",
    "adjust_prior",
    "calibrate",
    "calibration_record",
]
