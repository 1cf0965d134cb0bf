"""Loess at all places at once, beside a least-squares fit at each."""

import numpy as np
import pytest

from keras_calib.solvers import loess
from keras_calib.solvers.loess import loess_matrix


def curve(x, y, t, span, degree, num_rows, weights):
    """The constant of the local polynomial at `t`, the shortest there is."""
    distance = np.abs(x - t)
    rows = np.sort(np.repeat(distance, num_rows))
    width = rows[int(span * len(rows) + 1e-5) - 1]
    if width == 0:
        return np.average(y[distance == 0], weights=weights[distance == 0])
    near = distance < width
    root = np.sqrt(weights[near] * (1 - (distance[near] / width) ** 3) ** 3)
    powers = ((x[near] - t) / width)[:, None] ** np.arange(degree + 1)
    scaled = root[:, None] * powers
    return np.linalg.lstsq(scaled, root * y[near], rcond=1e-10)[0][0]


@pytest.mark.parametrize("degree", [0, 1, 2])
@pytest.mark.parametrize("span", [0.4, 0.75, 1.0])
@pytest.mark.parametrize("rows_each", [1, 4])
@pytest.mark.parametrize("form", ["even", "few", "sure", "one of most rows"])
def test_each_place_has_its_own_fit(degree, span, rows_each, form, monkeypatch):
    rng = np.random.default_rng(0)
    x = {
        "even": rng.random(60),
        "few": rng.random(4),
        "sure": 1 / (1 + np.exp(-6 * rng.normal(size=60))),
        "one of most rows": rng.random(20),
    }[form]
    x = np.sort(x)
    num_rows = rng.integers(1, rows_each + 1, len(x))
    if form == "one of most rows":
        num_rows[7] = 200
    weights = rng.exponential(size=len(x))
    y = rng.normal(size=len(x))
    # Several blocks, the last of which is smaller.
    monkeypatch.setattr(loess, "BLOCK", 7 * len(x))
    matrix = loess_matrix(
        x, x, span=span, degree=degree, num_rows=num_rows, weights=weights
    )
    expected = [curve(x, y, t, span, degree, num_rows, weights) for t in x]
    np.testing.assert_allclose(matrix @ y, expected, rtol=1e-7, atol=1e-7)


def test_places_between_the_rows():
    """A polynomial of the same degree is its own curve."""
    x = np.sort(np.random.default_rng(0).random(50))
    at = np.linspace(0.2, 0.8, 13)
    found = loess_matrix(x, at, span=0.5) @ (1 - 2 * x + 3 * x**2)
    np.testing.assert_allclose(found, 1 - 2 * at + 3 * at**2, rtol=1e-10)


def test_windows_of_any_width():
    """Probabilities of a sigmoid of -500 beside others."""
    x = np.append(1e-217 * np.arange(1, 10), 0.5)
    matrix = loess_matrix(x, x[4:5], span=0.5)
    np.testing.assert_allclose(matrix.sum(), 1, rtol=1e-9)
    np.testing.assert_allclose(matrix[0] @ np.append(x[:9], 0), x[4], rtol=1e-9)


def test_rows_next_to_each_other_have_the_shortest_coefficients():
    """Three places within rounding and one of weight 0: their mean."""
    x = np.array([0.5, 0.5 + 1e-13, 0.5 + 2e-13, 0.9])
    matrix = loess_matrix(x, x[:1], span=1.0)
    np.testing.assert_allclose(matrix[0], [1 / 3, 1 / 3, 1 / 3, 0], atol=1e-6)
