"""Class-wise loss scaling: normalizations, weights and the fixed point."""

import numpy as np
import pytest

from keras_calib.layers._objectives import NegativeLogLikelihoodObjective
from keras_calib.solvers import class_weights as cw

pytestmark = pytest.mark.one_backend
LOSSES = np.array([0.5, np.nan, 2.0, 1.0])


@pytest.mark.parametrize(
    ("normalization", "spread", "start"),
    [
        ("min_max", 1.5, 0.5),
        ("centered", 1.5, 3.5 / 3),
        ("normal", np.std([0.5, 2.0, 1.0], ddof=1), 3.5 / 3),
    ],
)
def test_normalizations(normalization, spread, start):
    found = cw.normalize(LOSSES, normalization)
    np.testing.assert_allclose(found, (LOSSES - start) / spread, rtol=1e-12)


@pytest.mark.parametrize("losses", [[0.7, np.nan], [0.7, 0.7, 0.7]])
@pytest.mark.parametrize("normalization", ["min_max", "centered", "normal"])
def test_losses_that_do_not_differ_are_zero(losses, normalization):
    found = cw.normalize(np.array(losses), normalization)
    np.testing.assert_array_equal(found, 0.0 * np.array(losses))


def test_class_losses_are_means_or_sums_of_a_class():
    logits = np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.4, 0.4]])
    labels, weights = np.array([0, 1, 0]), np.array([1.0, 2.0, 3.0])
    objective = NegativeLogLikelihoodObjective()
    nll = -np.log([0.5, 0.8, 0.2])
    mean = cw.ClassLosses(labels, weights, 3, objective, "mean")
    found = mean.of(lambda rows: logits[rows])
    expected = [(nll[0] + 3 * nll[2]) / 4, nll[1], np.nan]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    total = weights @ nll / 6
    assert mean.mean(found) == pytest.approx(total, rel=1e-6)
    sums = cw.ClassLosses(labels, weights, 3, objective, "sum")
    found = sums.of(lambda rows: logits[rows])
    expected = [nll[0] + 3 * nll[2], 2 * nll[1], np.nan]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert sums.mean(found) == pytest.approx(total, rel=1e-6)


def test_sample_weights_give_the_total_up_to_a_factor():
    # Equation 8: sum_k (1 + w_k) L_k, with L_k a mean over the class.
    labels, weights = np.array([0, 1, 0]), np.array([1.0, 2.0, 3.0])
    losses = cw.ClassLosses(labels, weights, 2, None, "mean")
    found = losses.sample_weight(np.array([0.5, -0.25]))
    expected = weights * np.array([1.5 / 4, 0.75 / 2, 1.5 / 4])
    np.testing.assert_allclose(found, expected * 6 / expected.sum(), rtol=1e-12)


@pytest.mark.parametrize("slope", [0.1, 0.35])
def test_slope_and_span_that_made_the_losses_are_found(slope):
    # The model of equation 6: before = mean(after) + w (after - before).
    rng = np.random.default_rng(0)
    after = rng.uniform(0.2, 2.0, 6)
    scaled = (after - after.min()) / (after.max() - after.min())
    span = np.mean(cw.SPANS)
    w = span * (1 / (1 + np.exp(-scaled / slope)) - 0.5)
    before = (after.mean() + w * after) / (1 + w)
    found = cw.fit_slope_and_span(before, after, "min_max", 6)
    assert found[0] == pytest.approx(slope, abs=4e-4)
    assert found[1] == pytest.approx(span, rel=2e-3)


def test_mixing_finds_the_fixed_point_of_a_linear_map():
    # x = M x + b in two dimensions: two differences of residuals span all.
    matrix, b = np.array([[0.2, -0.9], [0.7, 0.1]]), np.array([0.1, 0.2])
    wanted = np.linalg.solve(np.eye(2) - matrix, b)
    mixing, x = cw.Mixing(), np.zeros(2)
    first = mixing.next(x, matrix @ x + b - x)
    np.testing.assert_allclose(first, 0.5 * b, rtol=1e-12)
    x = first
    for _ in range(2):
        x = mixing.next(x, matrix @ x + b - x)
    x = mixing.next(x, matrix @ x + b - x)
    np.testing.assert_allclose(x, wanted, rtol=1e-9)


def test_late_rounds_are_averaged():
    mixing = cw.Mixing()
    mixing.round = cw.ROUNDS[0] - 1
    point, residual = np.array([0.3, -0.2]), np.array([0.6, 0.3])
    for late in range(3):
        found = mixing.next(point, residual)
        np.testing.assert_allclose(found, point + residual / (late + 3))
    # Before, what leaves the range of the weights is cut.
    assert cw.Mixing().next(np.array([0.9]), np.array([5.0])) == [0.99]


def test_the_first_step_of_the_temperature_follows_the_weighted_slopes(
    monkeypatch,
):
    rng = np.random.default_rng(0)
    logits, labels = 0.3 * rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    objective = NegativeLogLikelihoodObjective()
    losses = cw.ClassLosses(labels, np.ones(60), 3, objective, "mean")
    seen = []
    monkeypatch.setattr(
        cw, "fit_slope_and_span", lambda *given: seen.append(given)
    )

    def at(temperature):
        return losses.of(lambda rows: logits[rows] / temperature)

    cw.first_slope_and_span(losses, logits, at(1.0), "min_max")
    [(before, after, normalization, number)] = seen
    assert (normalization, number) == ("min_max", 3)
    np.testing.assert_array_equal(before, at(1.0))
    # d/dT of -z_y / T + log sum exp(z / T) at 1 is z_y - sum_k p_k z_k.
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    slope = logits[np.arange(60), labels] - (p * logits).sum(axis=1)
    slopes = np.array([slope[labels == k].mean() for k in range(3)])
    w = cw.class_weights(at(1.0), 1.0, 1.5, "min_max")
    total = ((1 + w) * slopes).sum()
    assert 0.01 < abs(total) < 1
    expected = at(1 - 0.02 * total)
    np.testing.assert_allclose(after, expected, rtol=1e-7)
