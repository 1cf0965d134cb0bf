"""Calibration metrics for `compile`, and exact values from whole arrays."""

from keras_calib.metrics.base import CalibrationMetric
from keras_calib.metrics.expected_calibration_error import (
    ExpectedCalibrationError,
)

__all__ = ["CalibrationMetric", "ExpectedCalibrationError"]
