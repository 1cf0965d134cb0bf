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
    # Without shrinkage a label without a positive sample stays as it is.
    labels = Y * (np.arange(5) != 3)
    with pytest.warns(UserWarning, match="Label 3 of 5 without a positive"):
        layer = fitted(labels, **arguments)
    slope, bias = layer.as_affine(5)
    assert (slope[3], bias[3]) == (1 / layer.temperatures[3], 0.0)
    assert (slope[3] == 1) == ("method" in arguments)
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
    layer = kc.layers.MultiLabelScaling(shrinkage=None)
    with pytest.warns(UserWarning, match="Label 1 of 5 without a positive"):
        layer.adapt(X, labels, ignore_class=-1)
    record = layer.record
    assert record["num_positive"][1] == record["num_negative"][1] == 0
    assert record["nll_before_by_label"][1] is None
    known = [k for k in range(5) if k != 1]
    alone = fitted(shrinkage=None)
    np.testing.assert_array_equal(
        layer.temperatures[known], alone.temperatures[known]
    )
    assert layer.temperatures[1] == 1.0
    before = layer.record
    with pytest.raises(ValueError, match="There is no calibration sample"):
        layer.adapt(X, np.full_like(Y, -1), ignore_class=-1)
    assert layer.record == before


@pytest.mark.parametrize("method", ["temperature", "platt"])
def test_a_label_of_one_class_has_what_all_labels_tell(method):
    rng = np.random.default_rng(0)
    right = rng.normal([-5, -5, -1, -1, 0], 1.5, (60, 5))
    labels = (rng.random(right.shape) < 1 / (1 + np.exp(-right))).astype(int)
    labels[:, :2] = 0
    logits = (2 * right).astype("float32")
    known = np.ones_like(labels)
    known[:, 1] = 0  # nothing is known of one of the two
    layer = kc.layers.MultiLabelScaling(method=method)
    with pytest.warns(UserWarning, match="Labels 0, 1 .* T is what all labels"):
        layer.adapt(logits, labels, known)
    others, shared = layer.temperatures[2:], layer.record["shared_temperature"]
    assert others.min() * 0.95 < layer.temperatures[1] < others.max() * 1.05
    assert layer.temperatures[0] == pytest.approx(shared, rel=0.2)
    # Samples of one class by themselves only tell that they are right.
    before, after = (
        layer.record[f"nll_{moment}_by_label"] for moment in ("before", "after")
    )
    z = to_numpy(layer(logits))[:, 0]
    assert after[0] == pytest.approx(np.logaddexp(0, z).mean(), rel=1e-5)
    assert after[0] > before[0] and before[1] is None and len(after) == 5
    alone = kc.layers.MultiLabelScaling(method=method, shrinkage=None)
    with pytest.warns(UserWarning, match="Labels 0, 1 .* not fitted, T = 1"):
        alone.adapt(logits, labels, known)
    np.testing.assert_array_equal(alone.temperatures[:2], 1.0)


def test_rare_labels_have_the_temperature_that_their_logits_need():
    """Those with a positive sample are more often positive than others."""
    rng = np.random.default_rng(1)
    logits = rng.normal(rng.uniform(-8, -3, 100), 1.5, (50, 100))
    labels = rng.random(logits.shape) < 1 / (1 + np.exp(-logits))
    with pytest.warns(UserWarning, match="of 100 without a positive"):
        layer = kc.layers.MultiLabelScaling().adapt(
            logits.astype("float32"), labels.astype(int)
        )
    positive = np.array(layer.record["num_positive"])
    assert np.count_nonzero(positive == 0) > 40
    # By those with a positive sample alone it would be 1.09.
    assert layer.record["shared_temperature"] == pytest.approx(1.0, abs=0.05)


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


@pytest.mark.parametrize("method", ["temperature", "platt"])
def test_the_record_is_that_of_temperatures_near_each_other(method):
    layer = fitted(method=method)
    z = to_numpy(layer(X)).astype("float64")
    losses = (np.logaddexp(0, z) - Y * z).mean(axis=0)
    record = layer.record
    np.testing.assert_allclose(record["nll_after_by_label"], losses, rtol=1e-5)
    assert record["nll_after"] == pytest.approx(losses.mean(), rel=1e-5)
    assert record["shared_temperature"] == pytest.approx(2, rel=0.05)
    assert record["shared_temperature_probability"] > 0.5
    assert 0 < record["temperature_width"] < 0.1
    assert record["dispersion"] >= 1
    alone = fitted(method=method, shrinkage=None)
    assert "shared_temperature" not in alone.record
    assert np.ptp(layer.temperatures) < 0.2


def test_groups_keep_temperatures_together():
    """Labels that differ by chance in few groups."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(10), 50)
    z = 2 * rng.normal(size=(500, 5)).astype("float32")
    scale = np.exp(0.8 * rng.normal(size=(10, 5)))[group]
    labels = (rng.random(z.shape) < 1 / (1 + np.exp(-z * scale))) * 1
    layers = [
        kc.layers.MultiLabelScaling().adapt(z, labels),
        kc.layers.MultiLabelScaling().adapt(z, labels, groups=group),
        kc.layers.MultiLabelScaling().adapt(
            z.reshape(10, 50, 5), labels.reshape(10, 50, 5)
        ),
    ]
    rows, groups, elements = layers
    assert groups.record["dispersion"] > 2 * rows.record["dispersion"]
    assert np.ptp(groups.temperatures) < np.ptp(rows.temperatures)
    np.testing.assert_allclose(groups.temperatures, elements.temperatures)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["temperature", "platt"])
def test_a_label_that_is_ruled_out_of_a_sample(method):
    logits, labels = X.copy(), Y.copy()
    logits[3, 1], labels[3, 1] = -3e38, 0
    layer = kc.layers.MultiLabelScaling(method=method).adapt(logits, labels)
    kept = np.arange(500) != 3
    without = kc.layers.MultiLabelScaling(method=method)
    without.adapt(X[kept], Y[kept])
    np.testing.assert_allclose(
        layer.temperatures, without.temperatures, rtol=0.02
    )
    assert np.isfinite(layer.record["nll_after"])
