"""A calibration layer with a small dense network on standardized scores."""

import numpy as np

from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_at_least
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arguments import require_widths
from keras_calib.inputs.tensors import matmul
from keras_calib.inputs.tensors import maximum
from keras_calib.layers._shrunk import ShrunkCalibration
from keras_calib.solvers.dense_network import mean_and_deviation

# Scores beyond this are clipped before they enter the network.
LIMIT = 100.0


class DenseStack(ShrunkCalibration):
    """Base of layers that contain a small ReLU network.

    A subclass has the settings `hidden`, the widths of the hidden layers, and
    `seed`.
    """

    def _add_network(self, network, bias):
        """Create the variables of a `DenseNetwork`; its output is `bias`."""
        size = network.shapes[0][0]
        self._add("mean", np.zeros(size), trainable=False)
        self._add("deviation", np.ones(size), trainable=False)
        start = network_weights(network, network.start(self.seed, bias))
        for name, value in start.items():
            self._add(name, value)

    def _network_output(self, scores, w, xp):
        """The network applied to scores, `(..., size)`."""
        x = (xp.clip(scores, -LIMIT, LIMIT) - w.mean) / w.deviation
        last = len(self.hidden)
        for number in range(last + 1):
            x = matmul(x, getattr(w, f"kernel_{number}"))
            x = x + getattr(w, f"bias_{number}")
            if number < last:
                x = maximum(x, 0.0, xp)
        return x


def check_training(hidden, penalty, iterations, seed):
    """Raise `ValueError` for what a small network cannot be trained with."""
    require_integer(0, iterations=iterations, seed=seed)
    require_at_least(0, penalty=penalty)
    require(
        penalty < float("inf"), "`penalty` must be finite.", penalty=penalty
    )
    require_widths(hidden=hidden)


def standardized(scores, weights):
    """What the network computes with, and the statistics for the layer."""
    x = np.clip(scores, -LIMIT, LIMIT)
    mean, deviation = mean_and_deviation(x, weights)
    return (x - mean) / deviation, {"mean": mean, "deviation": deviation}


def network_weights(network, theta):
    """The layer's weights from the flat vector of a `DenseNetwork`."""
    return {
        f"{name}_{number}": value
        for number, pair in enumerate(network.unpack(theta))
        for name, value in zip(("kernel", "bias"), pair, strict=True)
    }
