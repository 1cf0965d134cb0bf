import numpy as np

from keras_calib.solvers.lbfgs import lbfgs


def test_rosenbrock():
    def function(x):
        a, b = 1 - x[0], x[1] - x[0] ** 2
        gradient = np.array([-2 * a - 400 * x[0] * b, 200 * b])
        return a**2 + 100 * b**2, gradient

    found = lbfgs(function, np.array([-1.2, 1.0]), tolerance=1e-9)
    np.testing.assert_allclose(found.parameters, [1.0, 1.0], atol=1e-8)
    assert found.value < 1e-16
    assert found.converged


def test_a_kink_does_not_raise_the_value():
    def function(x):
        return np.abs(x).sum(), np.sign(x)

    found = lbfgs(function, np.array([3.0, -2.0]))
    assert found.value < 1e-3


def test_rounding_ends_the_fit_where_no_step_lowers_the_value():
    calls = []

    def function(x):
        calls.append(x)
        value = np.float32(1 + (x**2).sum() / 2)
        return float(value), x + 1e-3 * np.sin(1e9 * x)

    found = lbfgs(function, np.array([3.0, -2.0]), tolerance=1e-9)
    assert found.value == 1.0
    assert len(calls) < 100


def test_a_line_without_curvature_is_followed_by_doubled_steps():
    # f(x) = g x: the first step is 1 / sum |g| long, and 19 doublings follow.
    # No step has curvature, so that the second search begins like the first.
    slope = np.array([3.0, -1.0])

    def function(x):
        return float(slope @ x), slope

    for count in (1, 2):
        found = lbfgs(function, np.zeros(2), max_iterations=count)
        expected = -count * slope * 2**19 / 4
        np.testing.assert_allclose(found.parameters, expected, rtol=1e-12)
        assert (found.iterations, found.converged) == (count, False)
        assert found.gradient == 3.0


def test_a_start_without_a_value_ends_the_fit_there():
    def function(x):
        return np.nan, np.full(2, np.nan)

    found = lbfgs(function, np.ones(2))
    np.testing.assert_array_equal(found.parameters, [1.0, 1.0])
    assert (found.iterations, found.converged) == (0, False)


def test_a_direction_uphill_is_not_searched():
    calls = []

    def function(x):
        calls.append(x)
        return float(x @ x), 2 * x

    found = lbfgs(function, np.ones(2), precondition=lambda g: -g)
    assert len(calls) == 1 and not found.converged
    np.testing.assert_array_equal(found.parameters, [1.0, 1.0])
