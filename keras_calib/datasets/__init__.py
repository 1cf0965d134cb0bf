"""The papers' data sets as arrays, from files that are already there."""

from keras_calib.datasets._load import inexact_images
from keras_calib.datasets._load import load

__all__ = ["inexact_images", "load"]
