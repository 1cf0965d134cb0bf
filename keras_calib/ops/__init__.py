"""Pure functions of tensors: no state, no files, no plots."""

from keras_calib.ops import binning
from keras_calib.ops import confidence
from keras_calib.ops import kinks

__all__ = ["binning", "confidence", "kinks"]
