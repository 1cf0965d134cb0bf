"""Objectives that are evaluated block by block."""

import types

import numpy as np
import pytest

from keras_calib.solvers import blocks

pytestmark = pytest.mark.one_backend


def test_a_mean_over_samples_in_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "row_blocks", lambda n, k: ROWS)
    targets, weights = np.arange(5.0), np.array([1.0, 2, 0, 1, 4])

    def function(rows, part):
        share = part / part.sum()
        return share @ targets[rows] ** 2, 2 * share * targets[rows]

    passes = []
    for per_sample in (True, False):
        objective = types.SimpleNamespace(per_sample=per_sample)
        with blocks.each_pass(lambda: passes.append(1)):
            value, pieces = blocks.objective_in_blocks(
                function, objective, (5, 1), weights
            )
        assert value == pytest.approx(weights @ targets**2 / 8)
        gradient = np.concatenate(pieces)
        np.testing.assert_allclose(gradient, weights * targets / 4)
    assert passes == [1]  # of what is read in blocks


ROWS = [slice(0, 2), slice(2, 5)]
