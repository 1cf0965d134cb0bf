"""The papers' data sets, from files that are already there."""

from keras_calib.datasets._load import inexact_images
from keras_calib.datasets._load import load
from keras_calib.datasets._long_tailed import long_tailed
from keras_calib.datasets._stream import stream

__all__ = ["inexact_images", "load", "long_tailed", "stream"]
