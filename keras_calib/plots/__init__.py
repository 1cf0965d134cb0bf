"""Figures, drawn with matplotlib, which is imported only to draw."""

from keras_calib.plots._reliability import reliability_diagram

__all__ = ["reliability_diagram"]
