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


def test_the_error_is_the_integral_of_the_reflected_kernels():
    # By the trapezoid rule on the nodes, with images of each node at 2 k + c
    # and 2 k - c.
    t = np.linspace(0.0, 1.0, 9)
    nodes = np.random.default_rng(1).normal(size=9) / 9
    images = (2 * np.arange(-3, 4)[:, None] + [[t], [-t]]).reshape(-1, 1, 9)
    away = (t[:, None] - images) / 0.3
    kernel = np.exp(-0.5 * away**2).sum(axis=0) / (0.3 * np.sqrt(2 * np.pi))
    size = np.abs(kernel @ nodes)
    expected = (size[1:] + size[:-1]).sum() / 2 / 8
    found = smooth_error(nodes, bandwidth=0.3, xp=np)
    assert found == pytest.approx(expected, rel=1e-9)
