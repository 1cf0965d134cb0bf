"""Figures, drawn with matplotlib, which is imported only to draw."""

from keras_calib.plots._reliability import reliability_diagram
from keras_calib.plots._shift_curves import shift_curves

__all__ = ["reliability_diagram", "shift_curves"]
