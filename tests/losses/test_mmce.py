import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.losses import mmce as function
from keras_calib.losses._mmce import _sorted_form
from keras_calib.losses._mmce import quadratic_form
from tests.helpers import to_numpy
from tests.helpers import value_and_gradient
from tests.losses.fixtures import LABELS_A
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import A
from tests.losses.fixtures import B
from tests.losses.fixtures import assert_gradient
from tests.losses.fixtures import in_float64
from tests.losses.fixtures import on_image


@pytest.mark.parametrize(
    ("arguments", "on_a", "on_b"),
    [
        ({}, 0.16590670, 0.22452795),
        ({"squared": True}, 0.02752503, 0.05041280),
        ({"weighted": True}, 0.55873171, 0.79919612),
        ({"weighted": True, "squared": True}, 0.31218112, 0.63871443),
        (
            {"weighted": True, "double_normalized": True},
            0.59835172,
            0.84410333,
        ),
    ],
    ids=["plain", "code", "weighted", "weighted squared", "weighted code"],
)
@pytest.mark.parametrize("form", ["dense", "sorted"])
def test_value(arguments, on_a, on_b, form, monkeypatch):
    if form == "sorted":
        monkeypatch.setitem(quadratic_form.__globals__, "DENSE_ROWS", 0)
    value = float(function(LABELS_A, A, **arguments))
    assert value == pytest.approx(on_a, rel=1e-6)
    value = float(function(LABELS_B, B, **arguments))
    assert value == pytest.approx(on_b, rel=1e-6)


@pytest.mark.parametrize(
    ("weighted", "expected"),
    [
        (
            False,
            [
                [0.05106779, -0.04175172, -0.00931607],
                [-0.01801368, 0.02464055, -0.00662686],
                [-0.00070966, -0.00474469, 0.00545435],
            ],
        ),
        (
            True,
            [
                [0.08615084, -0.07043473, -0.01571611],
                [-0.12062105, 0.16499505, -0.04437400],
                [-0.00191212, -0.01278422, 0.01469634],
            ],
        ),
    ],
    ids=["plain", "weighted"],
)
@pytest.mark.parametrize("form", ["dense", "sorted"])
def test_gradient(weighted, expected, form, monkeypatch):
    if form == "sorted":
        monkeypatch.setitem(quadratic_form.__globals__, "DENSE_ROWS", 0)
    _, gradient = value_and_gradient(
        lambda z: function(LABELS_A, z, weighted=weighted), A
    )
    assert_gradient(gradient, expected)


@pytest.mark.parametrize("width", [0.4, 0.05])
def test_sorted_form_is_the_dense_form(width):
    rng = np.random.default_rng(0)
    c = np.round(rng.uniform(size=100), 2)  # many equal ones
    s = rng.normal(size=100)
    assert len(np.unique(c)) < 70
    kernel = np.exp(-np.abs(c[:, None] - c) / width)
    slope = -np.sign(c[:, None] - c) * kernel / width

    def both(form):
        # One array, since the helper differentiates one.
        return in_float64(lambda x: form(x[0], x[1], width), np.stack([s, c]))

    value, gradient = both(_sorted_form)
    assert value == pytest.approx(s @ kernel @ s, rel=1e-12)
    expected = np.stack([2 * kernel @ s, 2 * s * (slope @ s)])
    scale = np.abs(expected).max(axis=1, keepdims=True)
    np.testing.assert_allclose(gradient / scale, expected / scale, atol=1e-12)
    again, dense = both(quadratic_form)
    assert value == pytest.approx(again, rel=1e-12)
    np.testing.assert_allclose(gradient / scale, dense / scale, atol=1e-12)


def test_one_sample():
    # | a - c |; the weighted form needs correct and wrong samples.
    value = float(function(LABELS_B[1:2], B[1:2]))
    assert value == pytest.approx(0.87963119, rel=1e-6)
    assert float(function(LABELS_B[1:2], B[1:2], weighted=True)) == 0.0


def test_a_perfect_batch_has_no_slope():
    value, gradient = value_and_gradient(
        lambda z: function([0, 1], z), [[100.0, 0.0], [0.0, 100.0]]
    )
    assert value == 0.0
    np.testing.assert_array_equal(gradient, 0.0)


def test_sample_weight():
    order = [0, 0, 1, 2]
    for weighted in (False, True):
        value = float(
            function(
                LABELS_A, A, weighted=weighted, sample_weight=[2.0, 1.0, 1.0]
            )
        )
        again = float(function(LABELS_A[order], A[order], weighted=weighted))
        assert value == pytest.approx(again, rel=1e-6)


def test_segmentation_with_a_void_pixel():
    loss = kc.losses.MMCE(primary=None, weight=1.0, from_logits=True)
    assert on_image(loss) == pytest.approx(0.24025645, rel=1e-6)


def test_a_batch_of_pixels_needs_no_matrix_of_pairs():
    # 65,536 pixels: all pairs would take 16 GiB.
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (1, 256, 256))
    logits = rng.normal(size=(1, 256, 256, 3)).astype("float32")
    value = float(function(labels, logits))
    p = np.exp(logits).reshape(-1, 3)
    c = (p / p.sum(-1, keepdims=True)).max(-1).astype("float64")
    a = (p.argmax(-1) == labels.ravel()).astype("float64")
    order = np.argsort(c)
    s, c = ((a - c) / c.size)[order], c[order]
    below = np.cumsum(s * np.exp(c / 0.4)) - s * np.exp(c / 0.4)
    squared = np.sum(s * s) + 2 * np.sum(s * np.exp(-c / 0.4) * below)
    assert value == pytest.approx(np.sqrt(squared), rel=1e-5)
    assert to_numpy(ops.convert_to_tensor(value)).shape == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel_width": 0.0}, "at least 0.01"),
        ({"double_normalized": True}, "weighted=True"),
    ],
    ids=["width", "double"],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        kc.losses.MMCE(**arguments)
    with pytest.raises(ValueError, match=message):
        function(LABELS_A, A, **arguments)


@pytest.mark.parametrize("weighted_rows", [False, True])
def test_double_normalized_divides_by_the_pairs_of_each_kind(weighted_rows):
    # Three right and two wrong, so that every number of pairs is another.
    labels = np.array([0, 1, 2, 0, 1])
    logits = np.array(
        [[2, 0, 0], [0, 1, 0], [0, 0, 3], [0, 2, 1], [1.5, 0, 0.5]], "float64"
    )
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    c, a = p.max(axis=1), (p.argmax(axis=1) == labels).astype(float)
    w = np.array([1.0, 2.0, 0.5, 3.0, 1.0]) if weighted_rows else np.ones(5)
    w = 5 * w / w.sum()
    kernel = np.exp(-np.abs(c[:, None] - c) / 0.4)
    right, wrong = w * a, w * (1 - a)
    u, v = right * (1 - c) / right.sum(), wrong * c / wrong.sum()
    square = (
        u @ kernel @ u / (right.sum() ** 2 + 1e-5)
        + v @ kernel @ v / (wrong.sum() ** 2 + 1e-5)
        - 2 * u @ kernel @ v / (right.sum() * wrong.sum() + 1e-5)
    )
    value = function(
        labels,
        logits,
        w if weighted_rows else None,
        weighted=True,
        double_normalized=True,
    )
    assert float(value) == pytest.approx(np.sqrt(square), rel=1e-6)


def test_the_least_width_of_a_kernel():
    p = np.array([[0.2, 0.8], [0.6, 0.4]], "float32")
    value = kc.losses.mmce([1, 1], np.log(p), kernel_width=0.01)
    # Errors -0.2 and 0.6, and the pair is 20 widths apart.
    expected = np.sqrt(0.2**2 + 0.6**2 - 2 * 0.12 * np.exp(-20)) / 2
    assert float(value) == pytest.approx(expected, rel=1e-5)
    loss = kc.losses.MMCE(kernel_width=0.01, primary=None, weight=1.0)
    assert float(loss([1, 1], p)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("label", [0, 1])
def test_a_batch_of_one_kind_has_no_weighted_error(label):
    p = np.array([[0.2, 0.8], [0.4, 0.6]], "float32")
    settings = {"weighted": True, "primary": None, "weight": 1.0}
    # All are right, or all are wrong.
    for squared in (False, True):
        loss = kc.losses.MMCE(squared=squared, **settings)
        assert float(loss([label, label], p)) == 0.0
