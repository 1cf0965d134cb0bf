import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from tests.helpers import to_numpy
from tests.helpers import value_and_gradient
from tests.losses.fixtures import LABELS_A
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import LABELS_SATURATED
from tests.losses.fixtures import LABELS_TWO_CLASSES
from tests.losses.fixtures import SATURATED
from tests.losses.fixtures import TWO_CLASSES
from tests.losses.fixtures import A
from tests.losses.fixtures import B
from tests.losses.fixtures import assert_gradient
from tests.losses.fixtures import on_image

ONE_VS_ONE = {"one_vs_one_weight": 1.0, "exclusion_weight": 0.0}
EXCLUSION = {"one_vs_one_weight": 0.0, "exclusion_weight": 1.0}


def mean(labels, logits, terms):
    return ops.mean(kc.losses.cpc(labels, logits, **terms))


@pytest.mark.parametrize(
    ("labels", "logits", "one_vs_one", "exclusion"),
    [
        (LABELS_A, A, 0.31324357, 0.52169780),
        (LABELS_B, B, 0.33392905, 1.56440454),
        (LABELS_SATURATED, SATURATED, 750.34657359, 125.17328680),
        (LABELS_TWO_CLASSES, TWO_CLASSES, 0.65229966, 0.0),
    ],
    ids=["A", "B", "saturated", "two classes"],
)
def test_terms(labels, logits, one_vs_one, exclusion):
    value = float(mean(labels, logits, ONE_VS_ONE))
    assert value == pytest.approx(one_vs_one, rel=1e-6)
    value = float(mean(labels, logits, EXCLUSION))
    assert value == pytest.approx(exclusion, rel=1e-6)


def test_total():
    loss = kc.losses.CPC(from_logits=True)
    assert float(loss(LABELS_A, A)) == pytest.approx(1.10566779, rel=1e-6)
    assert float(loss(LABELS_B, B)) == pytest.approx(2.48751890, rel=1e-6)


@pytest.mark.parametrize(
    ("logits", "labels", "terms", "expected"),
    [
        (
            A,
            LABELS_A,
            ONE_VS_ONE,
            [
                [-0.03830857, 0.03040425, 0.00790431],
                [-0.16331515, 0.11849158, 0.04482357],
                [0.00165863, 0.01049556, -0.01215419],
            ],
        ),
        (
            A,
            LABELS_A,
            EXCLUSION,
            [
                [0.0, 0.05292908, -0.05292908],
                [0.0, 0.06164859, -0.06164859],
                [-0.06164859, 0.06164859, 0.0],
            ],
        ),
        (
            B,
            LABELS_B,
            EXCLUSION,
            [
                [0.0, 0.00241133, 0.03844336, -0.04085469],
                [0.00002459, 0.04160406, 0.0, -0.04162865],
                [0.0, 0.04166662, -0.01120586, -0.03046076],
                [0.00614327, 0.00307119, -0.00921446, 0.0],
            ],
        ),
    ],
    ids=["one versus one", "exclusion A", "exclusion B"],
)
def test_gradient(logits, labels, terms, expected):
    _, gradient = value_and_gradient(lambda z: mean(labels, z, terms), logits)
    assert_gradient(gradient, expected)


@pytest.mark.parametrize("num_classes", [3, 4, 7, 10])
def test_gradients_are_those_of_acls_supplement_eqs_5_and_6(num_classes):
    rng = np.random.default_rng(num_classes)
    z = 3 * rng.normal(size=(5, num_classes))
    labels = rng.integers(0, num_classes, 5)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    other = 1 - np.eye(num_classes)[labels]
    label = np.take_along_axis(p, labels[:, None], 1)

    # eq. 5: p_j / (p_y + p_j), and minus their sum at y.
    expected = other * p / (label + p)
    expected -= (1 - other) * expected.sum(-1, keepdims=True)
    _, gradient = value_and_gradient(
        lambda x: ops.sum(kc.losses.cpc(labels, x, **ONE_VS_ONE)), z
    )
    assert_gradient(gradient * (num_classes - 1), expected)

    # eq. 6: sum over k of (p_j - p_k) / (p_j + p_k), k and j not y.
    pairs = (p[:, :, None] - p[:, None]) / (p[:, :, None] + p[:, None])
    expected = (pairs * other[:, :, None] * other[:, None]).sum(-1)
    _, gradient = value_and_gradient(
        lambda x: ops.sum(kc.losses.cpc(labels, x, **EXCLUSION)), z
    )
    scale = 2 * (num_classes - 1) * (num_classes - 2)
    assert_gradient(gradient * scale, expected)


@pytest.mark.parametrize("num_classes", [3, 4, 5, 8, 21])
def test_every_pair_counts_once(num_classes):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2, num_classes))
    labels = rng.integers(0, num_classes, 2)
    expected = []
    for row, y in zip(z, labels, strict=True):
        rest = np.delete(row, y)
        pairs = np.log1p(np.exp(rest[:, None] - rest)) / 2
        np.fill_diagonal(pairs, 0)
        count = (num_classes - 1) * (num_classes - 2)
        expected.append(pairs.sum() / count)
    values = to_numpy(kc.losses.cpc(labels, z, **EXCLUSION))
    np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_segmentation_with_a_void_pixel():
    for terms, expected in (
        (ONE_VS_ONE, 0.27238538),
        (EXCLUSION, 1.96745666),
    ):
        loss = kc.losses.CPC(primary=None, from_logits=True, **terms)
        assert on_image(loss) == pytest.approx(expected, rel=1e-6)


def test_symbolic_batch_size(digits):
    # TensorFlow traces `fit` with an unknown number of rows.
    (x, y), _, _ = digits
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
    model.compile("sgd", kc.losses.CPC(from_logits=True))
    history = model.fit(x, y, epochs=2, verbose=0).history["loss"]
    assert history[1] < history[0]


def test_negative_weights():
    for name in ONE_VS_ONE:
        with pytest.raises(ValueError, match="cannot be negative"):
            kc.losses.CPC(**{name: -0.1})
        with pytest.raises(ValueError, match="cannot be negative"):
            kc.losses.cpc(LABELS_A, A, **{name: -0.1})
