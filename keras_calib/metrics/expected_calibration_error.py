"""Expected calibration error: the mean gap of confidence and accuracy."""

import keras
from keras import ops

from keras_calib.metrics import histogram
from keras_calib.metrics.base import CalibrationMetric
from keras_calib.ops.binning import bin_index
from keras_calib.ops.binning import bin_sums
from keras_calib.ops.binning import calibration_error
from keras_calib.ops.binning import cell_index
from keras_calib.ops.confidence import top_label

NORMS = (1, 2, float("inf"))


@keras.saving.register_keras_serializable(package="keras_calib")
class ExpectedCalibrationError(CalibrationMetric):
    """Expected calibration error (ECE) of the predicted class, streaming.

    `(sum_m n_m / n |confidence_m - accuracy_m|^p)^(1/p)` over bins of
    confidence. Bins are right-closed; 0 is in the first, 1 in the last. The
    value does not depend on how the data is cut into batches.

    With `binning="mass"` the bins hold equal numbers of samples. Their edges
    are read from a histogram of 2046 fixed cells, so that the state stays
    small; with norm 1 the value differs from the exact one by at most
    `2 (num_bins - 1) max_cell n_cell / n`, in practice by less than 1e-3. A
    cell that holds one distinct value adds no error. The exact value comes
    from `CalibrationMonitor`.

    Predictions of shape `(..., 1)` are read as one sigmoid unit.

    Args:
        num_bins: int, how many bins.
        binning: `"width"` (equal width) or `"mass"` (equal mass, also called
            adaptive ECE).
        norm: the power `p`: 1 (ECE), 2 (RMS calibration error) or
            `float("inf")` (maximum calibration error).
        from_logits: whether predictions are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        name: name in the logs.
        dtype: as in Keras; sums are float32 at least.

    Raises:
        ValueError: if an argument is out of its range; where the values can be
            seen, if predictions are no probabilities although
            `from_logits=False`, or labels are out of range. In compiled code
            the result is NaN instead.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.ExpectedCalibrationError()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.45

    Reference:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
        eq. 3. Norm 2 and equal mass: Kumar et al., NeurIPS 2019.
    """

    def __init__(
        self,
        num_bins=15,
        binning="width",
        norm=1,
        from_logits=False,
        axis=-1,
        ignore_class=None,
        name="expected_calibration_error",
        dtype=None,
    ):
        super().__init__(from_logits, axis, ignore_class, name, dtype)
        _check(num_bins, binning, norm)
        self.num_bins = num_bins
        self.binning = binning
        self.norm = norm
        cells = num_bins if binning == "width" else histogram.num_cells()
        self.add_sums("sums", (2, cells))

    def update_state(self, y_true, y_pred, sample_weight=None):
        rows = self.rows(y_true, y_pred, sample_weight)
        confidence, correct = top_label(rows)
        residual = ops.where(
            rows.faulty, float("nan"), (confidence - correct) * rows.weights
        )
        if self.binning == "width":
            index, cells = bin_index(confidence, self.num_bins), self.num_bins
        else:
            edges = histogram.cell_edges()
            index, cells = cell_index(confidence, edges), len(edges) + 1
        columns = ops.stack([rows.weights, residual])
        self.add_to("sums", bin_sums(columns, index, cells))

    def result(self):
        weight, residual = ops.unstack(self.sums("sums"))
        if self.binning == "mass":
            weight, residual = histogram.equal_mass_sums(
                weight, residual, self.num_bins
            )
        return calibration_error(weight, residual, self.norm)

    def get_config(self):
        return {
            **super().get_config(),
            "num_bins": self.num_bins,
            "binning": self.binning,
            "norm": "inf" if self.norm == float("inf") else self.norm,
        }

    @classmethod
    def from_config(cls, config):
        # JSON has no infinity.
        norm = float("inf") if config["norm"] == "inf" else config["norm"]
        return cls(**{**config, "norm": norm})


def _check(num_bins, binning, norm):
    if num_bins < 1:
        raise ValueError(
            "`num_bins` is the number of confidence bins, at least 1. "
            f"Received: num_bins={num_bins}."
        )
    if binning not in ("width", "mass"):
        raise ValueError(
            '`binning` must be "width" (bins of equal width) or "mass" (bins '
            f"of equal numbers of samples). Received: binning={binning!r}."
        )
    if norm not in NORMS:
        raise ValueError(
            f'`norm` must be 1, 2 or `float("inf")`. Received: norm={norm!r}.'
        )
