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
from tests.losses.fixtures import on_image


@pytest.mark.parametrize(
    ("smoothing", "on_a", "on_b"),
    [
        (0.0, 0.55264564, 0.88972146),
        (0.05, 0.61875675, 1.14503396),
        (0.1, 0.68486786, 1.40034646),
    ],
)
def test_value(smoothing, on_a, on_b):
    loss = kc.losses.LabelSmoothing(smoothing=smoothing, from_logits=True)
    assert float(loss(LABELS_A, A)) == pytest.approx(on_a, rel=1e-6)
    assert float(loss(LABELS_B, B)) == pytest.approx(on_b, rel=1e-6)


@pytest.mark.parametrize(
    ("labels", "logits", "expected"),
    [(LABELS_A, A, 0.75097897), (LABELS_B, B, 1.57055479)],
    ids="AB",
)
def test_the_convention_that_spares_the_label(labels, logits, expected):
    # 1 - alpha on the label, alpha / (C - 1) elsewhere, alpha = 0.1.
    classes = logits.shape[-1]
    smoothing = 0.1 * classes / (classes - 1)
    value = ops.mean(
        kc.losses.label_smoothing(labels, logits, smoothing=smoothing)
    )
    assert float(value) == pytest.approx(expected, rel=1e-6)


def test_gradient_is_that_of_acls_eq_5():
    # (p - q') / n
    _, gradient = value_and_gradient(
        lambda z: ops.mean(
            kc.losses.label_smoothing(LABELS_A, z, smoothing=0.1)
        ),
        A,
    )
    expected = [
        [-0.04924543, 0.04731902, 0.00192641],
        [-0.22402167, 0.20309436, 0.02092731],
        [-0.00800079, 0.00968414, -0.00168335],
    ]
    assert_gradient(gradient, expected)


def test_soft_labels_are_smoothed_as_they_are():
    # Mixed labels give mixed losses.
    mixed = 0.3 * np.eye(3)[LABELS_A] + 0.7 * np.eye(3)[[1, 1, 1]]
    values = kc.losses.label_smoothing(mixed, A)
    parts = [kc.losses.label_smoothing(y, A) for y in (LABELS_A, [1, 1, 1])]
    expected = 0.3 * ops.convert_to_numpy(parts[0])
    expected += 0.7 * ops.convert_to_numpy(parts[1])
    np.testing.assert_allclose(
        ops.convert_to_numpy(values), expected, rtol=1e-6
    )


def test_segmentation_with_a_void_pixel():
    loss = kc.losses.LabelSmoothing(from_logits=True)
    assert on_image(loss) == pytest.approx(1.14932834, rel=1e-6)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, 5.0])
def test_smoothing_is_a_share(smoothing):
    with pytest.raises(ValueError, match=f"smoothing={smoothing}"):
        kc.losses.LabelSmoothing(smoothing=smoothing)
    with pytest.raises(ValueError, match="below 1"):
        kc.losses.label_smoothing(LABELS_A, A, smoothing=smoothing)


def test_without_smoothing_a_class_may_be_ruled_out():
    found = kc.losses.label_smoothing([0], [[2.0, 0.5, -np.inf]], smoothing=0.0)
    expected = np.log1p(np.exp(-1.5))
    assert float(found[0]) == pytest.approx(expected, rel=1e-5)
