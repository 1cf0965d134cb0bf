"""Callbacks: what to watch, and what to change, while a model trains."""

from keras_calib.callbacks._adafocal_schedule import AdaFocalSchedule
from keras_calib.callbacks._calibration_monitor import CalibrationMonitor
from keras_calib.callbacks._correctness_history import CorrectnessHistory
from keras_calib.callbacks._data_pruning import DataPruning
from keras_calib.callbacks._empirical_targets import EmpiricalTargets
from keras_calib.callbacks._reliability_diagram import ReliabilityDiagram
from keras_calib.callbacks._restore_calibrated import RestoreCalibrated
from keras_calib.callbacks._temperature_tracker import TemperatureTracker

__all__ = [
    "AdaFocalSchedule",
    "CalibrationMonitor",
    "CorrectnessHistory",
    "DataPruning",
    "EmpiricalTargets",
    "ReliabilityDiagram",
    "RestoreCalibrated",
    "TemperatureTracker",
]
