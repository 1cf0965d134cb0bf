"""Class frequencies by EM, against formulas and SciPy."""

import numpy as np
import pytest
from scipy import optimize
from scipy import stats

from keras_calib.solvers import label_shift

pytestmark = pytest.mark.one_backend


def test_ratios_divide_by_the_source_and_skip_classes_without_one(monkeypatch):
    scores = np.log([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    source = np.array([0.25, 0.75, 0.0])
    expected = [[0.8, 0.4, 0.0], [2.4, 0.4, 0.0]]
    for shift in (0.0, 7.0):  # logits need not be normalized
        found = label_shift.likelihood_ratios(scores + shift, source)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    # Many are overwritten, which saves their memory.
    monkeypatch.setattr(label_shift, "SMALL", 5)
    given = scores.copy()
    found = label_shift.likelihood_ratios(given, source)
    assert found is given
    np.testing.assert_allclose(given, expected, rtol=1e-12)


def test_certain_predictions_give_their_frequencies_in_one_step():
    # Rows 0, 0, 0, 1 with weights 1, 1, 1, 5, and s = (1/2, 1/2).
    ratios = np.array([[2.0, 0.0]] * 3 + [[0.0, 2.0]])
    found = label_shift.estimate_prior(
        ratios, np.array([0.5, 0.5]), np.array([1.0, 1.0, 1.0, 5.0])
    )
    np.testing.assert_allclose(found.prior, [3 / 8, 5 / 8], rtol=1e-12)
    # The second step changes nothing.
    assert (found.iterations, found.converged) == (2, True)
    expected = 3 / 8 * np.log(2 * 3 / 8) + 5 / 8 * np.log(2 * 5 / 8)
    assert found.log_likelihood == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(found.ratios, [1.0, 1.0], rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_estimate_is_the_optimum_of_the_likelihood(seed):
    rng = np.random.default_rng(seed)
    scores = 2 * rng.normal(size=(300, 2))
    weights = rng.uniform(0.1, 2.0, 300)
    source = np.array([0.3, 0.7])
    ratios = label_shift.likelihood_ratios(scores, source)

    def loss(q):
        return -np.average(np.log(ratios @ [q, 1 - q]), weights=weights)

    best = optimize.minimize_scalar(
        loss, bounds=(0, 1), method="bounded", options={"xatol": 1e-10}
    )
    found = label_shift.estimate_prior(ratios, source, weights)
    assert found.converged and found.iterations < 10_000
    assert found.prior[0] == pytest.approx(best.x, abs=1e-6)
    assert found.prior.sum() == pytest.approx(1.0, abs=1e-14)
    assert found.log_likelihood == pytest.approx(-best.fun, rel=1e-10)
    slope = (weights / weights.sum() / (ratios @ found.prior)) @ ratios
    np.testing.assert_allclose(found.ratios, slope, rtol=1e-10)


def test_steps_are_counted_and_bounded():
    ratios = np.array([[1.0, 0.5], [0.4, 1.6]])
    source = np.array([0.5, 0.5])
    found = label_shift.estimate_prior(ratios, source, max_steps=1)
    # q_k = s_k mean_i r_ik / sum_l r_il s_l, with both rows of weight 1/2.
    expected = 0.5 * (ratios / (ratios @ source)[:, None]).mean(axis=0)
    np.testing.assert_allclose(found.prior, expected, rtol=1e-12)
    assert (found.iterations, found.converged) == (1, False)
    none = label_shift.estimate_prior(ratios, source, max_steps=0)
    np.testing.assert_array_equal(none.prior, source)
    assert (none.iterations, none.converged) == (0, False)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 10])
@pytest.mark.parametrize("statistic", [1e-3, 0.7, 3.0, 12.0, 80.0])
def test_chi_square_tail_is_that_of_scipy(degrees, statistic):
    found = label_shift.chi_square_tail(statistic, degrees)
    expected = stats.chi2.sf(statistic, degrees)
    assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("case", [(0.0, 3), (-1e-12, 3), (5.0, 0)])
def test_chi_square_tail_of_nothing_is_one(case):
    assert label_shift.chi_square_tail(*case) == 1.0
