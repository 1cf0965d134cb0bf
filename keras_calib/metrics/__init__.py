"""Calibration metrics for `compile`, and exact values from whole arrays."""

from keras_calib.evaluation.calibration_errors import calibration_errors
from keras_calib.evaluation.clinical_panel import clinical_panel
from keras_calib.evaluation.consistency_test import consistency_test
from keras_calib.evaluation.squared_kernel_error import (
    squared_kernel_calibration_error,
)
from keras_calib.metrics._base import CalibrationMetric
from keras_calib.metrics._binless_errors import KSCalibrationError
from keras_calib.metrics._binless_errors import SmoothCalibrationError
from keras_calib.metrics._brier_score import BrierScore
from keras_calib.metrics._classwise_calibration_error import (
    ClasswiseCalibrationError,
)
from keras_calib.metrics._debiased_calibration_error import (
    DebiasedCalibrationError,
)
from keras_calib.metrics._expected_calibration_error import (
    AdaptiveCalibrationError,
)
from keras_calib.metrics._expected_calibration_error import (
    BinaryCalibrationError,
)
from keras_calib.metrics._expected_calibration_error import (
    ExpectedCalibrationError,
)
from keras_calib.metrics._expected_calibration_error import (
    MaximumCalibrationError,
)
from keras_calib.metrics._label_binned_calibration_error import (
    LabelBinnedCalibrationError,
)
from keras_calib.metrics._mean_metrics import ConfidenceGap
from keras_calib.metrics._mean_metrics import MeanConfidence
from keras_calib.metrics._mean_metrics import MeanEntropy
from keras_calib.metrics._mean_metrics import NegativeLogLikelihood
from keras_calib.metrics._multilabel_calibration_error import (
    MultilabelCalibrationError,
)
from keras_calib.metrics._signed_errors import OverconfidenceError
from keras_calib.metrics._signed_errors import UnderconfidenceError
from keras_calib.metrics._sweep_calibration_error import SweepCalibrationError

__all__ = [
    "AdaptiveCalibrationError",
    "BinaryCalibrationError",
    "BrierScore",
    "CalibrationMetric",
    "ClasswiseCalibrationError",
    "ConfidenceGap",
    "DebiasedCalibrationError",
    "ExpectedCalibrationError",
    "KSCalibrationError",
    "LabelBinnedCalibrationError",
    "MaximumCalibrationError",
    "MeanConfidence",
    "MeanEntropy",
    "MultilabelCalibrationError",
    "NegativeLogLikelihood",
    "OverconfidenceError",
    "SmoothCalibrationError",
    "SweepCalibrationError",
    "UnderconfidenceError",
    "calibration_errors",
    "clinical_panel",
    "consistency_test",
    "squared_kernel_calibration_error",
]
