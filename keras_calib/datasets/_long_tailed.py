"""Class frequencies that fall exponentially."""

import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib.inputs.arguments import generator
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arrays import as_array


def long_tailed(
    x: ArrayLike, y: ArrayLike, *, ratio: float = 50.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Thin classes exponentially, the first one least.

        n_i = n_0 * ratio^(-i / (num_classes - 1))

    where n_0 is the size of the smallest class of `y`, so that a balanced data
    set keeps all of its first class, and the last class is `ratio` times
    smaller.

    Args:
        x: samples, `(n, ...)`.
        y: class ids, `(n,)`.
        ratio: float of at least 1, the largest class to the smallest.
        seed: int, draws the samples that are kept.

    Returns:
        `(x, y)`: the kept samples, in the order of `x`; at least one per class.

    Raises:
        ValueError: for a ratio below 1, labels that are not class ids, or
            other numbers of samples and labels.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> y = np.repeat([0, 1, 2], 100)
        >>> x, y = kc.datasets.long_tailed(np.zeros((300, 2)), y, ratio=100)
        >>> np.bincount(y).tolist()
        [100, 10, 1]

    Reference:
        Jung et al., "Scaling of Class-wise Training Losses for Post-hoc
        Calibration", ICML 2023, equation 16.
    """
    x, y = as_array(x), as_array(y)
    if not (is_number(ratio) and ratio >= 1):
        raise ValueError(
            f"`ratio` must be at least 1. Received: ratio={ratio}."
        )
    if y.ndim != 1 or y.dtype.kind not in "iu" or x.shape[:1] != y.shape:
        raise ValueError(
            "Labels must be class ids, one per sample. Received: x of shape "
            f"{x.shape}, y of shape {y.shape} and dtype {y.dtype}."
        )
    classes, sizes = np.unique(y, return_counts=True)
    rng = generator(seed)
    kept = []
    for i, label in enumerate(classes):
        share = ratio ** (-i / max(len(classes) - 1, 1))
        number = max(round(sizes.min() * share), 1)
        rows = np.flatnonzero(y == label)
        kept.append(rng.permutation(rows)[:number])
    rows = np.sort(np.concatenate(kept)) if kept else np.zeros(0, int)
    return x[rows], y[rows]
