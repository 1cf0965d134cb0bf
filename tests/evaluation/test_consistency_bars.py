"""Consistency bars: worked numbers of the sheet, and simulated coverage."""

import numpy as np
import pytest

from keras_calib.evaluation.consistency_bars import _binomial_quantiles
from keras_calib.evaluation.consistency_bars import consistency_bars
from keras_calib.evaluation.events import Events
from keras_calib.evaluation.events import sort_events
from tests.metrics.oracles import CONFIDENCE
from tests.metrics.oracles import CORRECT


def bars(confidence, num_bins, weight=None, **options):
    events = sort_events(confidence, np.ones(len(confidence)), weight)
    bins = events.bins(events.width_cuts(num_bins))
    return bins, *consistency_bars(bins, **options)


def test_edge_set():
    # The last bin has confidence 1 and accuracy 1/2: outside.
    events = sort_events(CONFIDENCE, CORRECT)
    bins = events.bins(events.width_cuts(5))
    low, high = consistency_bars(bins)
    np.testing.assert_allclose(low, [0, 0, 0, 0, 1])
    np.testing.assert_allclose(high, [0.75, 1, 1, 1, 1])
    assert bins.accuracy[-1] == 0.5


def test_binomial_quantiles_are_scipy_s():
    binom = pytest.importorskip("scipy.stats").binom
    rng = np.random.default_rng(0)
    wanted = [0.0017, 0.025, 0.975, 0.9983]
    for near in (0.0, 0.5, 1.0):
        for _ in range(100):
            number = int(10 ** rng.uniform(0, 6))
            p = abs(near - 10 ** -rng.uniform(0.4, 7))
            np.testing.assert_array_equal(
                _binomial_quantiles(number, p, wanted),
                binom.ppf(wanted, number, p),
            )


# Sheet of formulas, simulated there with 4,000 sets: confidences U(0, 1).
@pytest.mark.parametrize(
    "number, num_bins, together, alone",
    [(200, 10, 0.980, 0.789), (2000, 10, 0.961, 0.657)],
)
def test_coverage_of_all_bars(number, num_bins, together, alone):
    rng = np.random.default_rng(number)
    held = {True: 0, False: 0}
    num_sets = 1500
    for _ in range(num_sets):
        confidence = np.sort(rng.random(number))
        correct = rng.random(number) < confidence
        events = sort_events(confidence, correct)
        bins = events.bins(events.width_cuts(num_bins))
        for simultaneous in held:
            low, high = consistency_bars(bins, simultaneous=simultaneous)
            out = (bins.accuracy < low - 1e-9) | (bins.accuracy > high + 1e-9)
            held[simultaneous] += not out.any()
    # Three standard errors of both simulations.
    for simultaneous, rate in ((True, together), (False, alone)):
        error = np.sqrt(rate * (1 - rate) * (1 / num_sets + 1 / 4000))
        found = held[simultaneous] / num_sets
        assert found == pytest.approx(rate, abs=3 * error)


@pytest.mark.slow
@pytest.mark.one_backend
@pytest.mark.parametrize("power", [1.0, 0.25])
@pytest.mark.parametrize(
    "num_bins", [2, 10, pytest.param(100, marks=pytest.mark.weekly)]
)
@pytest.mark.parametrize("number", [200, 2000, 20000])
def test_coverage_of_the_simultaneous_bars(
    number, num_bins, power, record_property
):
    """Bars, and labels of each data set, are drawn anew 1,000 times."""
    rng = np.random.default_rng([number, num_bins])
    num_sets, held = 1000, 0
    for _ in range(num_sets):
        confidence = np.sort(rng.random(number) ** power)
        correct = (rng.random(number) < confidence).astype("float64")
        events = Events(confidence, correct)
        bins = events.bins(events.width_cuts(num_bins))
        low, high = consistency_bars(bins)
        out = (bins.accuracy < low - 1e-9) | (bins.accuracy > high + 1e-9)
        held += not out.any()
    record_property("coverage", held / num_sets)
    # They may hold more often: hits are whole numbers.
    error = np.sqrt(0.95 * 0.05 / num_sets)
    assert held / num_sets >= 0.95 - 3 * error


@pytest.mark.parametrize("number, at_most", [(300, 1.0), (3000, 0.968)])
def test_coverage_with_weights(number, at_most):
    rng = np.random.default_rng(3)
    confidence = np.sort(rng.random(number)) ** 0.25
    weight = rng.uniform(0.2, 3.0, number)
    bins, low, high = bars(confidence, 10, weight)
    used = bins.weight > 0
    starts = bins.cuts[:-1][used]
    drawn = rng.random((4000, number)) < confidence
    sums = np.add.reduceat(drawn * bins.events.weights, starts, axis=1)
    accuracy = sums / bins.weight[used]
    inside = (accuracy > low[used] - 1e-9) & (accuracy < high[used] + 1e-9)
    # The error of 4,000 sets is 0.0034, that of the quantile 0.005. Bars of
    # few samples end at 0 or 1, and hold more often.
    assert 0.932 < inside.all(axis=1).mean() <= at_most
    alone = bars(confidence, 10, weight, simultaneous=False)[1:]
    assert (alone[1] - alone[0])[used].sum() < (high - low)[used].sum()


def test_equal_weights_are_none_and_empty_bins_are_nan():
    confidence = np.linspace(0.5, 1, 50)
    _, *plain = bars(confidence, 8)
    _, *weighted = bars(confidence, 8, np.full(50, 0.3))
    np.testing.assert_array_equal(plain, weighted)
    assert np.isnan(plain[0][:3]).all() and not np.isnan(plain[0][4:]).any()


def test_one_sample_and_another_level():
    _, low, high = bars(np.array([0.7]), 5)
    assert (low[3], high[3]) == (0, 1)
    confidence = np.full(1000, 0.75)
    widths = [
        np.nanmax(bars(confidence, 5, level=level)[2]) for level in (0.5, 0.99)
    ]
    assert widths[0] < widths[1]


def test_one_full_bin_has_the_binomial_interval():
    # scipy.stats.binom.ppf([0.025, 0.975], 100, 0.8) is 72, 88.
    _, low, high = bars(np.full(100, 0.8), 5)
    np.testing.assert_allclose([low[3], high[3]], [0.72, 0.88])
