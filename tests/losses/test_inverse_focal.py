import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from tests.helpers import value_and_gradient
from tests.losses.fixtures import LABELS_A
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import A
from tests.losses.fixtures import B
from tests.losses.fixtures import assert_gradient


def test_value():
    loss = kc.losses.InverseFocalLoss(from_logits=True)
    assert float(loss(LABELS_A, A)) == pytest.approx(1.06042494, rel=1e-6)
    assert float(loss(LABELS_B, B)) == pytest.approx(1.39314224, rel=1e-6)
    one_hot = np.eye(4)[LABELS_B]
    assert float(loss(one_hot, B)) == pytest.approx(1.39314224, rel=1e-6)


def test_gamma_zero_is_cross_entropy():
    loss = kc.losses.InverseFocalLoss(gamma=0.0, from_logits=True)
    assert float(loss(LABELS_B, B)) == pytest.approx(0.88972146, rel=1e-6)


def test_gradient():
    # [(1 + p)^g + g p (1 + p)^(g - 1) log p] (p - q) / n  at p = p_y
    _, gradient = value_and_gradient(
        lambda z: ops.mean(kc.losses.inverse_focal_loss(LABELS_A, z)), A
    )
    expected = [
        [-0.17948053, 0.14673870, 0.03274183],
        [-0.17389844, 0.15127278, 0.02262566],
        [0.01073638, 0.07178229, -0.08251867],
    ]
    assert_gradient(gradient, expected)


def test_negative_gamma():
    with pytest.raises(ValueError, match="cannot be negative"):
        kc.losses.InverseFocalLoss(gamma=-1.0)
    with pytest.raises(ValueError, match="cannot be negative"):
        kc.losses.inverse_focal_loss(LABELS_A, A, gamma=-1.0)
