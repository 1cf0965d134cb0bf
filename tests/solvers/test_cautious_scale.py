"""The scale that stands for the posterior of a temperature."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import keras_calib as kc
from keras_calib.inputs.arrays import log_softmax
from keras_calib.solvers import temperature_posterior
from keras_calib.solvers.temperature import Likelihood
from keras_calib.solvers.temperature_posterior import cautious_scale
from keras_calib.solvers.temperature_posterior import expected_gain
from keras_calib.solvers.temperature_posterior import temperature_nodes
from keras_calib.solvers.temperature_posterior import uniform_weight
from tests.helpers import to_numpy
from tests.layers.generated import nll


def samples(count, seed=0, num_classes=3):
    """Samples for which the temperature 2 is the truth."""
    rng = np.random.default_rng(seed)
    logits = 4 * rng.normal(size=(count, num_classes))
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits, labels


def likeliest(logits, labels, weights=None):
    layer = kc.layers.TemperatureScaling()
    layer.adapt(logits, labels, sample_weight=weights)
    return layer.record["temperature"]


@pytest.mark.parametrize("ruled_out", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_those_that_have_derivatives(ruled_out, dtype):
    # Several blocks, and more values than one call takes.
    logits, labels = samples(30_000)
    if ruled_out:
        logits[np.arange(1_000), (labels[:1_000] + 1) % 3] = -np.inf
    weights = np.random.default_rng(1).uniform(0.5, 1.5, len(labels))
    data = logits.astype(dtype), labels, weights
    likelihood = Likelihood(*data, 0.0)
    us = np.linspace(-2, 2, 7)
    expected = [likelihood.derivatives(u)[0] for u in us]
    rtol = 1e-12 if dtype == "float64" else 1e-6
    np.testing.assert_allclose(likelihood.values(us), expected, rtol=rtol)


@pytest.mark.parametrize("ruled_out", [False, True])
def test_it_is_the_nearest_to_the_average_by_cross_entropy(ruled_out):
    logits, labels = samples(40)
    if ruled_out:
        logits = np.insert(logits, 1, -np.inf, axis=1)
        labels = np.where(labels > 0, labels + 1, labels)
    weights = np.random.default_rng(1).uniform(0.5, 1.5, len(labels))
    weights *= len(labels) / weights.sum()
    nodes, shares, _ = temperature_nodes(logits, labels, weights)
    average = sum(
        share * np.exp(log_softmax(logits / np.exp(node)))
        for node, share in zip(nodes, shares, strict=True)
    )
    if not ruled_out:
        # The uniform part, which 40 samples leave below 1 / (2 (n + 1)).
        log_q = np.log(average[np.arange(40), labels])
        c = uniform_weight(log_q, 3, weights)
        assert 0.001 < c
        average += min(c, 1 / 82) * (1 / 3 - average)

    def cross_entropy(u):
        log_q = np.maximum(log_softmax(logits * np.exp(u)), -1e9)
        return -(weights[:, None] * average * log_q).sum()

    best = minimize_scalar(
        cross_entropy, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9}
    )
    temperature = likeliest(logits, labels, weights)
    found = cautious_scale(logits, labels, weights, temperature)
    assert found < 0.99
    assert found / temperature == pytest.approx(np.exp(best.x), rel=1e-4)


def test_the_gain_is_that_of_labels_as_they_are_expected(monkeypatch):
    # The grid of temperatures is the one that knows none.
    monkeypatch.setattr(temperature_posterior, "REACH", 1e9)
    logits, labels = samples(40)
    weights = np.ones(40)
    temperature = likeliest(logits, labels)
    nodes, shares, _ = temperature_nodes(logits, labels, weights)
    expected = sum(
        share * np.exp(log_softmax(logits / np.exp(node)))
        for node, share in zip(nodes, shares, strict=True)
    )
    log_q = np.log(expected[np.arange(40), labels])
    c = min(uniform_weight(log_q, 3, weights), 1 / 82)
    expected += c * (1 / 3 - expected)
    for t in (0.5, 1.0, temperature, 3.0):
        change = log_softmax(logits / t) - log_softmax(logits)
        gain = np.mean((expected * change).sum(axis=1))
        (found,) = expected_gain(logits, labels, weights, t)
        assert found == pytest.approx(gain, abs=1e-9)
        of_factors = 1.0, temperature / t
        data = logits, labels, weights, temperature, of_factors
        assert expected_gain(*data)[1] == pytest.approx(gain, abs=1e-9)
    # Many samples tell the temperature.
    logits, labels = samples(2000)
    data = logits, labels, np.ones(2000)
    assert expected_gain(*data, likeliest(logits, labels)) is None


@pytest.mark.parametrize("size", [4, 40, 400])
@pytest.mark.parametrize("ends", [(-0.3, 0.3), (1.5, 2.5), (-4.0, -3.0)])
def test_a_first_grid_of_temperatures_may_begin_elsewhere(size, ends):
    data = *samples(size, seed=3), np.ones(size)
    nodes, shares, width = temperature_nodes(*data, ends)
    all_nodes, all_shares, expected = temperature_nodes(*data)
    assert width == pytest.approx(expected, rel=1e-3)
    for moment in (1, 2, 3):
        found = shares @ nodes**moment
        assert found == pytest.approx(all_shares @ all_nodes**moment, abs=1e-3)


def test_many_samples_need_no_caution():
    logits, labels = samples(2000)
    temperature = likeliest(logits, labels)
    weights = np.ones(len(labels))
    assert cautious_scale(logits, labels, weights, temperature) == 1.0
    # The same rows with little weight are few samples.
    few = cautious_scale(logits, labels, weights / 50, temperature)
    assert few < 0.99


@pytest.mark.one_backend
def test_it_lowers_the_loss_on_other_samples():
    test, test_labels = samples(4000, seed=100)
    gains = []
    for seed in range(20):
        logits, labels = samples(30, seed)
        temperature = likeliest(logits, labels)
        factor = cautious_scale(logits, labels, np.ones(30), temperature)
        gains.append(
            nll(test / temperature, test_labels)
            - nll(factor * test / temperature, test_labels)
        )
    error = np.std(gains) / np.sqrt(len(gains))
    assert np.mean(gains) > 2 * error


@pytest.mark.parametrize(
    "name",
    [
        "VectorScaling",
        "ClassTemperatureScaling",
        "BiasCorrectedTemperatureScaling",
        "MatrixScaling",
        "DirichletScaling",
    ],
)
def test_ridge_fits_are_scaled_by_it(name, monkeypatch):
    logits, labels = samples(40)
    make = getattr(kc.layers, name)
    found = make().adapt(logits, labels)
    monkeypatch.setattr(
        "keras_calib.layers._affine.cautious_scale", lambda *data: 1.0
    )
    without = make().adapt(logits, labels)
    factor = found.record["scale_factor"]
    assert factor < 0.99
    scores, unscaled = (to_numpy(layer(logits)) for layer in (found, without))
    np.testing.assert_allclose(
        scores - scores.mean(axis=1, keepdims=True),
        factor * (unscaled - unscaled.mean(axis=1, keepdims=True)),
        rtol=1e-4,
        atol=1e-5,
    )
    objective = kc.layers.FocalObjective(gamma=2.0)
    other = make().adapt(logits, labels, objective=objective)
    assert other.record["scale_factor"] == 1.0
