"""Gamma bins: the evidence, and factors averaged by it."""

import math

import numpy as np
import pytest

from keras_calib.solvers.gamma_bins import STRENGTHS
from keras_calib.solvers.gamma_bins import average_factors
from keras_calib.solvers.gamma_bins import log_evidence_of_factors

EVENTS = np.array([[3.0, 0.0], [12.5, 7.0]])
EXPECTED = np.array([[4.2, 1.1], [9.0, 7.5]])


@pytest.mark.parametrize("k", [0.5, 2.0, 64.0])
def test_evidence_is_the_integral(k):
    step = 1e-3
    r = np.arange(step / 2, 40, step)
    log_prior = k * math.log(k) - math.lgamma(k) + (k - 1) * np.log(r) - k * r
    expected = 0.0
    for n, e in zip(EVENTS.ravel(), EXPECTED.ravel(), strict=True):
        # Poisson(r e) over Poisson(e), at n events.
        ratio = np.exp(n * np.log(r) - (r - 1) * e + log_prior)
        expected += math.log(ratio.sum() * step)
    # The midpoints miss a little of the pole at 0.
    tolerance = 0.03 if k < 1 else 1e-4
    found = log_evidence_of_factors(EVENTS, EXPECTED, k)
    assert found == pytest.approx(expected, abs=tolerance)


def test_factors_are_averaged_by_the_evidence():
    found = average_factors(EVENTS, EXPECTED)
    mass = [
        0.5 / 12 * math.exp(log_evidence_of_factors(EVENTS, EXPECTED, k))
        for k in STRENGTHS
    ]
    total = sum(mass) + 0.5
    expected = 0.5 / total
    assert found.plain == pytest.approx(expected)
    for each, k in zip(mass, STRENGTHS, strict=True):
        expected = expected + each / total * (EVENTS + k) / (EXPECTED + k)
    np.testing.assert_allclose(found.factors, expected)


def test_many_events_are_frequencies():
    rate = np.array([[0.5, 2.0, 1.3]])
    expected = np.full((1, 3), 1e5)
    found = average_factors(rate * expected, expected)
    np.testing.assert_allclose(found.factors, rate, rtol=1e-4)
    assert found.plain < 1e-9


def test_events_as_expected_stay():
    expected = np.full((10, 5), 3.0)
    found = average_factors(expected, expected)
    np.testing.assert_array_equal(found.factors, np.ones((10, 5)))
    assert found.plain > 0.5


def test_empty_bins_stay():
    found = average_factors(np.zeros((3, 4)), np.zeros((3, 4)))
    np.testing.assert_allclose(found.factors, np.ones((3, 4)))
    assert found.plain == pytest.approx(0.5)
