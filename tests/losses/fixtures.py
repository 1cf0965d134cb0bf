"""Two batches small enough to compute by hand, with float64 oracle values."""

import numpy as np

# The second sample is predicted wrong.
A = np.array([[2.0, 0.5, -1.0], [0.3, 1.2, -0.7], [-1.5, 0.4, 3.1]])
LABELS_A = np.array([0, 0, 2])

# Large logits: margins of 6 and 10 are active.
B = np.array(
    [
        [9.0, -2.0, 0.5, -6.0],
        [-1.5, 5.0, 3.0, -8.5],
        [12.0, 11.0, -3.0, -4.0],
        [0.2, 0.1, -0.3, 0.4],
    ]
)
LABELS_B = np.array([0, 2, 0, 3])

SATURATED = np.array([[1000.0, 0.0, -1000.0], [0.0, 0.0, 0.0]])
LABELS_SATURATED = np.array([2, 1])

TWO_CLASSES = np.array([[1.0, -0.5], [0.2, 0.9]])
LABELS_TWO_CLASSES = np.array([0, 0])
