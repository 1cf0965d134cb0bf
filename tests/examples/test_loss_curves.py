"""The pictures of the losses: every loss is in one, and the curves are true."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import example

CURVES = example("loss_curves.py")
# `AdaFocalLoss` starts as cross-entropy, `CRL` compares histories of samples;
# the others are bases and parts.
NOT_DRAWN = {"AdaFocalLoss", "CRL", "ClassificationLoss", "PenalizedLoss"}
NOT_DRAWN |= {"LossPart"}


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
    assert drawn | set(CURVES.BATCH) == losses - NOT_DRAWN, (
        "a curve in PANELS or BATCH of examples/loss_curves.py for each loss"
    )


def test_cross_entropy_and_its_slope():
    z = np.linspace(-3, 3, 601)
    p = 1 / (1 + 9 * np.exp(-z))
    values = CURVES.curve(CURVES.CROSS_ENTROPY, z)
    np.testing.assert_allclose(values, -np.log(p), rtol=1e-5)
    # By differences, and in float32.
    np.testing.assert_allclose(CURVES.slope(values, z), p - 1, atol=0.01)


def test_a_jump_has_no_slope():
    z = np.linspace(0, 1, 101)
    found = CURVES.slope(np.where(z < 0.5, 0.0, 1.0), z)
    assert np.isnan(found).sum() == 2
    # Of a constant, by differences of float64.
    assert np.nanmax(np.abs(found)) < 1e-12


@pytest.mark.parametrize("some, share", [(False, 1.0), (True, 0.5)])
def test_a_batch_has_the_gap(some, share):
    rng = np.random.default_rng(0)
    labels, logits = CURVES.made_batch(0.2, some, rng)
    p = np.exp(logits)
    gap = (p.max(axis=1) - (p.argmax(axis=1) == labels)).mean()
    # Three standard errors of 2,000 coins.
    assert gap == pytest.approx(share * 0.2, abs=0.035)
