"""Callbacks: what to watch, and what to change, while a model trains."""

from keras_calib.callbacks.adafocal_schedule import AdaFocalSchedule
from keras_calib.callbacks.calibration_monitor import CalibrationMonitor
from keras_calib.callbacks.correctness_history import CorrectnessHistory
from keras_calib.callbacks.data_pruning import DataPruning
from keras_calib.callbacks.empirical_targets import EmpiricalTargets
from keras_calib.callbacks.reliability_diagram import ReliabilityDiagram
from keras_calib.callbacks.temperature_tracker import TemperatureTracker

__all__ = [
    "AdaFocalSchedule",
    "CalibrationMonitor",
    "CorrectnessHistory",
    "DataPruning",
    "EmpiricalTargets",
    "ReliabilityDiagram",
    "TemperatureTracker",
]
