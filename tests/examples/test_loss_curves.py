"""The pictures of the losses: every loss is in one, and the curves are true."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import example

CURVES = example("loss_curves.py")
# Bases and parts.
NOT_DRAWN = {"ClassificationLoss", "PenalizedLoss", "LossPart"}
# In a picture of their own, by `ada_focal` and `pair`.
ADAPTIVE = {"AdaFocalLoss", "CRL"}


def test_every_loss_is_drawn():
    losses = {
        name
        for name in kc.losses.__all__
        if isinstance(getattr(kc.losses, name), type)
        and issubclass(getattr(kc.losses, name), keras.losses.Loss)
    }
    drawn = {
        type(loss).__name__
        for _, panel in CURVES.PANELS.values()
        for loss in panel.values()
    }
    assert drawn | set(CURVES.BATCH) | ADAPTIVE == losses - NOT_DRAWN, (
        "a curve in PANELS or BATCH of examples/loss_curves.py for each loss"
    )


def test_cross_entropy_and_its_gradient():
    z = np.linspace(-3, 3, 601)
    p = 1 / (1 + 9 * np.exp(-z))
    values = CURVES.curve(CURVES.CROSS_ENTROPY, z)
    np.testing.assert_allclose(values, -np.log(p), rtol=1e-5)
    found = CURVES.derivative(CURVES.CROSS_ENTROPY, *CURVES.samples(z))
    np.testing.assert_allclose(found[:, 0], p - 1, atol=1e-3)


@pytest.mark.parametrize("some, share", [(False, 1.0), (True, 0.5)])
def test_a_batch_has_the_gap(some, share):
    rng = np.random.default_rng(0)
    labels, logits = CURVES.made_batch(0.2, some, rng)
    p = np.exp(logits)
    gap = (p.max(axis=1) - (p.argmax(axis=1) == labels)).mean()
    # Three standard errors of 2,000 coins.
    assert gap == pytest.approx(share * 0.2, abs=0.035)


def test_derivative_is_that_of_each_sample():
    labels, logits = CURVES.made_batch(0.2, False, np.random.default_rng(0))
    found = CURVES.derivative(CURVES.CROSS_ENTROPY, labels, logits)
    # The step of SGD is taken in float32, from logits up to 4.
    np.testing.assert_allclose(
        found, np.exp(logits) - np.eye(10)[labels], atol=2e-5
    )


def test_dca_lowers_right_and_wrong_confidences_alike():
    penalty = kc.losses.DCA(primary=None, weight=1.0, from_logits=True)
    right, wrong = CURVES.forces(penalty)
    for c, found in (right, wrong):
        assert len(c) > 100
        # Overconfident: the derivative of |mean c - mean a| by z.
        np.testing.assert_allclose(found, c * (1 - c), atol=1e-3)


def test_each_bin_has_its_focal_loss():
    z = np.linspace(-4, 8, 97)
    p = 1 / (1 + 9 * np.exp(-z))
    gamma = np.array([1.0, 1.0, 2.0, 3.0, 5.0])
    values = CURVES.curve(CURVES.ada_focal(gamma), z)
    own = gamma[np.minimum((5 * p).astype(int), 4)]
    np.testing.assert_allclose(values, -((1 - p) ** own) * np.log(p), atol=1e-5)


def test_a_pair_is_ranked_by_how_often_each_was_right():
    z = np.linspace(0, 8, 9)
    c = 1 / (1 + 9 * np.exp(-z))
    for often in CURVES.OFTEN:
        gap = often - 0.5
        expected = np.maximum(abs(gap) - np.sign(gap) * (c - 0.5), 0)
        expected *= gap != 0
        np.testing.assert_allclose(CURVES.pair(often, z), expected, atol=1e-6)
