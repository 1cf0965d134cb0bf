"""Noise floor of binned errors: exact laws, and the sheet's simulations."""

import math

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.floor import binned_floor
from keras_calib.evaluation.floor import law_of_gap
from keras_calib.evaluation.floor import normal_floor
from keras_calib.evaluation.named_errors import FLOORS
from tests.metrics.oracles import CONFIDENCE
from tests.metrics.oracles import CORRECT
from tests.metrics.oracles import random_predictions


def bins_of(confidence, num_bins=15, binning="width", weight=None):
    confidence = np.asarray(confidence, "float64")
    events = sort_events(confidence, np.ones(len(confidence)), weight)
    cuts = {"width": events.width_cuts, "mass": events.mass_cuts}[binning]
    return events.bins(cuts(num_bins))


@pytest.mark.parametrize(
    "binning, mean", [("width", 0.1861), ("mass", 0.1899666667)]
)
def test_mean_of_small_bins_is_exact(binning, mean):
    # Convolution of Bernoulli laws, by hand and in the oracle.
    events = sort_events(CONFIDENCE, CORRECT)
    cuts = {"width": events.width_cuts, "mass": events.mass_cuts}[binning](5)
    floor = binned_floor(events.bins(cuts))
    assert floor.mean == pytest.approx(mean, abs=1e-9)


def test_one_sample_has_the_mean_of_its_own_coin():
    # |0.7 - a|: 0.3 with probability 0.7, 0.7 with 0.3; 2 c (1 - c).
    floor = binned_floor(bins_of([0.7]))
    assert floor.mean == pytest.approx(0.42, abs=1e-12)


def test_saturated_bin_is_not_taken_for_normal():
    # E|Binomial(100, 0.0001) - 0.01| / 100; the normal law says 0.000798.
    floor = binned_floor(bins_of(np.full(100, 0.9999)))
    miss = 0.9999**100
    assert floor.mean == pytest.approx(2 * 0.01 * miss / 100, rel=1e-9)


def test_where_all_bins_are_large_they_are_normal_and_need_no_sorting():
    rng = np.random.default_rng(0)
    confidence, weight = (
        rng.uniform(0.2, 0.9, 20_000),
        rng.uniform(1, 3, 20_000),
    )
    found = normal_floor(confidence, weight, 15)
    assert found == pytest.approx(
        binned_floor(bins_of(confidence, weight=weight)).mean, rel=1e-9
    )


def test_weighted_floor_agrees_with_drawn_labels():
    weight = 1.0 + np.arange(12) % 3
    floor = binned_floor(
        bins_of(CONFIDENCE, 5, weight=weight), num_draws=100_000
    )
    # 100,000 draws; the oracle's own mean of 1,000 has an error of 0.002.
    assert floor.mean == pytest.approx(0.1953333333, abs=0.006)
    events = sort_events(CONFIDENCE, CORRECT, weight)
    rng = np.random.default_rng(1)
    drawn = rng.random((40_000, 12)) < events.confidence64
    residual = (events.confidence64 - drawn) * events.weights
    cuts = events.width_cuts(5)
    sums = np.add.reduceat(residual, np.unique(cuts[:-1]), axis=1)
    errors = np.abs(sums).sum(axis=1) / weight.sum()
    error = errors.std() / math.sqrt(40_000)
    assert abs(floor.mean - errors.mean()) < 4 * error


def test_weights_times_a_constant_change_nothing():
    weight = 1.0 + np.arange(12) % 3
    one = binned_floor(bins_of(CONFIDENCE, 5, weight=weight))
    many = binned_floor(bins_of(CONFIDENCE, 5, weight=1e4 * weight))
    assert many.mean == pytest.approx(one.mean, rel=1e-9)


def test_few_surprises_among_many_weighted_samples():
    # 5,000 equal weights: the same law as without weights.
    confidence = np.full(5000, 0.9999)
    plain = binned_floor(bins_of(confidence), num_draws=40_000)
    weighted = binned_floor(
        bins_of(confidence, weight=np.ones(5000)), num_draws=40_000
    )
    assert weighted.mean == pytest.approx(plain.mean, rel=0.03)


# Means of 4,000 drawn sets of labels (10,000 samples, 15 bins), in percent,
# their Monte Carlo errors at most 0.0035; and their 95 % ranges.
SHAPES = {
    0.95: (0.343, 0.131, 0.628),
    0.8: (0.945, 0.550, 1.411),
}


@pytest.mark.parametrize("accuracy", SHAPES)
def test_power_shape_has_the_simulated_floor(accuracy):
    mean, low, high = SHAPES[accuracy]
    u = (np.arange(10_000) + 0.5) / 10_000
    floor = binned_floor(bins_of(u ** ((1 - accuracy) / accuracy)))
    assert 100 * floor.mean == pytest.approx(mean, abs=3 * 0.0035)
    # Quantiles of half-normal and of drawn labels differ by up to 0.014.
    assert 100 * floor.low == pytest.approx(low, abs=0.03)
    assert 100 * floor.high == pytest.approx(high, abs=0.03)


@pytest.mark.parametrize("norm", [1, 2, float("inf")])
def test_floor_agrees_with_labels_drawn_for_every_norm(norm):
    rng = np.random.default_rng(0)
    confidence = np.sort(rng.random(600) ** 0.4)
    events = sort_events(confidence, np.ones(600))
    cuts = events.width_cuts(10)
    floor = binned_floor(events.bins(cuts), norm, num_draws=20_000)
    drawn = rng.random((20_000, 600)) < confidence
    residual = np.abs(np.add.reduceat(confidence - drawn, cuts[:-1], axis=1))
    size = np.diff(cuts)
    values = {
        1: residual.sum(axis=1) / 600,
        2: np.sqrt((residual**2 / size).sum(axis=1) / 600),
        float("inf"): (residual / size).max(axis=1),
    }[norm]
    error = values.std() / math.sqrt(20_000)
    assert abs(floor.mean - values.mean()) < 5 * error + 0.002 * values.mean()


def test_certain_confidences_have_no_floor():
    # A confidence may be rounded to more than 1.
    for largest in (1.0, 1.0 + 1e-7):
        floor = binned_floor(bins_of([0.0, 1.0, largest]))
        assert (floor.mean, floor.low, floor.high) == (0.0, 0.0, 0.0)


def floors_of(*arguments, **options):
    found = kc.metrics.calibration_errors(*arguments, floor=True, **options)
    return {name: value for name, value in found.items() if "floor" in name}


def test_calibration_errors_have_floors_on_request():
    labels, p = random_predictions(400)
    found = kc.metrics.calibration_errors(labels, p, floor=True)
    assert found.items() >= kc.metrics.calibration_errors(labels, p).items()
    floors = floors_of(labels, p, metrics=list(FLOORS)[:-1])
    assert len(floors) == 3 * 5
    for binning, names in {
        "width": ("expected_calibration_error", "maximum_calibration_error"),
        "mass": ("adaptive_calibration_error",),
    }.items():
        for name in names:
            norm = float("inf") if name.startswith("max") else 1
            bins = bins_of(p.max(axis=1), binning=binning)
            floor = binned_floor(bins, norm)
            ends = [floors[f"{name}_floor{end}"] for end in ("_low", "_high")]
            assert floors[f"{name}_floor"] == pytest.approx(floor.mean, 1e-6)
            assert ends == pytest.approx([floor.low, floor.high], 1e-6)


def test_the_floor_is_the_expectation_of_the_consistency_test():
    labels, p = random_predictions(300, 2)
    for name in ("expected_calibration_error", "binary_calibration_error"):
        floor = floors_of(labels, p, metrics=[name])[f"{name}_floor"]
        test = kc.metrics.consistency_test(
            labels, p, metric=name, num_draws=4000, verbose=0
        )
        assert floor == pytest.approx(test.expected, rel=0.03)


def test_only_the_wanted_floors_and_none_of_ranking():
    labels, p = random_predictions(50)
    names = ["auroc", "smooth_calibration_error", "adaptive_calibration_error"]
    floors = floors_of(labels, p, metrics=names, num_resamples=10, verbose=0)
    assert {name.split("_floor")[0] for name in floors} == set(names[1:])


def test_the_law_of_nearly_certain_and_other_samples_is_exact():
    rng = np.random.default_rng(0)
    rare, open_ = rng.uniform(0, 0.005, 1500), rng.uniform(0, 1, 60)
    edges = [0.0, 1.0, 1 / 32, 31 / 32, 0.5]
    for parts in (
        [rare],
        [1 - rare],
        [rare, 1 - rare[:900], open_, edges],
        [np.full(800, 1 / 32)],
        [np.full(800, 31 / 32)],
    ):
        confidence = np.concatenate(parts)
        hits = np.ones(1)
        for c in confidence:
            hits = np.convolve(hits, [1 - c, c])
        sizes, law = law_of_gap(confidence)
        gaps = np.abs(np.arange(len(hits)) - confidence.sum())
        assert law.sum() == pytest.approx(1.0, abs=1e-12)
        assert sizes @ law == pytest.approx(hits @ gaps, abs=1e-11)
        for size in (0.5, 3.0, 9.0):
            beyond = hits[gaps > size].sum()
            assert law[sizes > size].sum() == pytest.approx(beyond, abs=1e-11)


def test_samples_with_much_variance_keep_it_among_many_others():
    rng = np.random.default_rng(0)
    confidence = np.full(50_000, 0.99999)
    confidence[:40] = 0.5
    rng.shuffle(confidence)
    events = sort_events(confidence, np.ones(len(confidence)))
    floor = binned_floor(events.bins(np.array([0, len(confidence)])))
    hits = rng.binomial(40, 0.5, 400_000) - rng.poisson(49_960e-5, 400_000)
    drawn = np.abs(hits - 20 + 49_960e-5)
    assert len(confidence) * floor.mean == pytest.approx(drawn.mean(), rel=0.01)
    high = np.quantile(drawn, 0.975)
    assert len(confidence) * floor.high == pytest.approx(high, abs=1)


def test_weighted_samples_with_much_variance_are_no_rare_surprises():
    rng = np.random.default_rng(0)
    confidence = np.full(3060, 0.9999)
    confidence[:60] = 0.6
    weights = rng.uniform(0.9, 1.1, 3060)
    events = sort_events(confidence, np.ones(3060), weights)
    floor = binned_floor(events.bins(np.array([0, 3060])))
    correct = rng.random((4000, 3060)) < confidence
    drawn = np.abs((confidence - correct) @ weights)
    assert weights.sum() * floor.mean == pytest.approx(drawn.mean(), rel=0.05)
    high = np.quantile(drawn, 0.975)
    assert weights.sum() * floor.high == pytest.approx(high, rel=0.05)


def test_a_range_has_the_share_of_draws_that_was_asked_for():
    events = bins_of(np.linspace(0.5, 1, 400))
    for level in (0.5, 0.9, 0.99):
        floor = binned_floor(events, level=level)
        again = binned_floor(events, seed=1, level=level)
        assert floor.high == pytest.approx(again.high, rel=0.05)
    wide, narrow = (binned_floor(events, level=each) for each in (0.99, 0.8))
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high
    assert wide.mean == narrow.mean
