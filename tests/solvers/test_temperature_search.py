"""The search of a temperature on a part of the samples."""

import types

import numpy as np
import pytest

from keras_calib.layers import FocalObjective
from keras_calib.solvers import temperature_search
from tests.layers.generated import generated

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize("of_confidence", [True, False])
def test_the_ends_of_the_range_are_told(of_confidence):
    objective = types.SimpleNamespace(of_confidence=of_confidence)
    low, high = temperature_search.RANGES[of_confidence]
    # Rounding of an exponential and a cell beyond count as the end.
    for found in (low, low * (1 + 1e-15), 0.9 * low):
        assert temperature_search.ends_at(found, objective) == low
    for found in (high, high * (1 - 1e-15), 1.1 * high):
        assert temperature_search.ends_at(found, objective) == high
    for found in (1.01 * low, 1.0, 0.99 * high):
        assert temperature_search.ends_at(found, objective) is None


def test_the_first_grid_of_large_logits_is_that_of_a_part(monkeypatch):
    logits, labels = generated()
    # Each row thrice in turn, so that every third row is a whole sample.
    logits, labels = np.repeat(logits, 3, axis=0), np.repeat(labels, 3)
    data = logits, labels, np.ones(len(labels))
    rows = []

    class Watched(FocalObjective):
        def losses(self, scores, labels):
            rows.append(len(labels))
            return super().losses(scores, labels)

    expected = temperature_search.search_temperature(*data, Watched())
    assert set(rows) == {1500}
    rows.clear()
    monkeypatch.setattr(temperature_search, "WHOLE_UP_TO", logits.size * 2 // 5)
    found = temperature_search.search_temperature(*data, Watched())
    assert rows.count(500) == 129
    assert found == pytest.approx(expected, rel=1e-9)
