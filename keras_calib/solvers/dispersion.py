"""How much larger residuals are than chance makes them."""

import numpy as np

from keras_calib.solvers.blocks import TINY64
from keras_calib.solvers.blocks import sum_blocks


def dispersion_of(q, labels, weights, x, slices):
    """Squared residuals over their variance, at least 1.

        phi = sum_i w_i^2 sum_k ((q_ik - y_ik) x_ik)^2
            / sum_i w_i sum_k q_ik (1 - q_ik) x_ik^2

    Unequal weights make it larger: they hold less information.

    Args:
        q: probabilities, `(n, num_classes)`.
        labels: class ids, `(n,)`.
        weights: float64, `(n,)`, with the number of samples as their sum.
        x: like `q`; `None` leaves it out, where only biases are free.
        slices: of the rows, to be taken one after the other.

    Returns:
        float.
    """

    def part(rows):
        of_q, w = q[rows], weights[rows]
        variance, squares = of_q * (1 - of_q), of_q * of_q
        own = np.arange(len(of_q)), labels[rows]
        squares[own] = (1 - of_q[own]) ** 2
        if x is not None:
            # In this order: 0 times the square of a huge number is not 0.
            variance = variance * x[rows] * x[rows]
            squares = squares * x[rows] * x[rows]
        return np.array([w @ variance.sum(axis=1), w**2 @ squares.sum(axis=1)])

    expected, observed = sum_blocks(part, slices)
    return max(1.0, float(observed) / max(float(expected), TINY64))
