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
    loss = kc.losses.BrierLoss(from_logits=True)
    assert float(loss(LABELS_A, A)) == pytest.approx(0.35175532, rel=1e-6)
    assert float(loss(LABELS_B, B)) == pytest.approx(0.57601744, rel=1e-6)


def test_gradient():
    # 2 p_j [(p_j - q_j) - sum_k p_k (p_k - q_k)] / n
    _, gradient = value_and_gradient(
        lambda z: ops.mean(kc.losses.brier_loss(LABELS_A, z)), A
    )
    expected = [
        [-0.04096896, 0.03639826, 0.00457071],
        [-0.16859097, 0.17711777, -0.00852680],
        [0.00044742, 0.00519799, -0.00564541],
    ]
    assert_gradient(gradient, expected)


def test_soft_labels():
    # 0.2^2 + 0.1^2 + 0.1^2
    value = kc.losses.brier_loss([[0.5, 0.3, 0.2]], np.log([[0.7, 0.2, 0.1]]))
    assert float(value[0]) == pytest.approx(0.06, rel=1e-6)


def test_squared_logits():
    loss = kc.losses.SquaredLogitLoss(from_logits=True)
    assert float(loss(LABELS_A, A)) == pytest.approx(1.27666667, rel=1e-6)
    assert float(loss(LABELS_B, B)) == pytest.approx(29.70312500, rel=1e-6)


def test_squared_logits_with_weight_and_value():
    # (3 (2 - 5)^2 + 0.5^2 + 1^2) / 3
    value = kc.losses.squared_logit_loss(
        [0], A[:1], label_weight=3.0, label_value=5.0
    )
    assert float(value[0]) == pytest.approx(28.25 / 3, rel=1e-6)


def test_squared_logits_need_logits():
    with pytest.raises(ValueError, match="from_logits=True"):
        kc.losses.SquaredLogitLoss()(LABELS_A, np.full((3, 3), 1 / 3))


@pytest.mark.parametrize("name", ["label_weight", "label_value"])
def test_bad_arguments(name):
    with pytest.raises(ValueError, match="must be positive"):
        kc.losses.SquaredLogitLoss(**{name: 0.0})
    with pytest.raises(ValueError, match="must be positive"):
        kc.losses.squared_logit_loss(LABELS_A, A, **{name: -1.0})
