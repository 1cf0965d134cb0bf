"""Few seeds borrow their spread from all methods of a table."""

import re

import numpy as np
import pytest
from scipy import stats

pytestmark = pytest.mark.one_backend


@pytest.fixture
def spread(papers):
    import spread

    return spread


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def of_methods(generator, count, seeds, deviations):
    return [
        generator.normal(0.0, deviation, seeds)
        for deviation in np.broadcast_to(deviations, count)
    ]


def test_common_variance_and_its_freedom_are_found(spread, rng):
    # Variances drawn from the model: d0 = 6, s0 = 0.5.
    variances = 6 * 0.25 / rng.chisquare(6, 4000)
    found = spread.Spread(of_methods(rng, 4000, 3, np.sqrt(variances)))
    assert found.freedom == pytest.approx(6, rel=0.25)
    assert found.variance == pytest.approx(0.25, rel=0.1)
    assert found.degrees == 8000


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_p_values_are_uniform_without_a_difference(spread, rng, seeds):
    variances = 4 / rng.chisquare(4, 3000)
    known = spread.Spread(of_methods(rng, 3000, 3, np.sqrt(variances)))
    variances = 4 / rng.chisquare(4, 3000)
    tried = of_methods(rng, 3000, seeds, np.sqrt(variances))
    p = [known.p_value(each) for each in tried]
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_moderated_t_by_hand(spread):
    scatter = spread.Spread([])
    scatter.freedom, scatter.variance, scatter.degrees = 4.0, 9.0, 100
    values = np.array([3.0, 5.0])
    # s^2 = 2: (4 * 9 + 2) / 5 = 7.6; t = 4 / sqrt(7.6 / 2), 5 degrees.
    expected = 2 * stats.t.sf(4 / np.sqrt(3.8), 5)
    assert scatter.p_value(values) == pytest.approx(expected)
    expected = 2 * stats.t.sf(4 / 3, 4)  # one seed: 9 and 4 degrees
    assert scatter.p_value(values[:1] + 1) == pytest.approx(expected)


def test_equal_variances_lend_no_more_degrees_than_there_are(spread):
    found = spread.Spread([np.array([0.0, 2.0]), np.array([1.0, 3.0])])
    assert found.freedom == np.inf and found.degrees == 2
    # The mean of log chi-squared variables is lower than the log of the mean.
    assert found.variance == pytest.approx(2 * np.exp(0.5772157 + np.log(2)))
    t = 5 / np.sqrt(found.variance / 2)
    expected = 2 * stats.t.sf(t, 2)
    assert found.p_value(np.array([4.0, 6.0])) == pytest.approx(expected)


def test_without_any_second_seed_nothing_is_told(spread):
    found = spread.Spread([np.array([1.0]), np.array([2.0])])
    assert found.p_value(np.array([9.0])) is None
    assert found.cell(np.array([9.0])) == "-"
    assert found.words(np.array([-9.0]), "lower", "higher") == "lower, one seed"
    # Own seeds are a plain t-test then.
    values = np.array([0.1, 0.2, 0.4])
    expected = stats.ttest_1samp(values, 0.0).pvalue
    assert found.p_value(values) == pytest.approx(expected)


def test_words_need_two_seeds_and_a_small_p(spread, rng):
    found = spread.Spread(of_methods(rng, 20, 3, 0.1))
    far, near = np.array([5.0, 5.1]), np.array([0.02, -0.01])
    assert found.words(far, "lower", "higher") == "higher"
    assert found.words(-far, "lower", "higher") == "lower"
    assert found.words(near, "lower", "higher") == "not told apart"
    assert found.words(far[:1], "lower", "higher") == "higher, one seed"
    assert not found.told_apart(far[:1])
    assert found.cell(far) == "< 1e-06"
    assert float(found.cell(near)) == pytest.approx(
        found.p_value(near), rel=0.1
    )


def test_equal_rows_differ_in_nothing(spread):
    found = spread.Spread([np.zeros(3)])
    assert found.p_value(np.zeros(2)) == 1.0
    assert found.p_value(np.ones(2)) == 0.0


@pytest.mark.parametrize(("seeds", "methods"), [(2, 30), (3, 46)])
def test_p_values_are_too_small_by_what_the_page_says(
    papers, spread, rng, seeds, methods
):
    import verdicts

    words = " ".join(verdicts.ABOUT.split())
    said = re.search(
        rf"([\d.]+) % [a-z ]*with {seeds} seeds of {methods}", words
    )
    tables = 1000
    found = 0
    for _ in range(tables):
        values = rng.normal(size=(methods + 1, seeds))
        differences = values[1:] - values[0]
        scatter = spread.Spread(differences)
        found += sum(map(scatter.told_apart, differences))
    rate = found / (tables * methods)
    # Lines of a table share its seeds, so that rates scatter.
    assert rate == pytest.approx(float(said[1]) / 100, abs=0.01)
    assert rate > spread.LEVEL
