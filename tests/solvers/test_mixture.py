"""Weights of three distributions: derivatives, the simplex, the optimum."""

import numpy as np
import pytest

from keras_calib.solvers import mixture

pytestmark = pytest.mark.one_backend
GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.5)


def phi(q, gamma):
    return -((1 - q) ** gamma) * np.log(q)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_derivatives_are_those_of_the_focal_loss(gamma):
    q, h = np.linspace(0.05, 0.95, 19), 1e-5
    first, second = mixture._derivatives(q, gamma)
    expected = (phi(q + h, gamma) - phi(q - h, gamma)) / (2 * h)
    np.testing.assert_allclose(first, expected, rtol=1e-6)
    after, before = (mixture._derivatives(q + s, gamma)[0] for s in (h, -h))
    expected = np.maximum((after - before) / (2 * h), 1e-12)
    np.testing.assert_allclose(second, expected, rtol=1e-6, atol=1e-11)


def test_simplex_optimum_is_the_projection_of_a_point():
    # |w - v|^2 / 2 has the matrix I: inside, on an edge, in a corner.
    for point, expected in (
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
        ([0.6, 0.6, -0.9], [0.5, 0.5, 0.0]),
        ([0.9, 0.3, -0.5], [0.8, 0.2, 0.0]),
        ([3.0, -1.0, 0.5], [1.0, 0.0, 0.0]),
    ):
        found = mixture.minimize_on_simplex(np.eye(3), np.array(point))
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_simplex_optimum_is_below_a_grid(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(3, 3))
    matrix, vector = root @ root.T, rng.normal(size=3)
    found = mixture.minimize_on_simplex(matrix, vector)
    assert found.min() >= 0 and found.sum() == pytest.approx(1.0)
    a, b = np.meshgrid(np.linspace(0, 1, 101), np.linspace(0, 1, 101))
    grid = np.stack([a, b, 1 - a - b], axis=-1)[a + b <= 1]
    values = np.einsum("nk,kl,nl->n", grid, matrix, grid) / 2 - grid @ vector
    value = found @ matrix @ found / 2 - vector @ found
    assert value <= values.min() + 1e-12
    near = np.abs(grid - found).max(axis=1).argmin()
    assert values[near] - value < 0.02 * (1 + np.abs(matrix).max())


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("seed", range(3))
def test_mixture_meets_the_conditions_of_an_optimum(gamma, seed):
    # Of positive weights the slopes are equal, of others not smaller.
    rng = np.random.default_rng(seed)
    parts = rng.uniform(0.05, 0.95, (200, 3))
    parts[:, 2] = 0.25
    weights = rng.uniform(0.5, 2.0, 200)
    weights /= weights.sum()
    w = mixture.fit_mixture(parts, weights, gamma)
    assert w.min() >= 0 and w.sum() == pytest.approx(1.0, abs=1e-12)
    q = parts @ w
    h = 1e-6
    slope = (phi(q + h, gamma) - phi(q - h, gamma)) / (2 * h)
    gradient = parts.T @ (weights * slope)
    gradient -= gradient @ w
    assert np.abs(gradient[w > 1e-6]).max() < 1e-5
    assert gradient.min() > -1e-5


def test_the_first_part_alone_is_kept_where_it_is_best():
    parts = np.array([[0.9, 0.5, 0.25], [0.8, 0.3, 0.25]])
    found = mixture.fit_mixture(parts, np.full(2, 0.5))
    np.testing.assert_array_equal(found, [1.0, 0.0, 0.0])
