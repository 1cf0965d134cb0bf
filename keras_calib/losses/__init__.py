"""Training losses: `primary + weight * penalty`, any pair in `compile`."""

from keras_calib.losses.acls import ACLS
from keras_calib.losses.acls import acls
from keras_calib.losses.ada_focal import AdaFocalLoss
from keras_calib.losses.ada_focal import AdaFocalTable
from keras_calib.losses.ada_focal import ada_focal
from keras_calib.losses.base import ClassificationLoss
from keras_calib.losses.base import LossPart
from keras_calib.losses.base import PenalizedLoss
from keras_calib.losses.crl import CRL
from keras_calib.losses.crl import crl
from keras_calib.losses.focal import FocalLoss
from keras_calib.losses.focal import focal_loss
from keras_calib.losses.margin_label_smoothing import MarginLabelSmoothing
from keras_calib.losses.margin_label_smoothing import margin_label_smoothing

__all__ = [
    "ACLS",
    "CRL",
    "AdaFocalLoss",
    "AdaFocalTable",
    "ClassificationLoss",
    "FocalLoss",
    "LossPart",
    "MarginLabelSmoothing",
    "PenalizedLoss",
    "acls",
    "ada_focal",
    "crl",
    "focal_loss",
    "margin_label_smoothing",
]
