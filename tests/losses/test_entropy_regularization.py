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
from tests.losses.fixtures import assert_gradient
from tests.losses.fixtures import on_image

LOSS = kc.losses.EntropyRegularization(from_logits=True)


def test_value():
    assert float(LOSS(LABELS_A, A)) == pytest.approx(0.49373448, rel=1e-6)
    assert float(LOSS(LABELS_B, B)) == pytest.approx(0.83180910, rel=1e-6)


def test_entropies():
    values = ops.convert_to_numpy(kc.losses.entropy_regularization(LABELS_B, B))
    expected = [-0.00213782, -0.37495519, -0.58220800, -1.35719305]
    # The logarithm of a probability near one rounds as numbers near one do.
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1.2e-7)


@pytest.mark.parametrize(
    ("labels", "logits", "expected"),
    [(LABELS_A, A, 0.53300858), (LABELS_B, B, 0.87524337)],
    ids="AB",
)
def test_the_convention_that_averages_over_classes(labels, logits, expected):
    loss = kc.losses.EntropyRegularization(
        weight=0.1 / logits.shape[-1], from_logits=True
    )
    assert float(loss(labels, logits)) == pytest.approx(expected, rel=1e-6)


def test_gradient():
    # (p - q) / n + beta p (log p + H) / n
    _, gradient = value_and_gradient(lambda z: LOSS(LABELS_A, z), A)
    expected = [
        [-0.06150960, 0.05188755, 0.00962205],
        [-0.25044369, 0.22315413, 0.02728956],
        [0.00174531, 0.01562007, -0.01736538],
    ]
    assert_gradient(gradient, expected)


def test_saturated_logits():
    value, gradient = value_and_gradient(
        lambda z: LOSS(LABELS_SATURATED, z), SATURATED
    )
    assert value == pytest.approx(1000.49437553, rel=1e-6)
    assert np.isfinite(gradient).all()


def test_segmentation_with_a_void_pixel():
    assert on_image(LOSS) == pytest.approx(0.78193497, rel=1e-6)
