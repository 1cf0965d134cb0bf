"""Calibration maps: layers on logits, fitted after training by `adapt`."""

from keras_calib.layers.base import CalibrationLayer
from keras_calib.layers.log_probabilities import LogProbabilities
from keras_calib.layers.temperature_scaling import TemperatureScaling

__all__ = ["CalibrationLayer", "LogProbabilities", "TemperatureScaling"]
