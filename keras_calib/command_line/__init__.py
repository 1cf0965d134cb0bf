"""The command `keras-calib`."""

from keras_calib.command_line._main import main

__all__ = ["main"]
