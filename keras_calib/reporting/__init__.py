"""`kc.report`: calibration of models side by side; `kc.model_card`."""

from keras_calib.reporting._card import ModelCard
from keras_calib.reporting._card import model_card
from keras_calib.reporting._report import Report
from keras_calib.reporting._report import report

__all__ = ["ModelCard", "Report", "model_card", "report"]
