"""Callbacks: what to watch, and what to change, while a model trains."""

from keras_calib.callbacks.adafocal_schedule import AdaFocalSchedule
from keras_calib.callbacks.calibration_monitor import CalibrationMonitor
from keras_calib.callbacks.correctness_history import CorrectnessHistory

__all__ = ["AdaFocalSchedule", "CalibrationMonitor", "CorrectnessHistory"]
