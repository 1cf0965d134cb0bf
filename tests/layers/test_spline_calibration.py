import numpy as np
import pytest

import keras_calib as kc
from keras_calib.layers._logit_ops import probabilities_seen
from keras_calib.solvers.spline import natural_spline
from keras_calib.solvers.spline import spline_map
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import overconfident
from tests.layers.generated import softmax
from tests.layers.generated import top_label

AT = [0.3, 0.5, 0.7, 0.9]
# The authors' code exchanges two weights: 0.2541, 0.4327, 0.5357, 0.6724.
EXPECTED = [0.25412064676, 0.425165553114, 0.533960349912, 0.673238320901]


def test_generated_set():
    log_odds, correct = top_label(*generated())
    points, calibrated = spline_map(1 / (1 + np.exp(-log_odds)), correct)
    found = np.interp(AT, points, calibrated)
    assert found == pytest.approx(EXPECTED, abs=1e-10)


def test_the_layer_gives_these_confidences():
    layer = kc.layers.SplineCalibration(shrinkage=None)
    layer.adapt(*generated())
    for confidence, expected in zip(AT, EXPECTED, strict=True):
        rest = (1 - confidence) * np.array([0.28, 0.26, 0.24, 0.22])
        row = np.log([confidence, *rest])[None]
        out = softmax(to_numpy(layer(row)))[0]
        assert out[0] == pytest.approx(expected, abs=2e-6)
        # The others share the rest as before.
        assert out[1:] / out[1:].sum() == pytest.approx(
            rest / rest.sum(), abs=1e-6
        )


def test_natural_splines():
    knots = np.linspace(0, 1, 6)
    values, _ = natural_spline(knots, 6)
    np.testing.assert_allclose(values, np.eye(6), atol=1e-12)
    u = np.random.default_rng(0).uniform(size=50)
    heights = np.random.default_rng(1).normal(size=6)
    values, slopes = natural_spline(u, 6)
    scipy = pytest.importorskip("scipy.interpolate")
    peer = scipy.CubicSpline(knots, heights, bc_type="natural")
    np.testing.assert_allclose(values @ heights, peer(u), atol=1e-12)
    np.testing.assert_allclose(slopes @ heights, peer(u, 1), atol=1e-10)


def test_equal_confidences_have_no_order():
    confidence = np.repeat([0.6, 0.7, 0.8, 0.9], 10)
    correct = np.tile([1, 0, 1, 1], 10)
    order = np.random.default_rng(0).permutation(40)
    points, calibrated = spline_map(confidence, correct, 3)
    _, shuffled = spline_map(confidence[order], correct[order], 3)
    assert points.tolist() == [0.6, 0.7, 0.8, 0.9]
    np.testing.assert_allclose(calibrated, shuffled, atol=1e-12)


def test_monotone():
    log_odds, correct = top_label(*generated(60))
    confidence = 1 / (1 + np.exp(-log_odds))
    _, free = spline_map(confidence, correct, 12)
    _, calibrated = spline_map(confidence, correct, 12, monotone=True)
    assert (np.diff(free) < 0).any()
    assert (np.diff(calibrated) >= 0).all()


def test_fewer_points_than_samples():
    logits, labels = generated()
    fine = kc.layers.SplineCalibration().adapt(logits, labels)
    coarse = kc.layers.SplineCalibration(num_points=63).adapt(logits, labels)
    difference = softmax(to_numpy(fine(logits))) - softmax(
        to_numpy(coarse(logits))
    )
    assert np.abs(difference).max() < 0.01


@pytest.mark.parametrize(
    "arguments", [{"num_knots": 2}, {"num_points": 3}], ids=["knots", "points"]
)
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match="at least"):
        kc.layers.SplineCalibration(**arguments)


def test_confidence_that_float32_cannot_tell_apart_is_one():
    logits, labels = overconfident(3, 40.0)
    layer = kc.layers.SplineCalibration(shrinkage=None)
    layer.adapt(logits, labels)
    p = np.exp(to_numpy(layer(logits)))
    certain = probabilities_seen(logits).max(axis=1) == 1
    assert certain.mean() > 0.6
    accuracy = (logits.argmax(axis=1) == labels)[certain].mean()
    assert abs(p.max(axis=1)[certain].mean() - accuracy) < 0.01
