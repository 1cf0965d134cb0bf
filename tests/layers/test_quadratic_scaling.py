"""A parabola of the log-odds, with tangents beyond the data."""

import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import softmax


def one_against_the_rest(label=4):
    """Log-odds of a class, and whether it is the label."""
    logits, labels = generated()
    p = softmax(logits)[:, label]
    return np.log(p / (1 - p))[:, None], (labels == label).astype("int32")


def test_numbers_of_the_sheet():
    x, y = one_against_the_rest()
    layer = kc.layers.QuadraticScaling(shrinkage=None)
    # The turning point, 27.5165, is just below the largest log-odds, 27.7796.
    with pytest.warns(UserWarning, match=r"turns at a log-odds of 27\.52"):
        layer.adapt(x, y)
    record = layer.record
    found = [record[key] for key in ("intercept", "slope", "curvature")]
    assert found == pytest.approx(
        [0.443185747416, 0.464603428386, -0.00844226100368], rel=1e-7
    )
    assert record["nll_after"] == pytest.approx(0.279159892473, rel=1e-10)
    platt = kc.layers.PlattScaling(smooth_targets=False, shrinkage=None)
    assert platt.adapt(x, y).record["nll_after"] == pytest.approx(
        0.279883018988, rel=1e-10
    )


def test_inside_the_data_a_parabola_and_beyond_its_tangents():
    x, y = one_against_the_rest(label=1)
    layer = kc.layers.QuadraticScaling(shrinkage=None).adapt(x, y)
    b, w1, w2 = (layer.record[k] for k in ("intercept", "slope", "curvature"))
    low, high = x.min(), x.max()
    points = np.array([low - 7, low, 0.0, 1.5, high, high + 30])[:, None]
    inside = b + w1 * points + w2 * points**2
    for end, index, distance in ((low, 0, -7), (high, 5, 30)):
        inside[index] = b + w1 * end + w2 * end**2
        inside[index] += (w1 + 2 * w2 * end) * distance
    np.testing.assert_allclose(to_numpy(layer(points)), inside, rtol=2e-5)


def test_no_warning_where_the_map_is_monotone(recwarn):
    x, y = one_against_the_rest(label=1)
    kc.layers.QuadraticScaling(shrinkage=None).adapt(x, y)
    assert not [w for w in recwarn if "parabola" in str(w.message)]


def test_two_columns_are_one_unit():
    x, y = one_against_the_rest(label=1)
    one = kc.layers.QuadraticScaling().adapt(x, y)
    two = kc.layers.QuadraticScaling().adapt(np.hstack([0 * x, x]), y)
    out = to_numpy(two(np.hstack([0 * x, x])))
    np.testing.assert_allclose(
        out[:, 1:] - out[:, :1], to_numpy(one(x)), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(ValueError, match="two classes"):
        kc.layers.QuadraticScaling().adapt(np.zeros((4, 3)), [0, 1, 2, 0])
