"""Each sample's loss as a function of its own temperature, from a table."""

import numpy as np

from keras_calib.inputs.arrays import LOWEST

# Nodes of the table, in `u = -log T`, on both sides of a middle.
NODES = 33
REACH = np.log(16.0)
# Elements of one block of scores.
BLOCK = 1 << 18


class LossCurves:
    """Losses and slopes at nodes, and a cubic through them.

    A fit that gives every sample a temperature needs hundreds of passes over
    the logits; these curves need one pass for each node, once. Between nodes
    the error is of the order of their distance to the fourth power, below
    1e-5; beyond them, curves go on as straight lines.

    Args:
        logits: `(n, num_classes)`.
        labels: class ids, `(n,)`.
        objective: an `Objective` with one loss per sample.
        middle: float, the `u` in the middle of the nodes.
    """

    def __init__(self, logits, labels, objective, middle):
        self.nodes = middle + np.linspace(-REACH, REACH, NODES)
        self.width = self.nodes[1] - self.nodes[0]
        self.values = np.empty((len(labels), NODES))
        self.slopes = np.empty((len(labels), NODES))
        rows = max(1, BLOCK // logits.shape[1])
        for start in range(0, len(labels), rows):
            part = slice(start, start + rows)
            z = np.asarray(logits[part], "float64")
            z = np.maximum(z - z.max(axis=1, keepdims=True), LOWEST)
            for j, beta in enumerate(np.exp(self.nodes)):
                scores = beta * z
                self.values[part, j] = objective.losses(scores, labels[part])
                _, slope = objective.value_and_gradient(scores, labels[part])
                slope = np.einsum("ij,ij->i", slope, z)
                self.slopes[part, j] = len(z) * beta * slope

    def at(self, u):
        """Losses and their slopes at one `u` for every sample."""
        inside = np.clip(u, self.nodes[0], self.nodes[-1])
        position = (inside - self.nodes[0]) / self.width
        j = np.minimum(position.astype(int), NODES - 2)
        t = position - j
        rows = np.arange(len(u))
        y0, y1 = self.values[rows, j], self.values[rows, j + 1]
        m0, m1 = self.slopes[rows, j], self.slopes[rows, j + 1]
        m0, m1 = m0 * self.width, m1 * self.width
        rise = y1 - y0
        curve, bend = 3 * rise - 2 * m0 - m1, m0 + m1 - 2 * rise
        value = y0 + t * (m0 + t * (curve + t * bend))
        slope = (m0 + t * (2 * curve + 3 * t * bend)) / self.width
        return value + slope * (u - inside), slope
