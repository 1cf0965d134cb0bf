"""Greedy class temperatures: when the sweeps end, and what one step does."""

import numpy as np
import pytest

from keras_calib.solvers import class_temperatures as ct

pytestmark = pytest.mark.one_backend
# Without ties at any of the temperatures.
LOGITS = np.array(
    [[2.013, 0.507, -1.003], [0.311, 0.829, 0.117], [-1.019, 2.003, 1.523]]
)
LABELS, WEIGHTS = np.array([0, 1, 2]), np.ones(3)


class Falling:
    """An objective whose value falls at every call."""

    def __init__(self):
        self.calls = 0

    def of(self, confidence, correct, weights):
        self.calls += 1
        return -self.calls


class Confidence:
    """The mean confidence of the predictions."""

    def of(self, confidence, correct, weights):
        return float(confidence.mean())


def test_sweeps_end_after_five(monkeypatch):
    monkeypatch.setattr(ct, "search_temperature", lambda *_: (1.0, 0.0))
    objective = Falling()
    found, value = ct.search_class_temperatures(
        LOGITS, LABELS, WEIGHTS, objective
    )
    # Three classes of a hundred temperatures each, and the last one is best.
    assert objective.calls == 5 * 3 * 100
    assert value == -1500
    np.testing.assert_array_equal(found, [10.0, 10.0, 10.0])


def test_a_sweep_without_a_change_is_the_last(monkeypatch):
    monkeypatch.setattr(ct, "search_temperature", lambda *_: (2.5, -1.0))
    objective = Confidence()
    found, value = ct.search_class_temperatures(
        LOGITS, LABELS, WEIGHTS, objective
    )
    # No confidence is below minus one.
    np.testing.assert_array_equal(found, [2.5, 2.5, 2.5])
    assert value == -1.0


def test_each_class_is_searched_beside_the_scores_of_now(monkeypatch):
    monkeypatch.setattr(ct, "search_temperature", lambda *_: (2.5, 0.9))
    found = iter([(0.5, 0.8), (9.0, 0.8), (4.0, 0.7), *3 * [(1.0, 0.7)]])
    seen = []

    def best(scores, k, logit, *_):
        np.testing.assert_array_equal(logit, LOGITS[:, k])
        seen.append(scores.copy())
        return next(found)

    monkeypatch.setattr(ct, "_best", best)
    temperatures, value = ct.search_class_temperatures(
        LOGITS, LABELS, WEIGHTS, None
    )
    # The second is as good as before, and so not taken.
    np.testing.assert_array_equal(temperatures, [0.5, 2.5, 4.0])
    assert value == 0.7
    for scores, divided in zip(
        seen,
        [[2.5, 2.5, 2.5], [0.5, 2.5, 2.5], [0.5, 2.5, 2.5]]
        + 3 * [[0.5, 2.5, 4.0]],
        strict=True,
    ):
        np.testing.assert_allclose(scores, LOGITS / divided)


@pytest.mark.parametrize("k", range(3))
def test_the_best_temperature_of_a_class_is_that_of_whole_softmaxes(k):
    seen = []

    class Recorded:
        def of(self, confidence, correct, weights):
            seen.append((confidence, correct))
            return (confidence - correct) @ weights

    scores = LOGITS / 1.5
    best, value = ct._best(scores, k, LOGITS[:, k], LABELS, WEIGHTS, Recorded())
    values = []
    for temperature, (confidence, correct) in zip(
        ct.TEMPERATURES, seen, strict=True
    ):
        z = scores.copy()
        z[:, k] = LOGITS[:, k] / temperature
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(confidence, p.max(axis=1), rtol=1e-12)
        np.testing.assert_array_equal(correct, p.argmax(axis=1) == LABELS)
        values.append((p.max(axis=1) - correct).sum())
    assert best == ct.TEMPERATURES[int(np.argmin(values))]
    assert value == pytest.approx(min(values), rel=1e-12)
