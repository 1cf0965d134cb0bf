import numpy as np
import pytest

import keras_calib as kc
from keras_calib.solvers.mixture import fit_mixture
from keras_calib.solvers.mixture import minimize_on_simplex
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import nll
from tests.layers.generated import noisy
from tests.layers.generated import softmax


def test_noisy_labels():
    # Mix-n-Match's own code agrees to seven digits.
    logits, labels = generated()
    labels = noisy(labels, 5)
    layer = kc.layers.EnsembleTemperatureScaling().adapt(logits, labels)
    record = layer.record
    assert record["temperature"] == pytest.approx(4.81301107336, abs=1e-9)
    assert record["mixture"] == pytest.approx(
        [0.42500725263, 0.37679569127, 0.1981970561], abs=1e-7
    )
    assert record["nll_after"] == pytest.approx(1.19060404842, abs=1e-10)
    assert nll(to_numpy(layer(logits)), labels) == pytest.approx(
        1.19060404842, abs=1e-6
    )


def test_the_formula():
    logits, labels = generated()
    layer = kc.layers.EnsembleTemperatureScaling()
    layer.adapt(logits, noisy(labels, 5))
    w = layer.weights_of_mixture
    expected = (
        w[0] * softmax(logits / layer.temperature)
        + w[1] * softmax(logits)
        + w[2] / 5
    )
    np.testing.assert_allclose(
        softmax(to_numpy(layer(logits))), expected, atol=1e-6
    )


def test_a_layer_that_is_not_built_is_the_identity():
    layer = kc.layers.EnsembleTemperatureScaling()
    for built in (False, True):
        assert layer.built == built and layer.temperature == 1.0
        np.testing.assert_array_equal(layer.weights_of_mixture, [1, 0, 0])
        if not built:
            layer.build((None, 3))


def test_without_noise_it_is_temperature_scaling():
    logits, labels = generated()
    layer = kc.layers.EnsembleTemperatureScaling().adapt(logits, labels)
    assert layer.record["mixture"] == [1.0, 0.0, 0.0]
    assert layer.temperature == pytest.approx(1.97593901124, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_no_other_mixture_is_better(seed):
    rng = np.random.default_rng(seed)
    parts = rng.uniform(size=(200, 3)) ** 3
    share = np.full(200, 1 / 200)
    w = fit_mixture(parts, share)
    # Optimality on the simplex: no direction to a corner goes down.
    gradient = -(parts / (parts @ w)[:, None]).mean(axis=0)
    assert (gradient - gradient @ w).min() > -1e-7


def test_quadratic_on_the_simplex():
    matrix, vector = np.eye(3), np.array([0.5, 0.3, -1.0])
    # The projection of the vector: (0.6, 0.4, 0).
    np.testing.assert_allclose(
        minimize_on_simplex(matrix, vector), [0.6, 0.4, 0.0], atol=1e-12
    )


def test_labels_without_any_relation_keep_the_prediction():
    logits = np.array([[1.0, 0.0], [0.0, 1.0]] * 50)
    labels = np.array([0, 0, 1, 1] * 25)
    with pytest.warns(UserWarning, match="chance"):
        layer = kc.layers.EnsembleTemperatureScaling().adapt(logits, labels)
    out = to_numpy(layer(logits))
    np.testing.assert_array_equal(out.argmax(-1), logits.argmax(-1))
    assert nll(out, labels) == pytest.approx(np.log(2), abs=1e-4)
