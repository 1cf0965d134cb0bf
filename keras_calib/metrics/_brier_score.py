"""The Brier score, and what it is made of."""

import keras
import numpy as np
from keras import ops

from keras_calib.metrics._base import CalibrationMetric
from keras_calib.metrics._binned import centres
from keras_calib.metrics._binned import check_bins
from keras_calib.ops.binning import bin_index
from keras_calib.ops.binning import bin_sums


@keras.saving.register_keras_serializable(package="keras_calib")
class BrierScore(CalibrationMetric):
    """Mean squared distance of probabilities and labels, streaming, exact.

    `1/n sum_i sum_k (p_ik - t_ik)^2`, from 0 to 2: the sum over the classes,
    not their mean. For one sigmoid unit it is the sum over both classes, twice
    the binary score.

    `decomposition()` splits it over bins of equal width of each class's
    probability, exactly, within-bin terms included.

    Args:
        num_bins: int, how many bins; `None` for the score alone, which spares
            the state of `12 num_bins num_classes` floats.
        num_classes: int; by default that of the first batch.
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.

    Raises:
        ValueError: if an argument is out of its range, or for bad input.

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

    def __init__(
        self,
        num_bins=15,
        num_classes=None,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name="brier_score",
        dtype=None,
    ):
        super().__init__(
            from_logits=from_logits,
            axis=axis,
            ignore_class=ignore_class,
            name=name,
            dtype=dtype,
        )
        if num_bins is not None:
            check_bins(num_bins, "width")
        self.num_bins = num_bins
        self.num_classes = num_classes
        self.classes = None
        self.add_sums("score", (2,))
        if num_classes is not None:
            self.create_for(num_classes)

    def create_for(self, num_classes):
        """Create the sums per class, once their number is known."""
        if self.num_bins is None:
            return
        if self.classes is None:
            self.classes = num_classes
            self.add_sums("sums", (6, num_classes * self.num_bins))
        elif num_classes != self.classes:
            raise ValueError(
                f"The metric counts {self.classes} classes. Received: "
                f"predictions with {num_classes}. Make one metric for each."
            )

    def build_like(self, other):
        if other.classes is not None:
            self.create_for(other.classes)

    def update_state(self, y_true, y_pred, sample_weight=None):
        rows = self.rows(y_true, y_pred, sample_weight)
        self.create_for(rows.num_classes)
        p = ops.where(rows.faulty[:, None], float("nan"), rows.probabilities)
        hits = rows.one_hot if rows.targets is None else rows.targets
        squares = ops.sum((p - hits) ** 2, axis=-1)
        weight = rows.weights
        self.add_to(
            "score", ops.stack([ops.sum(weight), ops.sum(squares * weight)])
        )
        if self.num_bins is None:
            return
        index = bin_index(p, self.num_bins)
        middle = ops.convert_to_tensor(centres(self.num_bins), p.dtype)
        distance = p - ops.take(middle, index)
        weight = ops.broadcast_to(weight[:, None], ops.shape(p))
        ones = ops.ones_like(p)
        columns = [ones, hits, hits**2, distance, distance**2, distance * hits]
        columns = ops.stack(
            [ops.reshape(weight * column, (-1,)) for column in columns]
        )
        offset = np.arange(self.classes, dtype="int32") * self.num_bins
        index = ops.reshape(index + ops.convert_to_tensor(offset), (-1,))
        self.add_to(
            "sums", bin_sums(columns, index, self.classes * self.num_bins)
        )

    def result(self):
        weight, score = ops.unstack(self.sums("score"))
        return ops.divide_no_nan(score, weight)

    def decomposition(self):
        """What the score is made of, summed over the classes.

        `score = calibration - resolution + uncertainty + within_bins`, where
        calibration is `sum_m n_m / n (C_m - A_m)^2`, small for calibrated
        models; resolution `sum_m n_m / n (A_m - A)^2`, large for models that
        tell cases apart; uncertainty the variance of the labels; and
        `within_bins` what the bins average away.

        Returns:
            dict of floats: `score`, `calibration`, `resolution`,
            `uncertainty`, `within_bins` and `refinement`, which is uncertainty
            minus resolution.

        Raises:
            ValueError: if `num_bins=None`.
        """
        if self.num_bins is None:
            raise ValueError(
                "The decomposition needs bins. Received: num_bins=None. Make "
                "the metric with a number of bins."
            )
        names = ("calibration", "resolution", "uncertainty", "within_bins")
        if self.classes is None:
            return dict.fromkeys(("score", *names, "refinement"), 0.0)
        sums = sum(
            np.asarray(ops.convert_to_numpy(part), "float64")
            for part in self._sums["sums"]
        ).reshape(6, self.classes, self.num_bins)
        parts = decompose(*sums, centres(self.num_bins))
        parts = dict(zip(names, map(float, parts), strict=True))
        refinement = parts["uncertainty"] - parts["resolution"]
        return {
            "score": parts["calibration"] + refinement + parts["within_bins"],
            **parts,
            "refinement": refinement,
        }

    def get_config(self):
        return {
            **super().get_config(),
            "num_bins": self.num_bins,
            "num_classes": self.num_classes,
        }


def decompose(weight, hits, hit_squares, distance, square, product, middle):
    """The four parts of the score, from sums per class and bin.

    Args:
        weight: `sum w`, `(num_classes, num_bins)`, as all but the last.
        hits: `sum w t`.
        hit_squares: `sum w t^2`.
        distance: `sum w d` with `d` the distance from the bin's middle.
        square: `sum w d^2`.
        product: `sum w d t`.
        middle: the middle of each bin, `(num_bins,)`.

    Returns:
        Calibration, resolution, uncertainty, within-bin part.
    """
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
