"""A small ReLU network with its gradient, in NumPy, float64."""

import itertools

import numpy as np

from keras_calib.inputs.arguments import generator


class DenseNetwork:
    """Dense layers with ReLU between them, from one flat vector of weights.

    Args:
        sizes: ints, the width of input, hidden layers and output.
    """

    def __init__(self, sizes):
        self.shapes = list(itertools.pairwise(sizes))
        self.size = sum(a * b + b for a, b in self.shapes)
        # 1 where a weight belongs to a kernel, for penalties.
        self.is_kernel = np.concatenate(
            [np.r_[np.ones(a * b), np.zeros(b)] for a, b in self.shapes]
        )

    def start(self, seed, bias):
        """Glorot's uniform start; the last kernel is 0, the last bias given."""
        rng = generator(seed)
        parts = []
        for a, b in self.shapes:
            limit = np.sqrt(6 / (a + b))
            parts += [rng.uniform(-limit, limit, a * b), np.zeros(b)]
        parts[-2][:] = 0.0
        parts[-1][:] = bias
        return np.concatenate(parts)

    def unpack(self, weights):
        """Kernels and biases, as views."""
        layers, position = [], 0
        for a, b in self.shapes:
            kernel = weights[position : position + a * b].reshape(a, b)
            position += a * b
            layers.append((kernel, weights[position : position + b]))
            position += b
        return layers

    def forward(self, weights, x):
        """The output for rows `x`, and what `backward` needs."""
        layers = self.unpack(weights)
        inputs = []
        for number, (kernel, bias) in enumerate(layers):
            inputs.append(x)
            x = x @ kernel + bias
            if number < len(layers) - 1:
                x = np.maximum(x, 0.0)
        return x, inputs

    def backward(self, weights, inputs, gradient):
        """From the gradient of the output to that of the weights."""
        layers = self.unpack(weights)
        parts = []
        for number in reversed(range(len(layers))):
            parts += [gradient.sum(axis=0), inputs[number].T @ gradient]
            if number:
                gradient = gradient @ layers[number][0].T
                gradient = gradient * (inputs[number] > 0)
        return np.concatenate([part.reshape(-1) for part in reversed(parts)])


def mean_and_deviation(x, weights=None):
    """Of each column, to standardize by; a constant one is only shifted."""
    mean = np.average(x, axis=0, weights=weights)
    variance = np.average((x - mean) ** 2, axis=0, weights=weights)
    deviation = np.sqrt(variance)
    return mean, np.where(deviation > 1e-6, deviation, 1.0)


def softplus(x):
    """`log(1 + exp(x))`."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def inverse_softplus(y):
    """The `x` with `softplus(x) = y > 0`."""
    return y + np.log(-np.expm1(-y))
