import numpy as np

from keras_calib.inputs.arrays import sigmoid
from keras_calib.solvers.quasi_newton import minimize
from keras_calib.solvers.small_network import SmallNetwork
from keras_calib.solvers.small_network import inverse_softplus
from keras_calib.solvers.small_network import softplus


def test_rosenbrock():
    def function(x):
        a, b = 1 - x[0], x[1] - x[0] ** 2
        gradient = np.array([-2 * a - 400 * x[0] * b, 200 * b])
        return a**2 + 100 * b**2, gradient

    x, value = minimize(function, np.array([-1.2, 1.0]), tolerance=1e-9)
    np.testing.assert_allclose(x, [1.0, 1.0], atol=1e-8)
    assert value < 1e-16


def test_a_kink_does_not_raise_the_value():
    def function(x):
        return np.abs(x).sum(), np.sign(x)

    _, value = minimize(function, np.array([3.0, -2.0]))
    assert value < 1e-3


def test_network_gradient():
    network = SmallNetwork((3, 4, 4, 2))
    weights = network.start(0, 0.5)
    rng = np.random.default_rng(0)
    weights += rng.normal(size=network.size) / 3
    x, target = rng.normal(size=(10, 3)), rng.normal(size=(10, 2))

    def value(weights):
        return ((network.forward(weights, x)[0] - target) ** 2).sum() / 2

    out, inputs = network.forward(weights, x)
    gradient = network.backward(weights, inputs, out - target)
    numeric = [
        (value(weights + unit) - value(weights - unit)) / 2e-6
        for unit in np.eye(network.size) * 1e-6
    ]
    np.testing.assert_allclose(gradient, numeric, atol=1e-7)


def test_softplus():
    x = np.array([-50.0, -1.0, 0.0, 2.0, 800.0])
    np.testing.assert_allclose(softplus(x), np.logaddexp(0, x), rtol=1e-12)
    np.testing.assert_allclose(inverse_softplus(softplus(x[1:4])), x[1:4])
    step = 1e-6
    np.testing.assert_allclose(
        sigmoid(x), (softplus(x + step) - softplus(x - step)) / (2 * step),
        atol=1e-8,
    )  # fmt: skip
