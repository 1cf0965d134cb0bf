"""`kc.report`: calibration of models side by side, in one file."""

from keras_calib.reporting._report import Report
from keras_calib.reporting._report import report

__all__ = ["Report", "report"]
