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


@pytest.mark.parametrize("stop_gradient", [False, True])
def test_value(stop_gradient):
    for labels, logits, expected in (
        (LABELS_A, A, 0.38673271),
        (LABELS_B, B, 0.55894499),
    ):
        value = kc.losses.avuc(
            labels, logits, threshold=0.5, stop_gradient=stop_gradient
        )
        assert float(value) == pytest.approx(expected, rel=1e-6)


GRADIENTS = {
    "A": (
        LABELS_A,
        A,
        False,
        [
            [-0.05182814, 0.02301086, 0.02881728],
            [-0.04890288, 0.07307130, -0.02416841],
            [0.01442408, 0.06100306, -0.07542715],
        ],
    ),
    "A, GS": (
        LABELS_A,
        A,
        True,
        [
            [-0.12059304, 0.07923129, 0.04136175],
            [-0.00809858, 0.01725592, -0.00915735],
            [0.01224185, 0.04641285, -0.05865470],
        ],
    ),
    "B": (
        LABELS_B,
        B,
        False,
        [
            [-0.00091695, 0.00008595, 0.00082890, 0.00000210],
            [-0.00006945, -0.02589218, 0.02596219, -0.00000057],
            [-0.00066057, 0.00065924, 0.00000095, 0.00000038],
            [-0.04446865, -0.03917729, -0.02342020, 0.10706614],
        ],
    ),
    "B, GS": (
        LABELS_B,
        B,
        True,
        [
            [-0.00082257, 0.00007880, 0.00074180, 0.00000197],
            [-0.00049729, 0.01304932, -0.01255107, -0.00000096],
            [-0.05974081, 0.05973941, 0.00000100, 0.00000039],
            [-0.00046892, 0.00063532, 0.00326699, -0.00343340],
        ],
    ),
}


@pytest.mark.parametrize("case", GRADIENTS)
def test_gradient(case):
    labels, logits, stop_gradient, expected = GRADIENTS[case]
    _, gradient = value_and_gradient(
        lambda z: kc.losses.avuc(
            labels, z, threshold=0.5, stop_gradient=stop_gradient
        ),
        logits,
    )
    # The compiler's `tanh` and `exp` differ in their last bits.
    assert_gradient(gradient, expected, tolerance=2e-6)


def test_a_sample_at_the_threshold_is_certain():
    # Two equal logits: H = log 2. Certain and accurate: nothing undesired.
    logits = np.zeros((1, 2))
    threshold = float(np.log(np.float32(2.0))) + 1e-6
    assert float(kc.losses.avuc([0], logits, threshold=threshold)) == 0.0
    assert float(kc.losses.avuc([0], logits, threshold=threshold - 1e-3)) > 1.0


def test_nothing_as_desired_stays_finite():
    # All accurate and uncertain: the denominator is its floor.
    value, gradient = value_and_gradient(
        lambda z: kc.losses.avuc([0], z, threshold=0.0), [[1.0, 0.0]]
    )
    p = 1 / (1 + np.exp(-1.0))
    entropy = -p * np.log(p) - (1 - p) * np.log(1 - p)
    expected = np.log1p(p * np.tanh(entropy) / 1e-5)
    assert value == pytest.approx(expected, rel=1e-6)
    assert np.isfinite(gradient).all()


def test_sample_weight():
    order = [0, 0, 1, 2]
    value = kc.losses.avuc(
        LABELS_A, A, threshold=0.5, sample_weight=[2.0, 1.0, 1.0]
    )
    again = kc.losses.avuc(LABELS_A[order], A[order], threshold=0.5)
    assert float(value) == pytest.approx(float(again), rel=1e-6)


def test_segmentation_with_a_void_pixel():
    loss = kc.losses.AvUC(
        threshold=0.5, primary=None, weight=1.0, from_logits=True
    )
    assert on_image(loss) == pytest.approx(0.37953008, rel=1e-6)


def test_negative_threshold():
    with pytest.raises(ValueError, match="cannot be negative"):
        kc.losses.AvUC(threshold=-0.1)
    with pytest.raises(ValueError, match="cannot be negative"):
        kc.losses.avuc(LABELS_A, A, threshold=-0.1)
