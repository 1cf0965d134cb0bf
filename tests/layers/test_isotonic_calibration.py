import numpy as np
import pytest

import keras_calib as kc
from keras_calib.solvers.isotonic import at_most
from keras_calib.solvers.isotonic import isotonic_regression
from keras_calib.solvers.isotonic import without_certainty
from keras_calib.solvers.shrinkage import mixture_weight
from keras_calib.solvers.shrinkage import ratio_by_fold
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import overconfident
from tests.layers.generated import top_label

ROW = np.log([[0.6, 0.2, 0.1, 0.06, 0.04]])
EXPECTED = {
    False: [
        0.331195087274,
        0.189971207953,
        0.189240549382,
        0.187736252456,
        0.101856902934,
    ],
    True: [
        0.34430176587,
        0.0662118781248,
        0.130417335447,
        0.172150882729,
        0.286918137829,
    ],
}


@pytest.mark.parametrize("per_class", EXPECTED)
def test_generated_set(per_class):
    layer = kc.layers.IsotonicCalibration(per_class=per_class, shrinkage=None)
    layer.adapt(*generated())
    found = np.exp(to_numpy(layer(ROW)))[0]
    assert found == pytest.approx(EXPECTED[per_class], abs=1e-6)
    assert layer.preserves_accuracy == (not per_class)


def test_levels_of_the_top_label():
    log_odds, correct = top_label(*generated())
    blocks = isotonic_regression(log_odds, correct)
    assert blocks.level == pytest.approx(
        [
            0,
            0.277777777778,
            0.458333333333,
            0.51724137931,
            0.536585365854,
            0.625,
            0.75,
            0.8,
            0.868421052632,
            0.888888888889,
            0.904761904762,
            0.958333333333,
            1,
        ],
        abs=1e-11,
    )
    assert blocks.weight.sum() == 500


@pytest.mark.parametrize("case", ["noise", "falling", "ties", "weights"])
def test_agrees_with_scikit_learn(case):
    from sklearn.isotonic import IsotonicRegression

    rng = np.random.default_rng(0)
    x = rng.normal(size=3000)
    y = (rng.normal(size=3000) < x).astype(float)
    weight = None
    if case == "falling":
        y = -x  # one block, the longest way there
    elif case == "ties":
        x = np.round(x, 1)
    elif case == "weights":
        weight = rng.uniform(0.1, 3.0, size=3000)
    blocks = isotonic_regression(x, y, weight)
    peer = IsotonicRegression().fit(x, y, weight)
    for edge in (blocks.first, blocks.last):
        np.testing.assert_allclose(peer.predict(edge), blocks.level, atol=1e-9)


def test_a_million_scores():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=1_000_000)
    y = rng.uniform(size=1_000_000) < x**2
    blocks = isotonic_regression(x, y)
    assert (np.diff(blocks.level) > 0).all()
    np.testing.assert_allclose(blocks.level, blocks.score**2, atol=0.05)


def test_too_many_levels_are_joined():
    x = np.arange(100.0)
    blocks = at_most(isotonic_regression(x, np.sqrt(x)), 10)
    assert len(blocks.level) == 10
    assert (np.diff(blocks.level) > 0).all()
    assert blocks.weight @ blocks.level == pytest.approx(np.sqrt(x).sum())
    layer = kc.layers.IsotonicCalibration(num_levels=4).adapt(*generated())
    assert layer.record["num_levels"] == 4


def test_what_never_came_true_is_small_but_not_zero():
    found = without_certainty(
        np.array([0.0, 0.0, 0.3, 1.0]),
        np.array([1000.0, 0.0, 10.0, 4.0]),
        np.array([0.5, 0.2, 0.3, 0.75]),
    )
    # 0.5 / 501; nothing was seen, so 0.2; as it is; 1 - 0.25 / 2.
    assert found == pytest.approx([0.5 / 501, 0.2, 0.3, 0.875])


def test_an_absent_class_keeps_its_share():
    logits, labels = generated()
    keep = labels != 2
    layer = kc.layers.IsotonicCalibration(per_class=True)
    layer.adapt(logits[keep], labels[keep])
    knots = to_numpy(layer.knots)[2, :3]
    np.testing.assert_array_equal(knots, [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(to_numpy(layer.heights)[2, :2], [0.0, 1.0])


@pytest.mark.parametrize(("per_class", "caution"), [(False, 4), (True, 9)])
def test_many_functions_need_more_evidence(per_class, caution):
    logits, labels = generated()
    layer = kc.layers.IsotonicCalibration(per_class=per_class)
    layer.adapt(logits, labels)
    folds, equal = layer.folds, np.ones(len(labels))
    curve = ratio_by_fold(folds.plain, folds.rich, equal, folds.fold)
    expected = mixture_weight(curve.sum(axis=0), caution)
    assert 0 < expected < 1
    assert float(layer.mixture) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [{"per_class": "shared"}, {"num_levels": 1}],
    ids=["per class", "levels"],
)
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match="must be"):
        kc.layers.IsotonicCalibration(**arguments)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_scores_that_float32_cannot_tell_apart_are_one(per_class, num_classes):
    logits, labels = overconfident(num_classes)
    layer = kc.layers.IsotonicCalibration(per_class=per_class, shrinkage=None)
    layer.adapt(logits, labels)
    p = np.exp(to_numpy(layer(logits)).astype("float64"))
    rows = np.arange(len(labels))
    found = -np.log(p[rows, labels]).mean()
    # One constant for the prediction, one for all others.
    right = logits.argmax(axis=1) == labels
    rate = right.mean()
    simple = -np.log(np.where(right, rate, (1 - rate) / (num_classes - 1)))
    assert found < simple.mean() + 0.01
    # On its own data, every level is how often it came true.
    assert abs(p.max(axis=1).mean() - rate) < 0.02
