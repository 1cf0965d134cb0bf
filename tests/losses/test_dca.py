import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import value_and_gradient
from tests.losses.fixtures import LABELS_A
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import A
from tests.losses.fixtures import B
from tests.losses.fixtures import assert_gradient
from tests.losses.fixtures import on_image


@pytest.mark.parametrize(
    ("labels", "logits", "penalty", "total"),
    [
        (LABELS_A, A, 0.11883225, 1.74096811),
        (LABELS_B, B, 0.01558003, 1.04552179),
    ],
    ids="AB",
)
def test_value(labels, logits, penalty, total):
    value = float(kc.losses.dca(labels, logits))
    # A difference of numbers near one: their rounding is what remains.
    assert value == pytest.approx(penalty, rel=1e-6, abs=6e-8)
    loss = kc.losses.DCA(weight=10.0, from_logits=True)
    assert float(loss(labels, logits)) == pytest.approx(total, rel=1e-6)


def test_gradient():
    # sign(mean c - mean a) c (e_yhat - p) / n
    _, gradient = value_and_gradient(lambda z: kc.losses.dca(LABELS_A, z), A)
    expected = [
        [0.05614478, -0.04590254, -0.01024224],
        [-0.05596511, 0.07655352, -0.02058841],
        [-0.00288726, -0.01930388, 0.02219114],
    ]
    assert_gradient(gradient, expected)


def test_one_sample():
    # | a - c |
    value = float(kc.losses.dca(LABELS_B[1:2], B[1:2]))
    assert value == pytest.approx(0.87963119, rel=1e-6)


def test_calibrated_batch_has_no_slope():
    # Confidence 1/2, one of two correct.
    value, gradient = value_and_gradient(
        lambda z: kc.losses.dca([0, 1], z), np.zeros((2, 2))
    )
    assert value == 0.0
    np.testing.assert_array_equal(gradient, 0.0)


def test_sample_weight():
    value = float(kc.losses.dca(LABELS_A, A, sample_weight=[2.0, 0.0, 1.0]))
    again = float(kc.losses.dca(LABELS_A[[0, 0, 2]], A[[0, 0, 2]]))
    assert value == pytest.approx(again, rel=1e-6)


def test_segmentation_with_a_void_pixel():
    loss = kc.losses.DCA(primary=None, weight=1.0, from_logits=True)
    assert on_image(loss) == pytest.approx(0.20348970, rel=1e-6)
