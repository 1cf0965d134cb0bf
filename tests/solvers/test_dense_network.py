import numpy as np

from keras_calib.inputs.arrays import sigmoid
from keras_calib.solvers.dense_network import DenseNetwork
from keras_calib.solvers.dense_network import inverse_softplus
from keras_calib.solvers.dense_network import softplus


def test_network_gradient():
    network = DenseNetwork((3, 4, 4, 2))
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
