"""Figures, drawn with matplotlib, which is imported only to draw."""

from keras_calib.plots._classwise import classwise_reliability
from keras_calib.plots._reliability import reliability_diagram

__all__ = ["classwise_reliability", "reliability_diagram"]
