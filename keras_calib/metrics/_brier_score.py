"""Brier score and its decomposition."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.rows import Rows
from keras_calib.metrics._binned import check_bins
from keras_calib.metrics._mean_metrics import MeanOfRows
from keras_calib.ops.binning import bin_index
from keras_calib.ops.binning import bin_sums_by_class
from keras_calib.ops.binning import centers
from keras_calib.ops.binning import interior_edges


@keras.saving.register_keras_serializable(package="keras_calib")
class BrierScore(MeanOfRows):
    """Mean squared distance of probabilities and labels, streaming, exact.

        1/n sum_i sum_k (p_ik - t_ik)^2

    The score is in [0, 2], because the classes are summed and not averaged. For
    one sigmoid unit both classes are summed: twice the binary score.

    `decomposition()` splits the score exactly, by bins of equal width of the
    probability of each class.

    Args:
        num_bins: int, number of bins; `None` for the score alone, without the
            `12 num_bins num_classes` floats of the decomposition.
        num_classes: int; defaults to that of the first batch.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of range or the input is invalid.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.BrierScore()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.65
        >>> parts = metric.decomposition()
        >>> round(parts["calibration"] - parts["resolution"]
        ...       + parts["uncertainty"] + parts["within_bins"], 3)
        0.65

    Reference:
        Brier, "Verification of forecasts expressed in terms of probability",
        1950; Stephenson et al., "Two extra components in the Brier score
        decomposition", 2008, eq. 8.
    """

    settings = ("num_bins", "num_classes")

    def __init__(
        self,
        *,
        num_bins: int | None = 15,
        num_classes: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if num_bins is not None:
            check_bins(num_bins)
        self.num_bins = num_bins
        self.num_classes = num_classes
        if num_classes is not None:
            require_integer(1, num_classes=num_classes)
            self.create_for(num_classes)

    def create_sums(self) -> None:
        if self.num_bins is not None:
            self.add_sums("sums", (6, self.classes, self.num_bins))

    def update_rows(self, rows: Rows) -> None:
        self.create_for(rows.num_classes)
        p = ops.where(rows.faulty[:, None], float("nan"), rows.probabilities)
        hits = rows.one_hot if rows.targets is None else rows.targets
        self.add_mean(rows, ops.sum((p - hits) ** 2, axis=-1))
        if self.num_bins is None:
            return
        index = bin_index(p, self.num_bins)
        middle = centers(interior_edges(self.num_bins))
        distance = p - ops.take(ops.convert_to_tensor(middle, p.dtype), index)
        ones = ops.ones_like(p)
        columns = [ones, hits, hits**2, distance, distance**2, distance * hits]
        sums = bin_sums_by_class(
            ops.stack([rows.weights[:, None] * column for column in columns]),
            index,
            self.num_bins,
            np.arange(self.classes),
        )
        self.add_to("sums", sums)

    def decomposition(self) -> dict[str, float]:
        """The terms of the score, each a sum over the classes.

            score = calibration - resolution + uncertainty + within_bins
            calibration = sum_m n_m / n (C_m - A_m)^2
            resolution  = sum_m n_m / n (A_m - A)^2

        Resolution is large for a model that separates the samples of the
        class from the others. Uncertainty is the variance of the labels, `A`
        their mean, and `within_bins` is due to the differences of
        probabilities and of labels inside the bins.

        Returns:
            dict of floats: `score`, `calibration`, `resolution`,
            `uncertainty`, `within_bins` and `refinement`, which is uncertainty
            minus resolution.

        Raises:
            ValueError: if `num_bins=None`.
        """
        if self.num_bins is None:
            raise ValueError(
                "The decomposition needs bins. Received: num_bins=None. Create "
                "the metric with a number of bins."
            )
        names = ("calibration", "resolution", "uncertainty", "within_bins")
        if self.classes is None:
            return dict.fromkeys(("score", *names, "refinement"), 0.0)
        total, rest = (
            np.asarray(ops.convert_to_numpy(part), "float64")
            for part in self._sums["sums"]
        )
        middle = centers(interior_edges(self.num_bins))
        parts = dict(
            zip(names, map(float, decompose(total + rest, middle)), strict=True)
        )
        refinement = parts["uncertainty"] - parts["resolution"]
        return {
            "score": parts["calibration"] + refinement + parts["within_bins"],
            **parts,
            "refinement": refinement,
        }


def decompose(sums, middle):
    """The four terms of the score, from sums per class and bin.

    With the means C_m and A_m of each probability's bin, the within-bin part
    is `1/n sum_i (p_i - C_m)^2 - 2 (p_i - C_m) (t_i - A_m)`.

    Args:
        sums: of `w`, `w t`, `w t^2`, `w d`, `w d^2` and `w d t`, where `w` is
            the weight of a sample, `t` its label and `d` the distance of its
            probability from the middle of the bin, `(6, num_classes,
            num_bins)`.
        middle: the middle of each bin, `(num_bins,)`.

    Returns:
        Calibration, resolution, uncertainty, within-bin part.
    """
    weight, hits, hit_squares, distance, square, product = sums
    total = max(weight[0].sum(), np.finfo("float64").tiny)
    safe = np.where(weight > 0, weight, 1.0)
    accuracy = hits / safe
    gap = np.where(weight > 0, middle + distance / safe - accuracy, 0.0)
    mean = hits.sum(axis=-1, keepdims=True) / total
    calibration = (weight * gap**2).sum() / total
    resolution = (weight * (accuracy - mean) ** 2).sum() / total
    uncertainty = hit_squares.sum() / total - (mean**2).sum()
    spread = (square - distance**2 / safe).sum() / total
    common = (product - distance * hits / safe).sum() / total
    return calibration, resolution, uncertainty, spread - 2 * common
