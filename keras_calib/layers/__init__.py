"""Calibration maps: layers on logits, fitted after training by `adapt`."""

from keras_calib.layers.base import CalibrationLayer
from keras_calib.layers.beta_calibration import BetaCalibration
from keras_calib.layers.bias_corrected_temperature_scaling import (
    BiasCorrectedTemperatureScaling,
)
from keras_calib.layers.class_temperature_scaling import ClassTemperatureScaling
from keras_calib.layers.dirichlet_scaling import DirichletScaling
from keras_calib.layers.ensemble_temperature_scaling import (
    EnsembleTemperatureScaling,
)
from keras_calib.layers.histogram_binning import HistogramBinning
from keras_calib.layers.intra_order_preserving import IntraOrderPreserving
from keras_calib.layers.isotonic_calibration import IsotonicCalibration
from keras_calib.layers.log_probabilities import LogProbabilities
from keras_calib.layers.matrix_scaling import MatrixScaling
from keras_calib.layers.parameterized_temperature_scaling import (
    ParameterizedTemperatureScaling,
)
from keras_calib.layers.platt_scaling import PlattScaling
from keras_calib.layers.spline_calibration import SplineCalibration
from keras_calib.layers.temperature_scaling import TemperatureScaling
from keras_calib.layers.vector_scaling import VectorScaling

__all__ = [
    "BetaCalibration",
    "BiasCorrectedTemperatureScaling",
    "CalibrationLayer",
    "ClassTemperatureScaling",
    "DirichletScaling",
    "EnsembleTemperatureScaling",
    "HistogramBinning",
    "IntraOrderPreserving",
    "IsotonicCalibration",
    "LogProbabilities",
    "MatrixScaling",
    "ParameterizedTemperatureScaling",
    "PlattScaling",
    "SplineCalibration",
    "TemperatureScaling",
    "VectorScaling",
]
