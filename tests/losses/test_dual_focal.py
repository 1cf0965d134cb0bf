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


@pytest.mark.parametrize(
    ("gamma", "on_a", "on_b"),
    [(5.0, 0.18216377, 0.49368501), (0.0, 0.55264564, 0.88972146)],
)
def test_value(gamma, on_a, on_b):
    loss = kc.losses.DualFocalLoss(gamma=gamma, from_logits=True)
    assert float(loss(LABELS_A, A)) == pytest.approx(on_a, rel=1e-6)
    assert float(loss(LABELS_B, B)) == pytest.approx(on_b, rel=1e-6)


def test_gradient():
    # u = 1 - p_y + p_m:  [-g u^(g-1) log p_y (p_m (e_m - p) - p_y (e_y - p))
    #                      - u^g (e_y - p)] / n
    _, gradient = value_and_gradient(
        lambda z: ops.mean(kc.losses.dual_focal_loss(LABELS_A, z)), A
    )
    expected = [
        [-0.00348178, 0.00314321, 0.00033857],
        [-0.33688425, 0.20219685, 0.13468739],
        [0.00000046, 0.00000557, -0.00000603],
    ]
    assert_gradient(gradient, expected)


def test_only_classes_strictly_below_the_label_count():
    # Classes tied with the label are not below it; then p_m = 0.
    p = np.array([[0.4, 0.4, 0.2], [0.3, 0.3, 0.4], [1 / 3, 1 / 3, 1 / 3]])
    values = kc.losses.dual_focal_loss([0, 0, 0], np.log(p), gamma=2.0)
    below = np.array([0.2, 0.0, 0.0])
    expected = -((1 - p[:, 0] + below) ** 2) * np.log(p[:, 0])
    np.testing.assert_allclose(
        ops.convert_to_numpy(values), expected, rtol=1e-6
    )


def test_a_probability_that_rounds_to_one():
    # u = 1 - p_y + p_m = 2e-9, which in float32 is 0 + p_m at best.
    z = np.log((1 - 1e-9) / 1e-9)
    value, gradient = value_and_gradient(
        lambda x: ops.sum(kc.losses.dual_focal_loss([1], x, gamma=0.5)),
        [[0.0, z]],
    )
    assert 0 <= value < 1e-10
    assert np.isfinite(gradient).all()
    # With p_y small, log p_y is large and the factor is one.
    value = float(kc.losses.dual_focal_loss([0], [[0.0, z]], gamma=0.5)[0])
    assert value == pytest.approx(z, rel=1e-6)


def test_negative_gamma():
    with pytest.raises(ValueError, match="cannot be negative"):
        kc.losses.DualFocalLoss(gamma=-1.0)
    with pytest.raises(ValueError, match="cannot be negative"):
        kc.losses.dual_focal_loss(LABELS_A, A, gamma=-1.0)
