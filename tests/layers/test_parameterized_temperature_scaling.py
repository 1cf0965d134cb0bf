import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.layers import NegativeLogLikelihoodObjective
from keras_calib.solvers.loss_curves import LossCurves
from tests.helpers import to_numpy
from tests.helpers import value_and_gradient
from tests.layers.generated import generated
from tests.layers.generated import nll


def test_forward():
    # Two scores, one hidden layer of two: softplus gives 1.8257 and 2.2602,
    # to which the layer adds 0.001.
    layer = kc.layers.ParameterizedTemperatureScaling(
        num_scores=2, hidden=(2,), normalize_logits=None
    )
    logits = np.array([[2.0, 1.0, 0.0], [0.5, 3.0, 1.0]], "float32")
    layer(logits)
    layer.kernel_0.assign([[0.5, -1.0], [0.25, 0.5]])
    layer.bias_0.assign([0.1, 0.2])
    layer.kernel_1.assign([[1.0], [-0.5]])
    layer.bias_1.assign([0.3])
    found = to_numpy(layer.temperatures(logits))[:, 0] - 0.001
    assert found == pytest.approx([1.82567443741, 2.26018460301], abs=1e-6)


def test_parameters():
    count = kc.layers.ParameterizedTemperatureScaling().degrees_of_freedom(100)
    assert count == 91  # ten scores, two layers of five
    layer = kc.layers.ParameterizedTemperatureScaling(hidden=(2, 2, 2, 2))
    assert layer.degrees_of_freedom(10) == 43


def test_curves_are_the_losses():
    logits, labels = generated(50)
    objective = NegativeLogLikelihoodObjective()
    curves = LossCurves(logits, labels, objective, -0.5)
    u = np.random.default_rng(0).uniform(-3.0, 2.0, 50)
    values, slopes = curves.at(u)
    exact = NegativeLogLikelihoodObjective().losses(
        logits * np.exp(u)[:, None], labels
    )
    np.testing.assert_allclose(values, exact, atol=2e-4)
    step = 1e-5
    numeric = (curves.at(u + step)[0] - curves.at(u - step)[0]) / (2 * step)
    np.testing.assert_allclose(slopes, numeric, atol=1e-6)


def test_two_kinds_of_samples_get_two_temperatures():
    rng = np.random.default_rng(0)
    truth = np.repeat([1.0, 4.0], 2000)[:, None]
    logits = rng.normal(size=(4000, 5)) * np.where(truth == 1, 1.0, 8.0)
    labels = (logits / truth + rng.gumbel(size=(4000, 5))).argmax(1)
    layer = kc.layers.ParameterizedTemperatureScaling().adapt(logits, labels)
    found = to_numpy(layer.temperatures(logits))[:, 0]
    assert np.median(found[:2000]) == pytest.approx(1.0, abs=0.2)
    assert np.median(found[2000:]) == pytest.approx(4.0, abs=0.5)
    plain = kc.layers.TemperatureScaling().adapt(logits, labels)
    assert (
        nll(to_numpy(layer(logits)), labels)
        < nll(to_numpy(plain(logits)), labels) - 0.05
    )


def test_a_large_penalty_is_one_temperature():
    logits, labels = generated()
    layer = kc.layers.ParameterizedTemperatureScaling(penalty=1e6)
    layer.adapt(logits, labels)
    assert layer.record["temperature_quartiles"] == pytest.approx(
        [1.97593901124] * 3, rel=1e-3
    )


def test_bad_normalize_logits():
    with pytest.raises(ValueError, match="`normalize_logits`"):
        kc.layers.ParameterizedTemperatureScaling(normalize_logits="mean")


def test_a_temperature_per_sample_needs_a_loss_per_sample():
    logits, labels = generated(100)
    layer = kc.layers.ParameterizedTemperatureScaling()
    with pytest.raises(ValueError, match="a statistic of the whole batch"):
        layer.adapt(logits, labels, objective=kc.losses.MDCA(from_logits=True))
    assert not layer.built
    assert layer.as_affine(5) is None


def test_the_gradient_of_a_class_that_is_ruled_out_is_zero():
    rng = np.random.default_rng(1)
    logits = 3 * rng.normal(size=(200, 3)).astype("float32")
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    layer = kc.layers.ParameterizedTemperatureScaling().adapt(logits, labels)
    given = logits[:4].copy()
    given[1, 0] = -np.inf
    _, found = value_and_gradient(
        lambda z: keras.ops.sum(keras.ops.softmax(layer(z))[:, 2]), given
    )
    assert np.isfinite(found).all()
    assert found[1, 0] == 0.0 and found[1, 2] > 0.0
