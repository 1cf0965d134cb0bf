"""SKCE: squared kernel calibration error of whole predictions, and its test."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from keras_calib._progress import ProgressBar
from keras_calib._typing import ArrayLike
from keras_calib.inputs.arguments import generator
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.arguments import require_positive
from keras_calib.inputs.label_rules import refuse_soft_labels
from keras_calib.inputs.predictions import read_predictions

ESTIMATORS = ("unbiased", "biased", "linear")
# The width of the kernel is a median distance of at most so many rows.
WIDTH_ROWS = 2000
# Distances from a matrix product are exact to about 1e-8: below, they are 0.
LEAST_SQUARE = 1e-14
# Up to so many classes, drawn labels are multiplied as one-hot rows.
FEW_CLASSES = 16
# How many numbers the one-hot rows of a block of draws have.
BLOCK = 1 << 22


@dataclasses.dataclass(frozen=True)
class KernelError:
    """Result of `squared_kernel_calibration_error`.

    Attributes:
        value: the squared error.
        p_value: probability of a value at least as large under perfect
            calibration.
        upper: 95 % quantile of the value under perfect calibration; NaN for
            the linear estimator.
        bandwidth: the width of the kernel.
        num_rows: number of rows that were used.
        num_rows_given: number of rows that count. If it is larger, the rows
            that were used are a random subset.
        num_draws: number of sets of labels drawn; 0 for the linear estimator.
    """

    value: float
    p_value: float
    upper: float
    bandwidth: float
    num_rows: int
    num_rows_given: int
    num_draws: int


def squared_kernel_calibration_error(
    labels: ArrayLike,
    probabilities: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    estimator: str = "unbiased",
    kernel: str = "laplace",
    bandwidth: float | None = None,
    from_logits: bool = False,
    axis: int = -1,
    ignore_class: int | None = None,
    num_draws: int = 999,
    max_rows: int = 5000,
    seed: int = 0,
    verbose: int | str = "auto",
) -> KernelError:
    """Squared kernel calibration error (SKCE), and whether it is chance.

    It compares all probabilities with the labels, not only those of the
    predicted class, and has no bins. With `r_i = onehot(y_i) - p_i`,

        h_ij = k(p_i, p_j) <r_i, r_j>
        unbiased: 1 / (N (N - 1)) sum_(i != j) h_ij, may be negative
        biased:   1 / N^2 sum_ij h_ij
        linear:   mean of h_ij over N // 2 random pairs

        laplace:  k = exp(-|p - p'| / nu)
        gauss:    k = exp(-|p - p'|^2 / (2 nu^2))

    The value has no natural unit: the p-value tells whether it is large. For
    the first two, sets of labels are drawn from the predictions, and the
    p-value is exact for any number of rows. That of the linear estimator is
    from a normal distribution, and misses what the others find. Rows are
    assumed to be independent.

    `kernel_calibration_error` of `calibration_errors` is the MMCE, which is of
    the confidence alone: there the SKCE of `(1 - c, c)` is twice its square.

    Args:
        labels: class ids, `(...)`, or one-hot rows, `(..., num_classes)`.
        probabilities: `(..., num_classes)`; `(..., 1)` or `(n,)` for one
            sigmoid unit. NumPy arrays or tensors.
        sample_weight: `None`, or weights that are all equal, but for those of
            0, whose rows are left out: sums over pairs have no theory for
            others.
        estimator: `"unbiased"`, `"biased"` or `"linear"`.
        kernel: `"laplace"` or `"gauss"`.
        bandwidth: nu, or `None` for the median distance of two rows, of 2,000
            rows at most. It does not depend on the labels.
        from_logits: whether `probabilities` are logits.
        axis: the class axis.
        ignore_class: rows with this label are ignored.
        num_draws: int, number of sets of labels. The smallest p-value is
            `1 / (num_draws + 1)`.
        max_rows: int; of more rows a random subset is used, but for the linear
            estimator. Memory and time grow with its square: 5,000 rows of 10
            classes take 300 MB and 10 to 20 seconds.
        seed: int; the same seed draws the same labels, subset and pairs.
        verbose: `"auto"` for a progress bar after a few seconds, 1 for a bar
            at once, 0 for none.

    Returns:
        An object with attributes `value`, `p_value`, `upper`, `bandwidth`,
        `num_rows`, `num_rows_given` and `num_draws`.

    Raises:
        ValueError: if the input is invalid, if weights differ, or if there are
            fewer than two rows; without `bandwidth`, also if all predictions
            are equal.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> p = rng.dirichlet([1, 1, 1], size=300)
        >>> labels = (p.cumsum(1) > rng.random((300, 1))).argmax(1)
        >>> found = kc.metrics.squared_kernel_calibration_error(labels, p)
        >>> bool(found.p_value > 0.05)  # calibrated
        True
        >>> sharp = p**3 / (p**3).sum(axis=1, keepdims=True)
        >>> found = kc.metrics.squared_kernel_calibration_error(labels, sharp)
        >>> found.p_value
        0.001

    Reference:
        Widmann, Lindsten and Zachariah, "Calibration tests in multi-class
        classification: A unifying framework", NeurIPS 2019, arXiv:1910.11385,
        Table 1. For labels drawn from the predictions: Vaicenavicius et al.,
        "Evaluating model calibration in classification", AISTATS 2019,
        Section 5.
    """
    require_one_of(ESTIMATORS, estimator=estimator)
    require_one_of(("laplace", "gauss"), kernel=kernel)
    require_integer(1, num_draws=num_draws)
    require_integer(2, max_rows=max_rows)
    if bandwidth is not None:
        require_positive(bandwidth=bandwidth)
    data = read_predictions(
        labels, probabilities, sample_weight, from_logits, axis, ignore_class
    )
    _check(data)
    rng = generator(seed)
    given = len(data.labels)
    used = np.arange(given)
    if given > max_rows and estimator != "linear":
        used = np.sort(rng.choice(given, max_rows, replace=False))
    p, y = data.probabilities[used].astype("float64"), data.labels[used]
    width = median_distance(p) if bandwidth is None else float(bandwidth)
    counts = {"num_rows": len(used), "num_rows_given": given}
    if estimator == "linear":
        terms = linear_terms(p, y, kernel, width, rng.permutation(given))
        value, p_value = float(terms.mean()), _normal_p_value(terms)
        return KernelError(
            value, p_value, math.nan, width, **counts, num_draws=0
        )
    pairs = SumOverPairs(p, kernel, width, biased=estimator == "biased")
    observed = float(pairs.of_labels(y[None])[0])
    parts = pairs.block_sizes(num_draws)
    bar = ProgressBar(len(parts), verbose, unit_name="draw of the kernel error")
    drawn = []
    for size in parts:
        drawn.append(pairs.of_uniforms(rng.random((size, len(used)))))
        bar.step()
    bar.finish()
    values = np.concatenate(drawn)
    # Equal values of discrete data may differ by rounding.
    reached = np.count_nonzero(values >= observed - 1e-12)
    return KernelError(
        observed,
        float((1 + reached) / (num_draws + 1)),
        float(np.quantile(values, 0.95)),
        width,
        **counts,
        num_draws=num_draws,
    )


class SumOverPairs:
    """SKCE of many sets of labels, for the same predictions.

    With `K` the matrix of the kernel and `r = onehot(y) - p`,

        sum_ij K_ij <r_i, r_j> = sum_(y_i = y_j) K_ij - 2 sum_i (K p)_(i, y_i)
                                 + sum_ij K_ij <p_i, p_j>

    where only the first two sums depend on the labels.

    Args:
        p: probabilities, float64, `(n, num_classes)`.
        kernel: `"laplace"` or `"gauss"`.
        width: float, width of the kernel.
        biased: whether pairs of a row with itself count.
    """

    def __init__(self, p, kernel, width, biased=False):
        self.p = p
        self.below = np.cumsum(p, axis=1)
        self.matrix = _kernel(distances(p), kernel, width)
        if not biased:
            np.fill_diagonal(self.matrix, 0.0)
        n = len(p)
        self.pairs = n * n if biased else n * (n - 1)
        self.smooth = self.matrix @ p
        self.constant = float((self.smooth * p).sum())

    def block_sizes(self, num_draws: int) -> list[int]:
        """Numbers of draws of each block, so that it fits in memory."""
        n, num_classes = self.p.shape
        size = max(1, BLOCK // (n * min(num_classes, FEW_CLASSES)))
        return [
            min(size, num_draws - start) for start in range(0, num_draws, size)
        ]

    def of_uniforms(self, uniform: np.ndarray) -> np.ndarray:
        """The SKCE of labels drawn by uniform numbers, `(k, n)`."""
        last = self.p.shape[1] - 1
        drawn = np.zeros(uniform.shape, int)
        # The last sum may be rounded to below 1.
        for k in range(last):
            drawn += uniform > self.below[:, k]
        return self.of_labels(drawn)

    def of_labels(self, labels: np.ndarray) -> np.ndarray:
        """The SKCE of each row of labels, `(k, n)`."""
        rows = np.arange(len(self.p))
        cross = self.smooth[rows, labels].sum(axis=1)
        same = np.array([*self._same_class(labels)])
        return (same - 2 * cross + self.constant) / self.pairs

    def _same_class(self, labels) -> Iterator[float]:
        """Sum of the kernel over pairs of equal labels, for each row."""
        num_classes = self.p.shape[1]
        if num_classes <= FEW_CLASSES:
            ids = np.arange(num_classes)
            rows = (labels.T[:, :, None] == ids).astype("float64")
            rows = rows.reshape(len(labels[0]), -1)
            sums = np.einsum("ij,ij->j", self.matrix @ rows, rows)
            yield from sums.reshape(-1, num_classes).sum(axis=1)
            return
        for y in labels:
            order = np.argsort(y, kind="stable")
            cuts = np.flatnonzero(np.diff(y[order])) + 1
            yield sum(
                float(self.matrix[np.ix_(part, part)].sum())
                for part in np.split(order, cuts)
            )


def linear_terms(
    p: np.ndarray, y: np.ndarray, kernel: str, width: float, order: np.ndarray
) -> np.ndarray:
    """`h` of the pairs of neighbors in an order, `(n // 2,)`.

    Args:
        p: probabilities, float64, `(n, num_classes)`.
        y: class ids, `(n,)`.
        kernel: `"laplace"` or `"gauss"`.
        width: float, width of the kernel.
        order: a permutation, `(n,)`.
    """
    half = len(order) // 2
    i, j = order[0 : 2 * half : 2], order[1 : 2 * half : 2]
    distance = np.sqrt(((p[i] - p[j]) ** 2).sum(axis=1))
    product = (p[i] * p[j]).sum(axis=1) + (y[i] == y[j])
    rows = np.arange(len(p))
    product -= p[rows[i], y[j]] + p[rows[j], y[i]]
    return _kernel(distance, kernel, width) * product


def median_distance(p: np.ndarray) -> float:
    """Median distance of two rows; their mean distance if it is 0.

    Args:
        p: `(n, num_classes)`; of more than 2,000 rows as many, evenly spaced.

    Raises:
        ValueError: if all rows are equal.
    """
    places = np.linspace(0, len(p) - 1, min(len(p), WIDTH_ROWS)).astype(int)
    found = distances(p[places])[np.triu_indices(len(places), 1)]
    width = float(np.median(found)) or float(found.mean())
    if not width:
        raise ValueError(
            "All predictions are equal, so that no width of the kernel follows "
            f"from them. Received: {len(p)} rows like {p[0]}. Pass "
            "`bandwidth=`."
        )
    return width


def distances(p: np.ndarray) -> np.ndarray:
    """Euclidean distances of rows, `(n, n)`, exactly 0 where they are ties."""
    found = p @ p.T
    square = found.diagonal().copy()
    found *= -2
    found += square
    found += square[:, None]
    found[found < LEAST_SQUARE] = 0.0
    np.fill_diagonal(found, 0.0)
    return np.sqrt(found, out=found)


def _kernel(distance, kind, width):
    """The kernel, in the memory of the distances."""
    distance /= -width
    if kind == "gauss":
        distance *= -distance / 2
    return np.exp(distance, out=distance)


def _normal_p_value(terms):
    """One-sided: the mean of the terms is normal if there are many."""
    if len(terms) < 2 or not (spread := terms.std(ddof=1)):
        return math.nan
    z = math.sqrt(len(terms)) * terms.mean() / spread
    return math.erfc(z / math.sqrt(2)) / 2


def _check(data):
    if data.weights is not None:
        raise ValueError(
            "The kernel calibration error takes no weights: pairs of rows with "
            "different weights have no test. Received: weights that differ. "
            "Leave rows out by a weight of 0, or draw rows by their weights."
        )
    refuse_soft_labels(data, "Labels must be of one class.")
    if len(data.labels) < 2:
        raise ValueError(
            "The kernel calibration error is over pairs of rows, and needs two "
            f"at least. Received: {len(data.labels)} that count."
        )
