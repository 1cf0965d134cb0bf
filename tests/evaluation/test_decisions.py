"""Risk by coverage, net benefit and Pareto front: worked numbers."""

import numpy as np
import pytest

from keras_calib.evaluation import decisions
from keras_calib.evaluation.binless import selective_risk
from keras_calib.evaluation.events import sort_events
from tests.metrics.oracles import CONFIDENCE
from tests.metrics.oracles import CORRECT
from tests.metrics.oracles import generated_set
from tests.metrics.oracles import softmax


def generated():
    labels, logits = generated_set()
    return labels, softmax(logits)


def top_label():
    labels, p = generated()
    return sort_events(p.max(axis=1), (p.argmax(axis=1) == labels) * 1.0)


def test_risk_of_the_edge_set():
    # The sheet of formulas: coverage and risk where a share of .5 or .8 of the
    # samples is reached, at the end of a tie.
    coverage, risk = decisions.risk_coverage(sort_events(CONFIDENCE, CORRECT))
    found = dict(zip(coverage.round(10), risk, strict=True))
    assert found[0.5] == pytest.approx(1 / 3)
    assert found[round(10 / 12, 10)] == pytest.approx(0.4)
    assert coverage[-1] == 1 and risk[-1] == pytest.approx(0.5)


def test_risk_of_the_generated_set():
    coverage, risk = decisions.risk_coverage(top_label())
    for wanted, expected in ((0.5, 0.084), (0.8, 0.2), (0.95, 0.2505263158)):
        assert risk[coverage >= wanted - 1e-12][0] == pytest.approx(expected)
    # The largest coverage with a risk of at most 5 %.
    assert coverage[risk <= 0.05].max() == pytest.approx(0.32)


def test_area_of_the_curve_is_the_aurc():
    # Distinct confidences: the mean of the risk at every coverage.
    events = top_label()
    coverage, risk = decisions.risk_coverage(events)
    assert len(coverage) == 500
    assert risk.mean() == pytest.approx(selective_risk(events)[0])


def test_weights_count_as_repetitions():
    weights = 1 + np.arange(12) % 3
    ours = decisions.risk_coverage(
        sort_events(CONFIDENCE, CORRECT, weights.astype(float))
    )
    repeated = decisions.risk_coverage(
        sort_events(CONFIDENCE.repeat(weights), CORRECT.repeat(weights))
    )
    np.testing.assert_allclose(ours, repeated)


@pytest.mark.parametrize(
    "threshold, expected, everybody", [(0.5, 0.2, 0.0), (0.75, -0.2, -1.0)]
)
def test_net_benefit_by_hand(threshold, expected, everybody):
    # p = .2 four times (one event), p = .8 six times (four events).
    p = np.repeat([0.2, 0.8], [4, 6])
    y = np.array([1, 0, 0, 0, 1, 1, 1, 1, 0, 0])
    for dtype in ("float32", "float64"):
        found = decisions.net_benefit(
            sort_events(p.astype(dtype), y), np.array([threshold])
        )
        np.testing.assert_allclose(
            np.ravel(found), [expected, everybody], atol=1e-12
        )


def test_net_benefit_treats_at_the_threshold():
    # As in the sheet: p >= t, in the dtype of the probabilities too.
    for dtype in ("float32", "float64"):
        events = sort_events(np.array([0.1, 0.3], dtype), np.array([0, 1]))
        model, _ = decisions.net_benefit(events, np.array([0.3]))
        assert model[0] == pytest.approx(0.5)


def test_net_benefit_of_the_generated_set():
    thresholds = np.array([0.25, 0.5, 0.75])
    model, _ = decisions.net_benefit(top_label(), thresholds)
    np.testing.assert_allclose(model, [0.64, 0.468, 0.184])
    labels, p = generated()
    model, everybody = decisions.net_benefit(
        sort_events(p[:, 0], labels == 0), thresholds
    )
    np.testing.assert_allclose(model, [0.1166666667, 0.064, -0.026])
    np.testing.assert_allclose(everybody, [-0.1013333333, -0.652, -2.304])


def test_pareto_front_is_what_no_other_beats():
    rng = np.random.default_rng(0)
    for _ in range(20):
        gain, cost = rng.integers(0, 6, (2, 12)) / 6
        expected = {
            i
            for i in range(12)
            if not any(
                gain[j] >= gain[i]
                and cost[j] <= cost[i]
                and (gain[j] > gain[i] or cost[j] < cost[i])
                for j in range(12)
            )
        }
        found = decisions.pareto_front(gain, cost)
        assert set(found) == expected and len(found) == len(expected)
        assert (np.diff(gain[found]) >= 0).all()
