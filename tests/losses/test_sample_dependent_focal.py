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


def test_the_probability_of_the_label_decides():
    # On B the second sample has p_y = 0.12 and a confidence of 0.88; by the
    # confidence the value would be 0.45034400.
    loss = kc.losses.SampleDependentFocalLoss(from_logits=True)
    assert float(loss(LABELS_A, A)) == pytest.approx(0.18116950, rel=1e-6)
    assert float(loss(LABELS_B, B)) == pytest.approx(0.36888967, rel=1e-6)
    one_hot = np.eye(4)[LABELS_B]
    assert float(loss(one_hot, B)) == pytest.approx(0.36888967, rel=1e-6)


def test_three_steps():
    # p_y is 0.1, 0.3 and 0.6: gamma is 5, 3 and 2.
    p = np.array([[0.1, 0.3, 0.6]] * 3)
    values = kc.losses.sample_dependent_focal_loss(
        [0, 1, 2], np.log(p), thresholds=(0.2, 0.5), gammas=(5, 3, 2)
    )
    expected = -((1 - p[0]) ** [5, 3, 2]) * np.log(p[0])
    np.testing.assert_allclose(
        ops.convert_to_numpy(values), expected, rtol=1e-6
    )


def test_gamma_is_a_constant_in_the_gradient():
    _, gradient = value_and_gradient(
        lambda z: ops.sum(
            kc.losses.sample_dependent_focal_loss(LABELS_B, z)[1]
        ),
        B,
    )
    _, expected = value_and_gradient(
        lambda z: ops.sum(kc.losses.focal_loss(LABELS_B, z, gamma=5.0)[1]), B
    )
    assert_gradient(gradient, expected)


@pytest.mark.parametrize(
    ("thresholds", "gammas", "message"),
    [
        ((0.5, 0.2), (5, 3, 2), "each above the last"),
        ((0.0,), (5, 3), "between 0 and 1"),
        ((1.0,), (5, 3), "between 0 and 1"),
        ((0.2,), (5,), "one more"),
        ((0.2,), (5, -3), "powers >= 0"),
    ],
    ids=["order", "zero", "one", "too few", "negative"],
)
def test_bad_arguments(thresholds, gammas, message):
    with pytest.raises(ValueError, match=message):
        kc.losses.SampleDependentFocalLoss(thresholds=thresholds, gammas=gammas)
    with pytest.raises(ValueError, match=message):
        kc.losses.sample_dependent_focal_loss(
            LABELS_A, A, thresholds=thresholds, gammas=gammas
        )
