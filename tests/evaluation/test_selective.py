"""AUGRC, coverage at a risk, risk at a coverage: worked numbers and rules."""

import types

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.evaluation import decisions
from keras_calib.evaluation import replicates
from keras_calib.evaluation.binless import auroc
from keras_calib.evaluation.events import Events
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.named_errors import SELECTIVE
from tests.metrics.oracles import CONFIDENCE
from tests.metrics.oracles import CORRECT
from tests.metrics.oracles import generated_set
from tests.metrics.oracles import random_predictions
from tests.metrics.oracles import softmax

AUGRC, COVERAGE, RISK = SELECTIVE


def edge_set(weights=None):
    return sort_events(CONFIDENCE, CORRECT, weights)


def generated(weights=None):
    labels, logits = generated_set()
    p = softmax(logits)
    correct = (p.argmax(axis=1) == labels) * 1.0
    return sort_events(p.max(axis=1), correct, weights)


@pytest.mark.parametrize(
    "make, value, best, random, weighted",
    [
        (edge_set, 0.1944444444, 0.125, 0.25, 0.2048611111),
        (generated, 0.079942, 0.03645, 0.135, 0.0847263680),
    ],
)
def test_augrc(make, value, best, random, weighted):
    events = make()
    found = decisions.area_under_generalized_risk(events)
    assert found == pytest.approx(value, rel=1e-8)
    accuracy = events.correct.mean()
    identity = (1 - auroc(events)) * accuracy * (1 - accuracy)
    assert found == pytest.approx(identity + (1 - accuracy) ** 2 / 2, rel=1e-12)
    # All errors last; and all confidences equal.
    n = len(events)
    right = np.sort(events.correct)
    sorted_well = sort_events(np.linspace(0.1, 0.9, n), right)
    assert decisions.area_under_generalized_risk(sorted_well) == pytest.approx(
        best
    )
    equal = sort_events(np.full(n, 0.5), right)
    assert decisions.area_under_generalized_risk(equal) == pytest.approx(random)
    events = make(1.0 + np.arange(n) % 3)
    assert decisions.area_under_generalized_risk(events) == pytest.approx(
        weighted, rel=1e-8
    )


COVERAGES = {
    edge_set: {
        0.05: (0, None),
        0.1: (0, None),
        0.2: (0, None),
        0.3: (0.5833333333, 0.4),
    },
    generated: {
        0.05: (0.32, 0.9875940064),
        0.1: (0.534, 0.9209693454),
        0.2: (0.806, 0.6717996151),
        0.3: (1, 0.3226983190),
    },
}
RISKS = {
    edge_set: {
        0.5: (1 / 3, 0.5, 0.55),
        0.8: (0.4, 0.8333333333, 0.2),
        0.95: (0.5, 1, 0),
        1.0: (0.5, 1, 0),
    },
    generated: {
        0.5: (0.084, 0.5, 0.9386581955),
        0.8: (0.2, 0.8, 0.6826918935),
        0.95: (0.2505263158, 0.95, 0.4897216632),
        1.0: (0.27, 1, 0.3226983190),
    },
}


@pytest.mark.parametrize("make", COVERAGES)
def test_coverage_at_risk(make):
    events = make()
    for risk, (coverage, threshold) in COVERAGES[make].items():
        found, at = decisions.coverage_at_risk(events, risk)
        assert found == pytest.approx(coverage, rel=1e-8)
        if threshold is None:
            assert np.isnan(at)
            continue
        assert at == pytest.approx(threshold, rel=1e-8)
        accepted = events.confidence >= at
        assert accepted.mean() == pytest.approx(coverage, rel=1e-8)
        assert 1 - events.correct[accepted].mean() <= risk + 1e-12


@pytest.mark.parametrize("make", RISKS)
def test_risk_at_coverage(make):
    events = make()
    for coverage, wanted in RISKS[make].items():
        found = decisions.risk_at_coverage(events, coverage)
        np.testing.assert_allclose(found, wanted, rtol=1e-8)
        accepted = events.confidence >= found[2]
        error = 1 - events.correct[accepted].mean()
        assert error == pytest.approx(float(found[0]))


@pytest.mark.parametrize("coverage, wanted", [(0.55, 55), (0.07, 7)])
def test_a_coverage_is_not_rounded_up(coverage, wanted):
    # 100 * 0.55 is above 55, and 100 * 0.07 above 7.
    events = sort_events(np.arange(100) / 100, np.ones(100))
    reached = decisions.risk_at_coverage(events, coverage)[1]
    assert round(100 * reached) == wanted


@pytest.mark.parametrize("right, area", [(1.0, 0.0), (0.0, 0.5)])
def test_only_hits_and_only_errors(right, area):
    for n in (1, 9):
        events = sort_events(np.arange(1, n + 1) / 10, np.full(n, right))
        found = decisions.area_under_generalized_risk(events)
        assert found == pytest.approx(area)
        coverage, threshold = decisions.coverage_at_risk(events, 0.05)
        assert coverage == right
        assert np.isnan(threshold) if right == 0 else threshold == 0.1
        assert decisions.risk_at_coverage(events, 0.8)[0] == 1 - right


def test_no_samples():
    events = sort_events(np.zeros(0), np.zeros(0))
    assert decisions.area_under_generalized_risk(events) == 0
    coverage, threshold = decisions.coverage_at_risk(events, 0.05)
    assert coverage == 0 and np.isnan(threshold)
    risk, reached, threshold = decisions.risk_at_coverage(events, 0.8)
    assert risk == 0 and reached == 0 and np.isnan(threshold)


def test_replicates_are_one_by_one():
    rng = np.random.default_rng(0)
    confidence = np.sort(rng.integers(1, 8, 40) / 8)
    correct = rng.integers(0, 2, 40) * 1.0
    weights = rng.integers(0, 3, (30, 40)) * 1.0
    many = Events(confidence, correct, weights)
    functions = (
        decisions.area_under_generalized_risk,
        lambda e: decisions.coverage_at_risk(e, 0.4),
        lambda e: decisions.risk_at_coverage(e, 0.6),
    )
    for function in functions:
        found = np.atleast_2d(function(many))
        for row in range(30):
            w = weights[row].astype(int)
            one = sort_events(confidence.repeat(w), correct.repeat(w))
            np.testing.assert_allclose(
                found[:, row], np.ravel(function(one)), rtol=1e-12
            )
    drawn = Events(confidence, rng.integers(0, 2, (30, 40)) * 1.0)
    for function in functions:
        found = np.atleast_2d(function(drawn))
        one = function(Events(confidence, drawn.correct[3]))
        np.testing.assert_allclose(found[:, 3], np.ravel(one), rtol=1e-12)


def test_by_name():
    labels, logits = generated_set()
    p = softmax(logits)
    found = kc.metrics.calibration_errors(labels, p, metrics=list(SELECTIVE))
    assert found == pytest.approx(
        {AUGRC: 0.079942, COVERAGE: 0.32, RISK: 0.2}, rel=1e-8
    )
    # Without a name they are not computed; they have no floor.
    assert not set(SELECTIVE) & set(kc.metrics.calibration_errors(labels, p))
    found = kc.metrics.calibration_errors(
        labels, p, metrics=[AUGRC], floor=True
    )
    assert set(found) == {AUGRC}


def test_intervals_and_groups():
    labels, p = random_predictions(300)
    found = kc.metrics.calibration_errors(
        labels,
        p,
        metrics=list(SELECTIVE),
        num_resamples=200,
        groups=np.arange(300) % 2,
        verbose=0,
    )
    for name in SELECTIVE:
        assert 0 <= found[name].low <= found[name] <= found[name].high <= 1
    parts = {k: v[COVERAGE] for k, v in found["groups"].items()}
    worst = found["worst_group"][COVERAGE]
    assert parts[worst] == min(parts.values())
    parts = {k: v[AUGRC] for k, v in found["groups"].items()}
    assert parts[found["worst_group"][AUGRC]] == max(parts.values())


def test_replicates_are_drawn_in_tables_of_bounded_size(monkeypatch):
    monkeypatch.setattr(replicates, "TABLE", 100)
    for rows, sizes in ((30, [3, 3, 1]), (50, [2, 2, 2, 1]), (101, [1] * 7)):
        data = types.SimpleNamespace(labels=np.zeros(rows))
        draws = replicates.Replicates(data, 7, 0, 1, 0)
        assert [size for _, size in draws.chunks()] == sizes
        assert draws.bar.total == draws.bar.done == len(sizes)


def test_a_resample_sums_weights_and_their_squares_over_its_copies(monkeypatch):
    data = types.SimpleNamespace(unit=None, units=3, labels=np.zeros(3))
    draws = replicates.Resamples(data, 1, 0, 1, 0)
    # Of the rows, in their own order: twice, never and once.
    monkeypatch.setattr(draws, "unit_counts", lambda *_: np.array([[2, 0, 1]]))
    w, order = np.array([1.5, 5.0, 3.0]), np.array([2, 0, 1])
    c = np.array([0.6, 0.7, 0.8])
    events = Events(c, np.ones(3), w[order], w[order] ** 2)
    found = draws.replicate(events, order, None, None, 1)
    np.testing.assert_array_equal(found.confidence, c)
    np.testing.assert_array_equal(found.weights, [[3.0, 3.0, 0.0]])
    np.testing.assert_array_equal(found.square, [[9.0, 4.5, 0.0]])


def test_their_intervals_are_those_of_percentiles():
    labels, p = random_predictions(200)
    options = {"metrics": list(SELECTIVE), "num_resamples": 60, "verbose": 0}
    found, expected = (
        kc.metrics.calibration_errors(labels, p, interval=kind, **options)
        for kind in ("auto", "percentile")
    )
    for name in SELECTIVE:
        assert found[name].low == expected[name].low
        assert found[name].high == expected[name].high
