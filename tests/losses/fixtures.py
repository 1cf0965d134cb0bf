"""Two batches small enough to compute by hand, with float64 oracle values."""

import contextlib

import keras
import numpy as np

import keras_calib as kc
from tests.helpers import value_and_gradient

# The second sample is predicted wrong.
A = np.array([[2.0, 0.5, -1.0], [0.3, 1.2, -0.7], [-1.5, 0.4, 3.1]])
LABELS_A = np.array([0, 0, 2])

# Large logits: margins of 6 and 10 are active.
B = np.array(
    [
        [9.0, -2.0, 0.5, -6.0],
        [-1.5, 5.0, 3.0, -8.5],
        [12.0, 11.0, -3.0, -4.0],
        [0.2, 0.1, -0.3, 0.4],
    ]
)
LABELS_B = np.array([0, 2, 0, 3])

SATURATED = np.array([[1000.0, 0.0, -1000.0], [0.0, 0.0, 0.0]])
LABELS_SATURATED = np.array([2, 1])

TWO_CLASSES = np.array([[1.0, -0.5], [0.2, 0.9]])
LABELS_TWO_CLASSES = np.array([0, 0])

# The second batch as an image of 2 x 2 pixels; the last one is void.
IMAGE = B.reshape(1, 2, 2, 4)
LABELS_IMAGE = np.array([[[0, 2], [0, 255]]])


def on_image(loss):
    """The loss on the image, with 255 as void."""
    config = {**loss.get_config(), "ignore_class": 255}
    return float(type(loss).from_config(config)(LABELS_IMAGE, IMAGE))


def assert_gradient(found, expected, tolerance=1e-6):
    """Equal to `tolerance` of the largest entry; 8 decimals are printed."""
    atol = tolerance * np.abs(expected).max() + 6e-9
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def in_float64(function, x):
    """Value and gradient with 64 bits, where backend and Keras are asked."""
    wide = contextlib.nullcontext()
    if keras.backend.backend() == "jax":
        import jax

        wide = jax.enable_x64(True)
    keras.config.set_floatx("float64")
    try:
        with wide:
            return value_and_gradient(function, x, "float64")
    finally:
        keras.config.set_floatx("float32")


def _losses():
    settings = {
        "label_smoothing": (kc.losses.LabelSmoothing, {}),
        "sample_dependent_focal": (kc.losses.SampleDependentFocalLoss, {}),
        "inverse_focal": (kc.losses.InverseFocalLoss, {}),
        "dual_focal": (kc.losses.DualFocalLoss, {}),
        "brier": (kc.losses.BrierLoss, {}),
        "squared_logit": (kc.losses.SquaredLogitLoss, {}),
        "entropy": (kc.losses.EntropyRegularization, {}),
        "mdca": (kc.losses.MDCA, {}),
        "dca": (kc.losses.DCA, {}),
        "mmce": (kc.losses.MMCE, {}),
        "mmce_weighted": (kc.losses.MMCE, {"weighted": True}),
        "cpc": (kc.losses.CPC, {}),
        "avuc": (kc.losses.AvUC, {"threshold": 0.5}),
        "avuc_gs": (kc.losses.AvUC, {"threshold": 0.5, "stop_gradient": True}),
        "soft_avuc": (kc.losses.SoftAvUC, {}),
        "sb_ece": (kc.losses.SoftBinnedECE, {}),
        "sb_ece_bin": (kc.losses.SoftBinnedECE, {"form": "bin", "norm": 1}),
    }
    return [
        make(name=name, from_logits=True, **arguments)
        for name, (make, arguments) in settings.items()
    ]


# One of each method, but those that are tested from the first.
ALL_LOSSES = _losses()
