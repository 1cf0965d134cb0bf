import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.solvers.temperature import Likelihood
from keras_calib.solvers.temperature_posterior import _narrowed
from keras_calib.solvers.temperature_posterior import gauss_nodes
from keras_calib.solvers.temperature_posterior import temperature_nodes
from keras_calib.solvers.temperature_posterior import uniform_weight
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import nll
from tests.layers.generated import noisy
from tests.layers.generated import softmax


def by_hand(logits, labels):
    """Posterior of `u = -log T`: a fine grid, and log p of the labels there."""
    u = np.linspace(-4.6, 4.6, 1201)
    rows = np.arange(len(labels))
    p = [softmax(np.exp(each) * logits)[rows, labels] for each in u]
    log_p = np.log(np.maximum(p, 1e-300))
    posterior = log_p.sum(axis=1) - u**2 / 2
    posterior = np.exp(posterior - posterior.max())
    return u, posterior / posterior.sum(), log_p


@pytest.mark.parametrize("num_samples", [8, 50, 500])
def test_the_mean_is_that_of_the_posterior(num_samples):
    logits, labels = generated()
    logits, labels = logits[:num_samples], labels[:num_samples]
    u, posterior, log_p = by_hand(logits, labels)
    layer = kc.layers.BayesianTemperatureScaling().adapt(logits, labels)
    mean = posterior @ np.exp(log_p)
    c = uniform_weight(np.log(mean), 5, np.ones(num_samples))
    out = softmax(to_numpy(layer(logits)))
    expected = (1 - c) * mean + c / 5
    found = out[np.arange(num_samples), labels]
    np.testing.assert_allclose(found, expected, atol=2e-4)
    width = np.sqrt(posterior @ (u - posterior @ u) ** 2)
    assert layer.record["log_temperature_width"] == pytest.approx(
        width, rel=1e-3
    )
    assert layer.record["uniform_weight"] == pytest.approx(c, rel=1e-2)
    assert layer.record["nll_after"] == pytest.approx(
        nll(to_numpy(layer(logits)), labels), abs=1e-6
    )


def test_the_uniform_weight_is_a_posterior_mean():
    rng = np.random.default_rng(0)
    q = rng.uniform(0.001, 1, 200)
    c = (np.arange(200_000) + 0.5) / 200_000
    log_likelihood = np.zeros(len(c))
    for each in q:
        log_likelihood += np.log((1 - c) * each + c / 10) - np.log(each)
    beta = 49 * (1 - c) ** 48 / len(c)
    slab = 0.5 * beta * np.exp(log_likelihood)
    expected = slab @ c / (0.5 + slab.sum())
    found = uniform_weight(np.log(q), 10, np.ones(200))
    assert found == pytest.approx(expected, rel=0.05)


def test_many_samples_are_temperature_scaling():
    logits, labels = generated()
    layer = kc.layers.BayesianTemperatureScaling().adapt(logits, labels)
    plain = kc.layers.TemperatureScaling().adapt(logits, labels)
    out, tempered = (softmax(to_numpy(m(logits))) for m in (layer, plain))
    assert np.abs(out - tempered).max() < 0.01
    assert layer.record["temperature"] == plain.record["temperature"]


def test_noisy_labels_keep_a_uniform_part():
    logits, labels = generated()
    layer = kc.layers.BayesianTemperatureScaling()
    layer.adapt(logits, noisy(labels, 5))
    assert layer.record["uniform_weight"] > 0.02
    assert layer.weights_of_mixture.sum() == pytest.approx(1, abs=1e-6)
    assert (layer.temperatures > 0).all()


@pytest.mark.filterwarnings("ignore:The temperature was set")
def test_few_samples_that_are_all_right_leave_doubt():
    logits = 8 * np.eye(4)[np.arange(20) % 4]
    labels = np.arange(20) % 4
    plain = kc.layers.TemperatureScaling().adapt(logits, labels)
    layer = kc.layers.BayesianTemperatureScaling().adapt(logits, labels)
    wrong = (labels + 1) % 4
    certain = nll(to_numpy(plain(logits)), wrong)
    assert nll(to_numpy(layer(logits)), wrong) < certain - 1


def test_a_whole_weight_is_a_repeated_row():
    logits, labels = generated()
    logits, labels = logits[:60], labels[:60]
    weights = 1.0 + np.arange(60) % 3
    rows = np.repeat(np.arange(60), weights.astype(int))
    found = temperature_nodes(logits, labels, weights)
    expected = temperature_nodes(logits[rows], labels[rows], np.ones(len(rows)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)


def test_logits_of_any_size_end():
    for scale in (0.0, 1e-20, 1e20):
        logits = scale * np.eye(3)[[0, 1, 2, 0]]
        found = temperature_nodes(logits, np.array([0, 1, 2, 1]), np.ones(4))
        assert all(np.isfinite(each).all() for each in found)


@pytest.mark.parametrize(
    "ends", [(-4.0, -2.0), (2.0, 4.0), (-0.1, 0.1), (-0.7, -0.6), (-4.6, 4.6)]
)
def test_the_posterior_is_found_from_any_first_grid(ends):
    logits, labels = generated()
    likelihood = Likelihood(logits, labels, np.ones(len(labels)), 0.0)
    u, expected, _ = by_hand(logits, labels)
    grid, posterior = _narrowed(likelihood, np.linspace(*ends, 33))
    mean = u @ expected
    assert grid @ posterior == pytest.approx(mean, abs=1e-4)
    width = np.sqrt(posterior @ (grid - mean) ** 2)
    assert width == pytest.approx(np.sqrt(expected @ (u - mean) ** 2), rel=1e-3)


def test_a_layer_that_is_not_fitted_is_the_identity():
    layer = kc.layers.BayesianTemperatureScaling()
    assert not layer.built
    np.testing.assert_array_equal(layer.temperatures, np.ones(5))
    expected = layer.weights_of_mixture
    np.testing.assert_array_equal(expected, [1, 0, 0, 0, 0, 0])
    layer.build((None, 3))
    np.testing.assert_array_equal(layer.temperatures, np.ones(5))
    np.testing.assert_array_equal(layer.weights_of_mixture, expected)


def test_gauss_nodes_keep_moments():
    rng = np.random.default_rng(0)
    points, weights = np.sort(rng.normal(size=40)), rng.exponential(size=40)
    weights /= weights.sum()
    nodes, found = gauss_nodes(points, weights, 5)
    for power in range(10):
        assert found @ nodes**power == pytest.approx(weights @ points**power)
    one, share = gauss_nodes(np.array([2.0, 3.0]), np.array([1.0, 0.0]), 5)
    assert one @ share == pytest.approx(2.0) and share.sum() == 1


def test_rows_of_two_kinds_in_turn_are_all_seen():
    # The first grid is that of every second row of so many logits.
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(1 << 18, 8)).astype("float32")
    temperatures = np.where(np.arange(len(logits)) % 2, 1.5, 1.0)[:, None]
    noise = rng.gumbel(size=logits.shape)
    labels = (logits / temperatures + noise).argmax(axis=1)
    nodes, shares, _ = temperature_nodes(logits, labels, np.ones(len(logits)))
    one = kc.layers.TemperatureScaling().adapt(logits, labels).temperature
    assert np.exp(shares @ nodes) == pytest.approx(one, rel=1e-3)


def test_a_class_that_is_ruled_out_stays_so():
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(200, 3)).astype("float32")
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    rows, out = np.arange(200), (labels + 1 + rows_of_bits(rng)) % 3
    logits[rows, out] = -np.inf
    layer = kc.layers.BayesianTemperatureScaling().adapt(logits, labels)
    q = softmax(to_numpy(layer(logits)))
    assert layer.record["uniform_weight"] > 0
    np.testing.assert_array_equal(q[rows, out], 0.0)
    rest = np.sort(q, axis=1)[:, 1:]
    np.testing.assert_allclose(rest.sum(axis=1), 1.0, rtol=1e-6)
    # Half of the uniform part for each of the two others.
    least = layer.record["uniform_weight"] / 2
    assert rest.min() > least - 1e-6


def rows_of_bits(rng):
    return rng.integers(0, 2, 200)


@pytest.mark.parametrize("seed", range(3))
def test_calibrate_returns_the_map_that_was_asked_for(seed):
    # Left-out parts of 50 samples tell nothing about a hedge.
    rng = np.random.default_rng(seed)
    logits = 4 * rng.normal(size=(50, 10)).astype("float32")
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    model = keras.Sequential([keras.Input((10,)), keras.layers.Identity()])
    calibrated = kc.calibrate(
        model,
        logits,
        labels,
        method="bayesian_temperature",
        from_logits=True,
        verbose=0,
    )
    guard = kc.calibration_record(calibrated)["guard"]
    assert guard["returned"] == "map" and guard["by"] == "evidence"
