"""Callbacks: what to watch, and what to change, while a model trains."""

from keras_calib.callbacks.calibration_monitor import CalibrationMonitor

__all__ = ["CalibrationMonitor"]
