import numpy as np
import pytest

import keras_calib as kc
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


def test_gauss_nodes_keep_moments():
    rng = np.random.default_rng(0)
    points, weights = np.sort(rng.normal(size=40)), rng.exponential(size=40)
    weights /= weights.sum()
    nodes, found = gauss_nodes(points, weights, 5)
    for power in range(10):
        assert found @ nodes**power == pytest.approx(weights @ points**power)
    one, share = gauss_nodes(np.array([2.0, 3.0]), np.array([1.0, 0.0]), 5)
    assert one @ share == pytest.approx(2.0) and share.sum() == 1
