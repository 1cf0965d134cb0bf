import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from tests.helpers import value_and_gradient
from tests.losses.fixtures import LABELS_A
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import LABELS_TWO_CLASSES
from tests.losses.fixtures import TWO_CLASSES
from tests.losses.fixtures import A
from tests.losses.fixtures import B
from tests.losses.fixtures import assert_gradient
from tests.losses.fixtures import on_image


def mdca(labels, logits, **arguments):
    return float(kc.losses.mdca(labels, logits, **arguments))


def test_value():
    assert mdca(LABELS_A, A) == pytest.approx(0.20973415, rel=1e-6)
    assert mdca(LABELS_B, B) == pytest.approx(0.17388135, rel=1e-6)
    two = mdca(LABELS_TWO_CLASSES, TWO_CLASSES)
    assert two == pytest.approx(0.42530665, rel=1e-6)


def test_total_with_the_recommended_primary():
    loss = kc.losses.MDCA(
        primary=kc.losses.FocalLoss(gamma=1.0, from_logits=True),
        from_logits=True,
    )
    assert float(loss(LABELS_A, A)) == pytest.approx(0.55926946, rel=1e-6)
    assert float(loss(LABELS_B, B)) == pytest.approx(0.85156904, rel=1e-6)


def test_gradient_is_that_of_acls_supplement_eq_10():
    # p_j (s_j - sum_k s_k p_k) / (n C), s_k the sign of the signed gap.
    _, gradient = value_and_gradient(lambda z: kc.losses.mdca(LABELS_A, z), A)
    p = np.exp(A) / np.exp(A).sum(-1, keepdims=True)
    s = np.sign(p.mean(0) - np.eye(3)[LABELS_A].mean(0))
    equation = p * (s - (p * s).sum(-1, keepdims=True)) / 9
    assert_gradient(gradient, equation)
    expected = [
        [-0.03742985, 0.03060169, 0.00682816],
        [-0.04289049, 0.03731007, 0.00558042],
        [-0.00205420, 0.00012936, 0.00192484],
    ]
    assert_gradient(gradient, expected)


def test_one_sample_is_its_distance_to_the_label():
    # ||p - q||_1 / C
    value = mdca(LABELS_A[1:2], A[1:2])
    assert value == pytest.approx(0.49248778, rel=1e-6)


def test_soft_labels_are_compared_as_they_are():
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    assert mdca(p[::-1], np.log(p)) == pytest.approx(0.0, abs=1e-7)


def test_calibrated_batch_has_no_slope():
    # Two classes, equal logits, one label each: every gap is exactly 0.
    value, gradient = value_and_gradient(
        lambda z: kc.losses.mdca([0, 1], z), np.zeros((2, 2))
    )
    assert value == 0.0
    np.testing.assert_array_equal(gradient, 0.0)


def test_sample_weight():
    value = mdca(LABELS_A, A, sample_weight=[2.0, 0.0, 1.0])
    again = mdca(LABELS_A[[0, 0, 2]], A[[0, 0, 2]])
    assert value == pytest.approx(again, rel=1e-6)


def test_segmentation_with_a_void_pixel():
    loss = kc.losses.MDCA(primary=None, from_logits=True)
    assert on_image(loss) == pytest.approx(0.19143180, rel=1e-6)
    assert ops.ndim(kc.losses.mdca(LABELS_A, A)) == 0
