"""Each sample's loss as a function of its own temperature, from a table."""

import numpy as np

from keras_calib.inputs.arrays import LOWEST
from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import row_blocks

# Nodes of the table, in `u = -log T`, on both sides of a middle.
NODES = 33
REACH = np.log(16.0)


class LossCurves:
    """Losses and slopes at nodes, and a cubic Hermite spline through them.

    A fit that gives every sample a temperature needs hundreds of passes over
    the logits. These curves need one pass for each node. Between nodes
    the error is of the order of their distance to the fourth power, below
    1e-5; beyond the outer nodes, curves continue as straight lines.

    Args:
        logits: `(n, num_classes)`.
        labels: class ids, `(n,)`.
        objective: `Objective` with one loss per sample.
        middle: float, the `u` in the middle of the nodes.
    """

    def __init__(self, logits, labels, objective, middle):
        self.nodes = middle + np.linspace(-REACH, REACH, NODES)
        self.width = self.nodes[1] - self.nodes[0]
        self.values, self.slopes = np.empty((2, len(labels), NODES))
        # As many nodes at once as fit in the cache: each call costs time.
        count = max(1, IN_CACHE // logits.size)
        blocks = [range(i, NODES)[:count] for i in range(0, NODES, count)]
        for rows in row_blocks(*logits.shape):
            z = np.asarray(logits[rows], "float64")
            z = np.maximum(z - z.max(axis=1, keepdims=True), LOWEST)
            for nodes in blocks:
                beta = np.exp(self.nodes[nodes])[:, None, None]
                scores = (beta * z).reshape(-1, z.shape[1])
                repeated = np.tile(labels[rows], len(nodes))
                shape = len(nodes), len(z)
                losses, slopes = objective.losses_and_gradients(
                    scores, repeated
                )
                self.values[rows, nodes] = losses.reshape(shape).T
                slope = slopes.reshape(*shape, -1)
                slope = np.einsum("jik,ik->ij", slope, z)
                self.slopes[rows, nodes] = slope * beta[:, 0, 0]

    def at(self, u):
        """Losses and their slopes at one `u` for every sample."""
        inside = np.clip(u, self.nodes[0], self.nodes[-1])
        position = (inside - self.nodes[0]) / self.width
        j = np.minimum(position.astype(int), NODES - 2)
        t = position - j
        rows = np.arange(len(u))
        y0, y1 = self.values[rows, j], self.values[rows, j + 1]
        m0, m1 = self.width * self.slopes[rows, [j, j + 1]]
        rise = y1 - y0
        quadratic, cubic = 3 * rise - 2 * m0 - m1, m0 + m1 - 2 * rise
        value = y0 + t * (m0 + t * (quadratic + t * cubic))
        slope = (m0 + t * (2 * quadratic + 3 * t * cubic)) / self.width
        return value + slope * (u - inside), slope
