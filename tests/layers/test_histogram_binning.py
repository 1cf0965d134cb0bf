import numpy as np
import pytest

import keras_calib as kc
from keras_calib.layers._histogram_binning import frequencies
from keras_calib.layers._histogram_binning import histogram
from keras_calib.solvers.gamma_bins import average_factors
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import overconfident
from tests.layers.generated import softmax
from tests.layers.generated import top_label

# The top label of the generated set; empty bins give their centre.
EQUAL_WIDTH = [
    0.0333333,
    0.1,
    0.1666667,
    0.2333333,
    0,
    0.4,
    0.214285714286,
    0.65,
    0.346153846154,
    0.535714285714,
    0.62962962963,
    0.58064516129,
    0.657142857143,
    0.553571428571,
    0.910505836576,
]
EQUAL_MASS = [0.48, 0.42, 0.6, 0.62, 0.6, 0.86, 0.88, 0.88, 0.96, 1]


@pytest.mark.parametrize(
    ("num_bins", "equal_mass", "expected"),
    [(15, False, EQUAL_WIDTH), (10, True, EQUAL_MASS)],
    ids=["width", "mass"],
)
def test_top_label_of_the_generated_set(num_bins, equal_mass, expected):
    log_odds, correct = top_label(*generated())
    confidence = 1 / (1 + np.exp(-log_odds))
    found = frequencies(
        *histogram(confidence, correct, np.ones(500), num_bins, equal_mass)
    )
    assert found == pytest.approx(expected, abs=1e-7)


def test_edges_belong_to_the_bin_below():
    edges, counts, events = histogram(
        np.array([0.0, 0.5, 0.51, 1.0]), np.array([1, 0, 1, 1]), np.ones(4), 2
    )
    assert edges.tolist() == [0.5]
    assert counts.tolist() == [2, 2]
    assert events.tolist() == [1, 2]


def test_one_class_against_the_rest():
    logits = np.log([[0.7, 0.2, 0.1]] * 4 + [[0.1, 0.2, 0.7]] * 4)
    labels = [0, 0, 1, 1, 2, 2, 2, 0]
    layer = kc.layers.HistogramBinning(num_bins=2, shrinkage=None)
    layer.adapt(logits, labels)
    # First class: above 1/2 it came true in 2 of 4, below in 1 of 4; second:
    # 2 of 8; third: below never in 4, with a centre of 1/4: 1/8.
    row = np.array([2 / 4, 2 / 8, 1 / 8])
    found = np.exp(to_numpy(layer(logits)))
    assert found[0] == pytest.approx(row / row.sum(), rel=1e-5)


def test_equal_scores_share_a_bin():
    logits = np.log([[0.9, 0.1]] * 10)
    labels = [0] * 8 + [1] * 2
    layer = kc.layers.HistogramBinning(equal_mass=True, shrinkage=None)
    layer.adapt(logits, labels)
    found = np.exp(to_numpy(layer(logits)))
    assert found[0] == pytest.approx([0.8, 0.2], rel=1e-5)


def test_an_absent_class_keeps_its_probabilities():
    logits, labels = generated()
    keep = labels != 2
    layer = kc.layers.HistogramBinning(shrinkage=None)
    layer.adapt(logits[keep], labels[keep])
    assert layer.record["num_absent_classes"] == 1
    assert to_numpy(layer.binned).tolist() == [1, 1, 0, 1, 1]


def test_bad_number_of_bins():
    with pytest.raises(ValueError, match="at least 1"):
        kc.layers.HistogramBinning(num_bins=0)


def test_bins_of_equal_mass_do_not_shrink():
    with pytest.raises(ValueError, match="equal_mass=True"):
        kc.layers.HistogramBinning(equal_mass=True)


def test_default_number_of_bins():
    assert kc.layers.HistogramBinning().num_bins == 5
    assert kc.layers.HistogramBinning(shrinkage=None).num_bins == 15


def test_factors_multiply_tempered_probabilities():
    logits, labels = generated()
    layer = kc.layers.HistogramBinning(num_bins=3).adapt(logits, labels)
    temperature = layer.record["temperature"]
    assert temperature == pytest.approx(1.97593901124, rel=1e-6)
    p = softmax(logits / temperature)
    edges = to_numpy(layer.edges)[0, :2]
    index = np.searchsorted(edges, p, "left")
    # Equal expected numbers of events: the sum of all is 500.
    mass = np.bincount(index.ravel(), p.ravel())
    assert mass == pytest.approx([500 / 3] * 3, abs=1.0)
    events, expected = np.zeros((2, 5, 3))
    for k in range(5):
        np.add.at(expected[k], index[:, k], p[:, k])
        np.add.at(events[k], index[:, k], labels == k)
    assert events.sum() == 500
    found = average_factors(events, expected)
    np.testing.assert_allclose(
        np.exp(to_numpy(layer.log_factors))[:, :3], found.factors, rtol=1e-4
    )
    assert layer.record["temperature_scaling_probability"] == pytest.approx(
        found.plain, rel=1e-3
    )
    q = p * np.take_along_axis(found.factors, index.T, axis=1).T
    np.testing.assert_allclose(
        softmax(to_numpy(layer(logits))),
        q / q.sum(axis=1, keepdims=True),
        rtol=1e-4,
    )


@pytest.mark.parametrize("equal_mass", [False, True])
@pytest.mark.parametrize("scale", [60.0, 200.0])
def test_scores_that_float32_cannot_tell_apart_share_a_bin(equal_mass, scale):
    logits, labels = overconfident(2, scale)
    layer = kc.layers.HistogramBinning(equal_mass=equal_mass, shrinkage=None)
    layer.adapt(logits, labels)
    p = np.exp(to_numpy(layer(logits)))
    accuracy = (p.argmax(axis=1) == labels).mean()
    assert abs(p.max(axis=1).mean() - accuracy) < 0.02


def test_an_edge_between_neighbouring_floats_parts_them():
    low = np.float32(1) - np.float32(2**-24)
    scores = np.array([low] * 5 + [1.0] * 5, "float32")
    events = np.arange(10) >= 5
    edges, counts, found = histogram(
        scores, events, np.ones(10), 2, equal_mass=True
    )
    assert edges.dtype == "float32"
    assert counts.tolist() == [5, 5]
    assert found.tolist() == [0, 5]
