"""Other people's tools, for Keras networks."""

from keras_calib.interop._sklearn_classifier import SKLearnClassifier

__all__ = ["SKLearnClassifier"]
