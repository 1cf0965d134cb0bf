"""Calibration layers on logits, fitted after training by `adapt`."""

from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._bayesian_temperature_scaling import (
    BayesianTemperatureScaling,
)
from keras_calib.layers._beta_calibration import BetaCalibration
from keras_calib.layers._bias_corrected_temperature_scaling import (
    BiasCorrectedTemperatureScaling,
)
from keras_calib.layers._calibration_mixture import CalibrationMixture
from keras_calib.layers._class_loss_scaling import ClassLossScaling
from keras_calib.layers._class_temperature_scaling import (
    ClassTemperatureScaling,
)
from keras_calib.layers._conformal_sets import ConformalSets
from keras_calib.layers._decision import DecisionLayer
from keras_calib.layers._dirichlet_scaling import DirichletScaling
from keras_calib.layers._ensemble_temperature_scaling import (
    EnsembleTemperatureScaling,
)
from keras_calib.layers._histogram_binning import HistogramBinning
from keras_calib.layers._intra_order_preserving import IntraOrderPreserving
from keras_calib.layers._isotonic_calibration import IsotonicCalibration
from keras_calib.layers._local_temperature_scaling import (
    LocalTemperatureScaling,
)
from keras_calib.layers._log_probabilities import LogProbabilities
from keras_calib.layers._loss_objective import LossObjective
from keras_calib.layers._matrix_scaling import MatrixScaling
from keras_calib.layers._meta_cal import MetaCal
from keras_calib.layers._multi_label_scaling import MultiLabelScaling
from keras_calib.layers._objectives import ExpectedCalibrationErrorObjective
from keras_calib.layers._objectives import FocalObjective
from keras_calib.layers._objectives import LabelSmoothingObjective
from keras_calib.layers._objectives import NegativeLogLikelihoodObjective
from keras_calib.layers._objectives import Objective
from keras_calib.layers._objectives import SoftBinnedECEObjective
from keras_calib.layers._parameterized_temperature_scaling import (
    ParameterizedTemperatureScaling,
)
from keras_calib.layers._platt_scaling import PlattScaling
from keras_calib.layers._prior_correction import PriorCorrection
from keras_calib.layers._quadratic_scaling import QuadraticScaling
from keras_calib.layers._risk_threshold import RiskThreshold
from keras_calib.layers._spline_calibration import SplineCalibration
from keras_calib.layers._temperature_scaling import TemperatureScaling
from keras_calib.layers._vector_scaling import VectorScaling

__all__ = [
    "BayesianTemperatureScaling",
    "BetaCalibration",
    "BiasCorrectedTemperatureScaling",
    "CalibrationLayer",
    "CalibrationMixture",
    "ClassLossScaling",
    "ClassTemperatureScaling",
    "ConformalSets",
    "DecisionLayer",
    "DirichletScaling",
    "EnsembleTemperatureScaling",
    "ExpectedCalibrationErrorObjective",
    "FocalObjective",
    "HistogramBinning",
    "IntraOrderPreserving",
    "IsotonicCalibration",
    "LabelSmoothingObjective",
    "LocalTemperatureScaling",
    "LogProbabilities",
    "LossObjective",
    "MatrixScaling",
    "MetaCal",
    "MultiLabelScaling",
    "NegativeLogLikelihoodObjective",
    "Objective",
    "ParameterizedTemperatureScaling",
    "PlattScaling",
    "PriorCorrection",
    "QuadraticScaling",
    "RiskThreshold",
    "SoftBinnedECEObjective",
    "SplineCalibration",
    "TemperatureScaling",
    "VectorScaling",
]
