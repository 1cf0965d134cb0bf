"""Figures, drawn with matplotlib, which is imported only to draw."""

from keras_calib.plots._accuracy import accuracy_vs_ece
from keras_calib.plots._classwise import classwise_reliability
from keras_calib.plots._confidence_map import confidence_map
from keras_calib.plots._decisions import net_benefit
from keras_calib.plots._decisions import risk_coverage
from keras_calib.plots._histogram import confidence_histogram
from keras_calib.plots._history import calibration_history
from keras_calib.plots._loss_profile import loss_profile
from keras_calib.plots._reliability import reliability_diagram

__all__ = [
    "accuracy_vs_ece",
    "calibration_history",
    "classwise_reliability",
    "confidence_histogram",
    "confidence_map",
    "loss_profile",
    "net_benefit",
    "reliability_diagram",
    "risk_coverage",
]
