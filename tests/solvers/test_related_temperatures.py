"""Temperatures of several labels, near each other where samples are few."""

import numpy as np
import pytest

from keras_calib.solvers import related_temperatures
from keras_calib.solvers.related_temperatures import fit_related
from keras_calib.solvers.related_temperatures import penalized

pytestmark = pytest.mark.one_backend


def of_labels(seed, size, temperatures):
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(size, len(temperatures)))
    p = 1 / (1 + np.exp(-z))
    return z * temperatures, (rng.random(z.shape) < p).astype("int32")


def loss_of(z, y, u):
    s = z * np.exp(u)
    return (np.logaddexp(0, s) - y * s).sum(axis=0)


def by_integration(z, y):
    """Posterior means of `u`, by sums over a grid instead of modes.

    The likelihood of a label, given `m` and the width, is an integral over its
    own `u`; that of all is their product, integrated over `m`.
    """
    grid = np.linspace(-3, 3, 1201)
    step = grid[1] - grid[0]
    loss = np.stack([loss_of(z, y, u) for u in grid])
    likelihood = np.exp(loss.min(axis=0) - loss)
    shared = likelihood.prod(axis=1) * step
    totals, means = [shared.sum()], [np.full(z.shape[1], shared @ grid)]
    means[0] = means[0] / totals[0]
    for width in related_temperatures.WIDTHS:
        away = (grid[:, None] - grid) / width
        prior = np.exp(-(away**2) / 2) / (width * np.sqrt(2 * np.pi)) * step
        given = prior @ likelihood  # by m
        moment = prior @ (likelihood * grid[:, None])
        joint = given.prod(axis=1) * step
        totals.append(joint.sum())
        moment /= np.maximum(given, 1e-300)
        means.append(joint @ moment / totals[-1])
    scale = related_temperatures.SCALE_WIDTH
    prior = np.exp(-((related_temperatures.WIDTHS / scale) ** 2) / 2)
    share = np.array(totals) * np.append(0.5, 0.5 * prior / prior.sum())
    share /= share.sum()
    return share @ np.array(means), share[0]


@pytest.mark.parametrize("temperatures", [[1.5] * 4, [0.7, 1.5, 1.5, 3.0]])
def test_it_is_what_integration_gives(temperatures):
    z, y = of_labels(0, 400, np.array(temperatures))
    found = fit_related(z, y, np.ones(z.shape))
    u, probability = by_integration(z, y)
    # Modes instead of means, and Laplace instead of integrals.
    np.testing.assert_allclose(-np.log(found.temperatures), u, atol=0.02)
    assert found.probability == pytest.approx(probability, abs=0.03)
    assert found.dispersion < 1.1


def test_the_slope_is_that_of_the_loss():
    z, y = of_labels(1, 60, np.array([1.0, 2.0, 0.5]))
    problem = related_temperatures._Problem(z, y, np.ones(z.shape))
    u, step = np.array([0.2, -0.3, 0.1]), 1e-5
    for width in (None, 0.3):
        _, slope = penalized(u, problem.moments(u), width, 1.7)
        for k, direction in enumerate(np.eye(3) * step):
            above, below = (
                penalized(v, problem.moments(v), width, 1.7)[0]
                for v in (u + direction, u - direction)
            )
            difference = (above - below) / (2 * step)
            assert slope[k] == pytest.approx(difference, rel=1e-5, abs=1e-6)


def test_a_minimum_for_each_width():
    z, y = of_labels(2, 100, np.array([1.0, 2.0, 0.5]))
    problem = related_temperatures._Problem(z, y, np.ones(z.shape))
    pooled = problem.minimize(np.zeros(3))
    assert len(set(pooled)) == 1
    assert abs(problem.moments(pooled)[1].sum()) < 1e-3
    for width in (0.05, 0.8):
        u = problem.minimize(pooled, width, 1.3)
        moments = problem.moments(u)
        again = related_temperatures._Problem(z, y, np.ones(z.shape))
        np.testing.assert_array_equal(moments, again.moments(u))
        _, slope = penalized(u, moments, width, 1.3)
        assert np.abs(slope).max() < 1e-3


def test_many_samples_are_each_label_s_own():
    truth = np.array([0.5, 1.0, 2.0, 4.0])
    found = fit_related(*of_labels(3, 20_000, truth), np.ones((20_000, 4)))
    np.testing.assert_allclose(found.temperatures, truth, rtol=0.05)
    assert found.probability < 1e-6


def test_equal_temperatures_are_found_to_be_equal():
    z, y = of_labels(4, 2000, np.full(10, 1.6))
    found = fit_related(z, y, np.ones(z.shape))
    assert found.probability > 0.7
    assert found.shared == pytest.approx(1.6, rel=0.03)
    np.testing.assert_allclose(found.temperatures, found.shared, rtol=0.02)


def test_rows_without_weight_may_hold_anything():
    z, y = of_labels(5, 300, np.array([1.0, 2.0]))
    weights = np.ones(z.shape)
    weights[::3, 0] = 0
    expected = fit_related(z, y, weights)
    z[::3, 0], y[::3, 0] = np.nan, -7
    found = fit_related(z, y, weights)
    np.testing.assert_array_equal(found.temperatures, expected.temperatures)


def test_groups_and_unequal_weights_are_worth_less():
    z, y = of_labels(6, 300, np.array([0.8, 1.6, 2.4]))
    alone = fit_related(z, y, np.ones(z.shape))
    repeated = [np.tile(each, (5, 1)) for each in (z, y)]
    group = np.tile(np.arange(300), 5)
    found = fit_related(*repeated, np.ones((1500, 3)), group)
    assert found.dispersion == pytest.approx(5 * alone.dispersion, rel=0.1)
    np.testing.assert_allclose(
        found.temperatures, alone.temperatures, rtol=0.01
    )
    weights = np.random.default_rng(7).exponential(size=z.shape)
    weights /= weights.mean(axis=0)
    assert 1.5 < fit_related(z, y, weights).dispersion < 2.7


def test_no_temperature_where_all_samples_are_right():
    z, _ = of_labels(8, 50, np.array([1.0, 1.0]))
    assert fit_related(z, (z > 0) * 1, np.ones(z.shape)) is None


def test_blocks_of_rows_change_nothing(monkeypatch):
    z, y = of_labels(9, 500, np.array([1.0, 2.0]))
    group = np.arange(500) // 7
    whole = fit_related(z, y, np.ones(z.shape), group)
    blocks = [slice(0, 100), slice(100, 333), slice(333, 500)]
    monkeypatch.setattr(
        related_temperatures, "row_blocks", lambda *shape: blocks
    )
    parts = fit_related(z, y, np.ones(z.shape), group)
    np.testing.assert_allclose(parts.temperatures, whole.temperatures, 1e-6)
    assert parts.dispersion == pytest.approx(whole.dispersion)
