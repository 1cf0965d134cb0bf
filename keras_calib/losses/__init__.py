"""Training losses: `primary + weight * penalty`, any pair in `compile`."""

from keras_calib.losses._acls import ACLS
from keras_calib.losses._acls import acls
from keras_calib.losses._ada_focal import AdaFocalLoss
from keras_calib.losses._ada_focal import AdaFocalTable
from keras_calib.losses._ada_focal import ada_focal_loss
from keras_calib.losses._avuc import AvUC
from keras_calib.losses._avuc import avuc
from keras_calib.losses._base import ClassificationLoss
from keras_calib.losses._base import LossPart
from keras_calib.losses._base import PenalizedLoss
from keras_calib.losses._brier import BrierLoss
from keras_calib.losses._brier import SquaredLogitLoss
from keras_calib.losses._brier import brier_loss
from keras_calib.losses._brier import squared_logit_loss
from keras_calib.losses._cpc import CPC
from keras_calib.losses._cpc import cpc
from keras_calib.losses._crl import CRL
from keras_calib.losses._crl import crl
from keras_calib.losses._dca import DCA
from keras_calib.losses._dca import dca
from keras_calib.losses._dual_focal import DualFocalLoss
from keras_calib.losses._dual_focal import dual_focal_loss
from keras_calib.losses._entropy_regularization import EntropyRegularization
from keras_calib.losses._entropy_regularization import entropy_regularization
from keras_calib.losses._focal import FocalLoss
from keras_calib.losses._focal import focal_loss
from keras_calib.losses._inverse_focal import InverseFocalLoss
from keras_calib.losses._inverse_focal import inverse_focal_loss
from keras_calib.losses._label_smoothing import LabelSmoothing
from keras_calib.losses._label_smoothing import label_smoothing
from keras_calib.losses._margin_label_smoothing import MarginLabelSmoothing
from keras_calib.losses._margin_label_smoothing import margin_label_smoothing
from keras_calib.losses._mdca import MDCA
from keras_calib.losses._mdca import mdca
from keras_calib.losses._mmce import MMCE
from keras_calib.losses._mmce import mmce
from keras_calib.losses._sample_dependent_focal import SampleDependentFocalLoss
from keras_calib.losses._sample_dependent_focal import (
    sample_dependent_focal_loss,
)
from keras_calib.losses._soft_avuc import SoftAvUC
from keras_calib.losses._soft_avuc import soft_avuc
from keras_calib.losses._soft_binned_ece import SoftBinnedECE
from keras_calib.losses._soft_binned_ece import soft_binned_ece

__all__ = [
    "ACLS",
    "CPC",
    "CRL",
    "DCA",
    "MDCA",
    "MMCE",
    "AdaFocalLoss",
    "AdaFocalTable",
    "AvUC",
    "BrierLoss",
    "ClassificationLoss",
    "DualFocalLoss",
    "EntropyRegularization",
    "FocalLoss",
    "InverseFocalLoss",
    "LabelSmoothing",
    "LossPart",
    "MarginLabelSmoothing",
    "PenalizedLoss",
    "SampleDependentFocalLoss",
    "SoftAvUC",
    "SoftBinnedECE",
    "SquaredLogitLoss",
    "acls",
    "ada_focal_loss",
    "avuc",
    "brier_loss",
    "cpc",
    "crl",
    "dca",
    "dual_focal_loss",
    "entropy_regularization",
    "focal_loss",
    "inverse_focal_loss",
    "label_smoothing",
    "margin_label_smoothing",
    "mdca",
    "mmce",
    "sample_dependent_focal_loss",
    "soft_avuc",
    "soft_binned_ece",
    "squared_logit_loss",
]
