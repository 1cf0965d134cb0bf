"""Images as they may be in use: 15 corruptions at five severities."""

from keras_calib.shift._corrupt import CORRUPTIONS
from keras_calib.shift._corrupt import corrupt

__all__ = ["CORRUPTIONS", "corrupt"]
