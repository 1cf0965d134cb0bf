import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from tests.helpers import value_and_gradient
from tests.losses.fixtures import LABELS_A
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import A
from tests.losses.fixtures import B


@pytest.mark.parametrize(
    ("labels", "logits", "margin", "penalty", "total"),
    [
        (LABELS_A, A, 1.0, 0.96666667, 0.64931230),
        (LABELS_B, B, 10.0, 1.28125000, 1.01784646),
        (LABELS_B, B, 6.0, 2.71875000, 1.16159646),
    ],
)
def test_penalty_and_total(labels, logits, margin, penalty, total):
    value = ops.mean(
        kc.losses.margin_label_smoothing(labels, logits, margin=margin)
    )
    assert float(value) == pytest.approx(penalty, rel=1e-6)
    loss = kc.losses.MarginLabelSmoothing(margin=margin, from_logits=True)
    assert float(loss(labels, logits)) == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize(
    ("stop_gradient_max", "expected"),
    [
        (
            False,
            [
                [0.22222222, -0.11111111, -0.11111111],
                [0.0, 0.11111111, -0.11111111],
                [-0.11111111, -0.11111111, 0.22222222],
            ],
        ),
        (  # ACLS supplement, eqs. 15 and 17
            True,
            [
                [0.0, -0.11111111, -0.11111111],
                [0.0, 0.0, -0.11111111],
                [-0.11111111, -0.11111111, 0.0],
            ],
        ),
    ],
)
def test_gradient(stop_gradient_max, expected):
    _, gradient = value_and_gradient(
        lambda z: ops.mean(
            kc.losses.margin_label_smoothing(
                LABELS_A, z, margin=1.0, stop_gradient_max=stop_gradient_max
            )
        ),
        A,
    )
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


def test_segmentation_with_a_void_pixel():
    labels = np.array([[[0, 2], [0, 255]]])
    loss = kc.losses.MarginLabelSmoothing(from_logits=True, ignore_class=255)
    value = float(loss(labels, B.reshape(1, 2, 2, 4)))
    assert value == pytest.approx(0.98474500, rel=1e-6)


def test_a_wide_margin_is_plain_cross_entropy():
    loss = kc.losses.MarginLabelSmoothing(margin=100.0, from_logits=True)
    assert float(loss(LABELS_B, B)) == pytest.approx(0.88972146, rel=1e-6)


def test_negative_margin():
    with pytest.raises(ValueError, match="cannot be negative"):
        kc.losses.MarginLabelSmoothing(margin=-0.1)
    with pytest.raises(ValueError, match="cannot be negative"):
        kc.losses.margin_label_smoothing(LABELS_A, A, margin=-0.1)
