"""Intervals of means over rows that may depend on each other."""

import numpy as np
import pytest
from scipy import stats

from keras_calib.evaluation.mean_interval import mean_interval
from keras_calib.evaluation.mean_interval import student_quantile
from keras_calib.inputs.predictions import read_predictions


@pytest.mark.parametrize("degrees", [1, 2, 3, 9, 99, 20_000])
@pytest.mark.parametrize("share", [0.95, 0.9967])
def test_quantiles_of_student(degrees, share):
    expected = stats.t.ppf((1 + share) / 2, degrees)
    assert student_quantile(share, degrees) == pytest.approx(expected, rel=2e-4)


def test_without_a_degree_of_freedom_nothing_is_rare():
    assert student_quantile(0.95, 0) == np.inf


def test_the_interval_of_equal_rows_is_that_of_student():
    rng = np.random.default_rng(0)
    values = rng.normal(size=12)
    data = read_predictions(np.zeros(12, int), np.full((12, 2), 0.5))
    found = mean_interval(values, data, 0.9)
    error = values.std(ddof=1) / np.sqrt(12)
    expected = stats.t.interval(0.9, 11, values.mean(), error)
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-4)
    assert found.num_units == pytest.approx(12)


def test_the_error_is_the_larger_of_the_sample_and_the_hypothesis():
    rng = np.random.default_rng(1)
    n, values = 30, rng.normal(size=30)
    data = read_predictions(np.zeros(n, int), np.full((n, 2), 0.5))
    alone = mean_interval(values, data, 0.95)
    less = mean_interval(values, data, 0.95, np.full(n, 0.1))
    assert less == alone
    more = mean_interval(np.zeros(n), data, 0.95, np.arange(n) / n)
    expected = np.sqrt(np.arange(n).sum() / n) / n
    assert more.error == pytest.approx(expected)


def test_rows_that_come_several_times_say_nothing_new():
    rng = np.random.default_rng(2)
    values, variance = rng.normal(size=25), rng.uniform(1, 3, 25)
    p = np.full((25, 2), 0.5)
    alone = mean_interval(
        values, read_predictions(np.zeros(25, int), p), 0.95, variance
    )
    data = read_predictions(np.zeros((25, 8), int), np.full((25, 8, 2), 0.5))
    copied = mean_interval(values.repeat(8), data, 0.95, variance.repeat(8))
    assert copied == pytest.approx(alone)


def test_weights_are_worth_fewer_rows():
    weights = np.array([3.0, 1.0, 1.0, 1.0])
    data = read_predictions(np.zeros(4, int), np.full((4, 2), 0.5), weights)
    found = mean_interval(np.arange(4.0), data, 0.95)
    assert found.num_units == pytest.approx(6**2 / 12)
    assert found.mean == pytest.approx(1.0)
    # Three units: the variance of the mean is 3/2 times that of a sum of them.
    share = weights / 6
    spread = share @ (share * (np.arange(4) - 1.0) ** 2)
    assert found.error == pytest.approx(np.sqrt(spread * 3 / 2))
