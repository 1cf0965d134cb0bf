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
