"""Images as they may be in use: 15 corruptions at five severities."""

from keras_calib.shift._corrupt import CORRUPTIONS
from keras_calib.shift._corrupt import corrupt
from keras_calib.shift._evaluate import evaluate
from keras_calib.shift._result import ShiftResult

__all__ = ["CORRUPTIONS", "ShiftResult", "corrupt", "evaluate"]
