"""The smooth error of nodes: as many points as distances between them."""

import numpy as np
import pytest

from keras_calib.ops.smooth_error import smooth_error

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize("number", [5, 6, 9, 12])
def test_points_are_the_distances_between_the_nodes(number):
    nodes = np.random.default_rng(number).normal(size=number) / number
    found = smooth_error(nodes, bandwidth=0.2, xp=np)
    same = smooth_error(nodes, bandwidth=0.2, points=number - 1, xp=np)
    assert found == same
    other = smooth_error(nodes, bandwidth=0.2, points=number - 2, xp=np)
    assert found != other


def test_a_wide_kernel_leaves_the_total_gap():
    # A kernel that is far wider than [0, 1] is constant there.
    nodes = np.array([0.1, -0.3, 0.05, 0.02, -0.01])
    found = smooth_error(nodes, bandwidth=20.0, xp=np)
    assert found == pytest.approx(abs(nodes.sum()), rel=1e-9)
