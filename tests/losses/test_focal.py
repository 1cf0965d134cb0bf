import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from tests.helpers import value_and_gradient
from tests.losses.fixtures import LABELS_A
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import LABELS_SATURATED
from tests.losses.fixtures import SATURATED
from tests.losses.fixtures import A
from tests.losses.fixtures import B


@pytest.mark.parametrize(
    ("gamma", "on_a", "on_b"),
    [
        (0.0, 0.55264564, 0.88972146),
        (1.0, 0.34953531, 0.67768769),
        (2.0, 0.24798362, 0.54500716),
        (3.0, 0.18116950, 0.45034400),
    ],
)
def test_value(gamma, on_a, on_b):
    loss = kc.losses.FocalLoss(gamma=gamma, from_logits=True)
    assert float(loss(LABELS_A, A)) == pytest.approx(on_a, rel=1e-6)
    assert float(loss(LABELS_B, B)) == pytest.approx(on_b, rel=1e-6)


def test_sum_reduction():
    loss = kc.losses.FocalLoss(from_logits=True, reduction="sum")
    assert float(loss(LABELS_A, A)) == pytest.approx(0.54350851, rel=1e-6)


def test_soft_labels():
    targets = np.array([[0.7, 0.3, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]])
    loss = kc.losses.FocalLoss(from_logits=True)
    assert float(loss(targets, A)) == pytest.approx(0.86242620, rel=1e-6)
    loss = kc.losses.FocalLoss(gamma=0, from_logits=True)
    assert float(loss(targets, A)) == pytest.approx(1.16931230, rel=1e-6)


def test_gradient_keeps_the_factor():
    # Mukhoti et al. (2020), Proposition 1; the factor is not a constant.
    _, gradient = value_and_gradient(
        lambda z: ops.mean(kc.losses.focal_loss(LABELS_A, z, gamma=3.0)), A
    )
    expected = [
        [-0.00257277, 0.00210343, 0.00046934],
        [-0.24064475, 0.20933483, 0.03130992],
        [0.00000446, 0.00002984, -0.00003430],
    ]
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


def test_saturated_logits():
    value, gradient = value_and_gradient(
        lambda z: ops.mean(kc.losses.focal_loss(LABELS_SATURATED, z)),
        SATURATED,
    )
    assert value == pytest.approx(1000.16275738, rel=1e-6)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("one_hot", [False, True])
def test_a_probability_that_rounds_to_one(one_hot):
    # p_y = 1 - 1e-9: the factor (1 - p_y)^0.5 is 3.162e-5, not 0.
    z = np.log((1 - 1e-9) / 1e-9)
    labels = np.array([[1.0, 0.0]]) if one_hot else np.array([0])
    value, gradient = value_and_gradient(
        lambda x: ops.sum(kc.losses.focal_loss(labels, x, gamma=0.5)),
        [[z, 0.0]],
    )
    assert value == pytest.approx(3.1623e-5 * 1e-9, rel=0.2, abs=1e-12)
    assert np.isfinite(gradient).all()


def test_segmentation_with_a_void_pixel():
    labels = np.array([[[0, 2], [0, 255]]])
    loss = kc.losses.FocalLoss(from_logits=True, ignore_class=255)
    value = float(loss(labels, B.reshape(1, 2, 2, 4)))
    assert value == pytest.approx(0.48705485, rel=1e-6)


def test_negative_gamma():
    with pytest.raises(ValueError, match="cannot be negative"):
        kc.losses.FocalLoss(gamma=-1.0)
    with pytest.raises(ValueError, match="cannot be negative"):
        kc.losses.focal_loss(LABELS_A, A, gamma=-1.0)
