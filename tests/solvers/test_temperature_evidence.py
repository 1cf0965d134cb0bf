"""Log evidence of a temperature: its integral, weights, what it says."""

import numpy as np
import pytest

from keras_calib.solvers.temperature import fit_temperature
from keras_calib.solvers.temperature import log_evidence

pytestmark = pytest.mark.one_backend


def sampled(number, scale, seed=0):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(number, 4))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    return scale * logits, labels


def integral(logits, labels, weight, width):
    """The evidence on a grid of temperatures."""
    u = np.linspace(-6 * width, 6 * width, 4001)

    def log_likelihood(u):
        z = logits * np.exp(u)
        z = z - z.max(axis=1, keepdims=True)
        log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        return weight @ log_p[np.arange(len(z)), labels]

    gain = np.array([log_likelihood(v) for v in u]) - log_likelihood(0.0)
    density = np.exp(-((u / width) ** 2) / 2) / np.sqrt(2 * np.pi) / width
    most = gain.max()
    step = u[1] - u[0]
    return most + np.log((np.exp(gain - most) * density).sum() * step)


@pytest.mark.parametrize("width", [0.5, 1.0])
@pytest.mark.parametrize("scale", [0.6, 1.0, 2.0])
@pytest.mark.parametrize("number", [50, 400])
def test_it_is_the_integral_over_the_prior(number, scale, width):
    logits, labels = sampled(number, scale)
    start = fit_temperature(logits, labels).temperature
    found = log_evidence(logits, labels, start=start, width=width)
    expected = integral(logits, labels, np.ones(number), width)
    # Laplace's approximation is off by the order of 1 / n.
    assert found == pytest.approx(expected, abs=3 / number)


def test_the_start_changes_nothing():
    logits, labels = sampled(200, 2.0)
    one, two = (log_evidence(logits, labels, start=s) for s in (1.0, 5.0))
    assert one == pytest.approx(two, abs=1e-4)


def test_unequal_weights_are_fewer_samples():
    logits, labels = sampled(300, 2.0)
    weight = np.random.default_rng(1).uniform(0.2, 3, 300)
    found = log_evidence(logits, labels, weight)
    assert log_evidence(logits, labels, 100 * weight) == pytest.approx(found)
    number = weight.sum() ** 2 / (weight**2).sum()
    relative = weight / weight.sum() * number
    expected = integral(logits, labels, relative, 0.5)
    assert found == pytest.approx(expected, abs=0.02)


def test_it_speaks_for_a_temperature_where_one_is_needed():
    logits, labels = sampled(300, 3.0)
    assert log_evidence(logits, labels) > 20
    logits, labels = sampled(3000, 1.0)
    assert log_evidence(logits, labels) < -1


def test_all_right_and_constant_logits():
    logits = np.eye(3)[[0, 1, 2, 1]] * 4.0
    found = log_evidence(logits, np.array([0, 1, 2, 1]))
    expected = integral(logits, np.array([0, 1, 2, 1]), np.ones(4), 0.5)
    assert found == pytest.approx(expected, abs=0.02)
    # No temperature changes such predictions.
    found = log_evidence(np.zeros((5, 3)), np.zeros(5, int))
    assert found == pytest.approx(0, abs=1e-5)
