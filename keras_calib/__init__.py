"""Calibrate any Keras 3 model, so that 80 % means right 80 % of the time."""

from keras_calib import callbacks
from keras_calib import datasets
from keras_calib import layers
from keras_calib import losses
from keras_calib import metrics
from keras_calib import models
from keras_calib import plots
from keras_calib import shift
from keras_calib._check import check
from keras_calib.calibration import adjust_prior
from keras_calib.calibration import calibrate
from keras_calib.calibration import calibration_record
from keras_calib.data.sample_index import add_sample_index
from keras_calib.interop import SKLearnClassifier
from keras_calib.reporting import ModelCard
from keras_calib.reporting import Report
from keras_calib.reporting import model_card
from keras_calib.reporting import report
from keras_calib.version import __version__

__all__ = [
    "ModelCard",
    "Report",
    "SKLearnClassifier",
    "__version__",
    "add_sample_index",
    "adjust_prior",
    "calibrate",
    "calibration_record",
    "callbacks",
    "check",
    "datasets",
    "layers",
    "losses",
    "metrics",
    "model_card",
    "models",
    "plots",
    "report",
    "shift",
]
