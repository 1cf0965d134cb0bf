"""A map for each of several labels, as a layer."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import hashed

X = generated()[0].astype("float32")
U = hashed(2500, 3).reshape(500, 5)
Y = (X / 2 + np.log(U / (1 - U)) > 0).astype("int32")


def fitted(labels=Y, **arguments):
    layer = kc.layers.MultiLabelScaling(**arguments)
    return layer.adapt(X, labels)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"method": "platt", "shrinkage": None}],
    ids=["temperature", "platt"],
)
def test_a_map_that_is_affine_says_so(arguments):
    # A label without a positive sample stays as it is.
    labels = Y * (np.arange(5) != 3)
    with pytest.warns(UserWarning, match="Label 3 of 5 without a positive"):
        layer = fitted(labels, **arguments)
    slope, bias = layer.as_affine(5)
    assert (slope[3], bias[3]) == (1.0, 0.0)
    np.testing.assert_allclose(
        to_numpy(layer(X)), X * slope + bias, rtol=1e-4, atol=1e-4
    )


def test_a_mixture_is_not_affine():
    layer = fitted(method="platt")
    assert layer.as_affine(5) is None
    layer.mixture.assign(np.zeros(5))
    slope, bias = layer.as_affine(5)
    np.testing.assert_allclose(slope, 1 / layer.temperatures)
    np.testing.assert_array_equal(bias, 0.0)


def test_a_label_of_which_nothing_is_known():
    labels = np.where(np.arange(5) == 1, -1, Y)
    layer = kc.layers.MultiLabelScaling()
    with pytest.warns(UserWarning, match="Label 1 of 5 without a positive"):
        layer.adapt(X, labels, ignore_class=-1)
    record = layer.record
    assert record["num_positive"][1] == record["num_negative"][1] == 0
    assert record["nll_before_by_label"][1] is None
    known = [k for k in range(5) if k != 1]
    alone = fitted()
    np.testing.assert_array_equal(
        layer.temperatures[known], alone.temperatures[known]
    )
    assert layer.temperatures[1] == 1.0
    before = layer.record
    with pytest.raises(ValueError, match="There is no calibration sample"):
        layer.adapt(X, np.full_like(Y, -1), ignore_class=-1)
    assert layer.record == before


def test_of_many_labels_ten_are_named():
    logits, labels = np.tile(X, 3)[:, :13], np.ones((500, 13), int)
    labels[:, 12] = Y[:, 2]
    named = "Labels 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more of 13 without"
    with pytest.warns(UserWarning, match=named):
        kc.layers.MultiLabelScaling().adapt(logits, labels)


def test_masked_tokens_do_not_count():
    inputs = keras.Input((5,))
    masked = keras.layers.Masking()(inputs)
    x = X.copy()
    x[::4] = 0.0
    scores = keras.Model(inputs, keras.layers.Identity()(masked))(x)
    layer = kc.layers.MultiLabelScaling().adapt(scores, Y)
    counts = np.arange(500) % 4 > 0
    expected = kc.layers.MultiLabelScaling().adapt(X[counts], Y[counts])
    np.testing.assert_allclose(layer.temperatures, expected.temperatures)
    assert layer.record["num_samples"] == counts.sum()
