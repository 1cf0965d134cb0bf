import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import value_and_gradient
from tests.losses.fixtures import LABELS_A
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import LABELS_SATURATED
from tests.losses.fixtures import SATURATED
from tests.losses.fixtures import A
from tests.losses.fixtures import B
from tests.losses.fixtures import assert_gradient
from tests.losses.fixtures import in_float64
from tests.losses.fixtures import on_image


@pytest.mark.parametrize(
    ("kappa", "temperature", "on_a", "on_b"),
    [
        (0.3, 0.1, 0.36495113, 1.02750388),
        (0.5, 1.0, 0.30307316, 0.75459704),
    ],
)
def test_value(kappa, temperature, on_a, on_b):
    value = kc.losses.soft_avuc(
        LABELS_A, A, kappa=kappa, temperature=temperature
    )
    assert float(value) == pytest.approx(on_a, rel=1e-6)
    value = kc.losses.soft_avuc(
        LABELS_B, B, kappa=kappa, temperature=temperature
    )
    assert float(value) == pytest.approx(on_b, rel=1e-6)


@pytest.mark.parametrize(
    ("labels", "logits", "expected"),
    [
        (
            LABELS_A,
            A,
            [
                [-0.10841032, 0.07122707, 0.03718325],
                [-0.01491995, 0.03179047, -0.01687052],
                [0.07424587, 0.28149043, -0.35573629],
            ],
        ),
        (
            LABELS_B,
            B,
            [
                [-0.00115198, 0.00011036, 0.00103886, 0.00000276],
                [-0.02280766, 0.59849372, -0.57564198, -0.00004408],
                [-0.06198934, 0.06198789, 0.00000104, 0.00000041],
                [-0.00083750, 0.00113470, 0.00583493, -0.00613213],
            ],
        ),
    ],
    ids="AB",
)
def test_gradient(labels, logits, expected):
    _, gradient = value_and_gradient(
        lambda z: kc.losses.soft_avuc(labels, z), logits
    )
    # Rounding counts 1 / temperature = 10 times.
    assert_gradient(gradient, expected, tolerance=5e-6)
    _, gradient = in_float64(lambda z: kc.losses.soft_avuc(labels, z), logits)
    assert_gradient(gradient, expected, tolerance=2e-7)


def test_saturated_logits():
    # Entropies of exactly 0 and log C: the logits of both are infinite.
    value, gradient = value_and_gradient(
        lambda z: kc.losses.soft_avuc(LABELS_SATURATED, z), SATURATED
    )
    assert value == pytest.approx(0.81093022, rel=1e-6)
    assert np.isfinite(gradient).all()


def test_sample_weight():
    order = [0, 0, 1, 2]
    value = kc.losses.soft_avuc(LABELS_A, A, sample_weight=[2.0, 1.0, 1.0])
    again = kc.losses.soft_avuc(LABELS_A[order], A[order])
    assert float(value) == pytest.approx(float(again), rel=1e-6)


def test_segmentation_with_a_void_pixel():
    loss = kc.losses.SoftAvUC(primary=None, from_logits=True)
    assert on_image(loss) == pytest.approx(0.68030037, rel=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [{"kappa": 0.0}, {"kappa": 1.0}, {"temperature": 0.0}],
    ids=["kappa 0", "kappa 1", "temperature 0"],
)
def test_bad_arguments(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"Received: {name}="):
        kc.losses.SoftAvUC(**arguments)
    with pytest.raises(ValueError, match=f"Received: {name}="):
        kc.losses.soft_avuc(LABELS_A, A, **arguments)
