"""What the errors over bins of confidence share: settings, sums, result."""

import numpy as np
from keras import ops

from keras_calib.metrics import _histogram as histogram
from keras_calib.metrics._base import CalibrationMetric
from keras_calib.ops.binning import bin_index
from keras_calib.ops.binning import bin_sums
from keras_calib.ops.binning import calibration_error
from keras_calib.ops.binning import cell_index

INFINITY = float("inf")


class BinnedMetric(CalibrationMetric):
    """Base of the metrics that bin confidences, by width or by mass.

    Args:
        num_bins: int, how many bins.
        binning: `"width"`, or `"mass"` from a fine histogram.
        norm: the power of the gap, or `inf`; `None` where there is none.
        norms: the powers that the metric knows.
        columns: how many sums a bin has.
        **kwargs: of `CalibrationMetric`.
    """

    # Whether `per_event` and `events` are the plain ones, of arrays, too.
    arithmetic = True

    def __init__(
        self, num_bins, binning, norm=None, norms=(), columns=2, **kwargs
    ):
        super().__init__(**kwargs)
        check_bins(num_bins, binning)
        if norms and norm not in norms:
            shown = ", ".join(
                'float("inf")' if n == INFINITY else str(n) for n in norms
            )
            raise ValueError(
                f"`norm` must be one of {shown}. Received: norm={norm!r}."
            )
        self.num_bins = num_bins
        self.binning = binning
        self.norm = norm
        self.columns = columns
        self.create_sums()

    def create_sums(self):
        self.add_sums("sums", (self.columns, self.num_cells))

    @property
    def num_cells(self):
        """How many intervals are kept: the bins, or the fine cells."""
        if self.binning == "width":
            return self.num_bins
        return histogram.num_cells()

    def interval_index(self, confidence):
        """The bin, or the cell, of each confidence."""
        if self.binning == "width":
            return bin_index(confidence, self.num_bins)
        if isinstance(confidence, np.ndarray):
            edges = histogram.cell_edges().astype(confidence.dtype)
            return np.searchsorted(edges, confidence)
        return cell_index(confidence, histogram.cell_edges())

    def update_state(self, y_true, y_pred, sample_weight=None):
        host = None
        if self.arithmetic:
            host = self.host_events(y_true, y_pred, sample_weight)
        if host is not None:
            index = self.interval_index(host[0])
            columns = [
                np.bincount(index, column, self.num_cells)
                for column in self.per_event(*host)
            ]
            self.add_to(
                "sums", ops.convert_to_tensor(np.array(columns, "float32"))
            )
            return
        confidence, correct, weight = self.events(y_true, y_pred, sample_weight)
        columns = ops.stack(self.per_event(confidence, correct, weight))
        index = self.interval_index(confidence)
        self.add_to("sums", bin_sums(columns, index, self.num_cells))

    def per_event(self, confidence, correct, weight):
        """What each event adds to its bin, `columns` vectors of `(n,)`."""
        return [weight, weight * (confidence - correct)]

    def bins(self):
        """The sums per bin, `columns` vectors of `(num_bins,)`."""
        sums = self.sums("sums")
        if self.binning == "mass":
            index = histogram.mass_bin_of_cell(sums[0], self.num_bins)
            sums = bin_sums(sums, index, self.num_bins)
        return ops.unstack(sums)

    def result(self):
        weight, residual = self.bins()
        return calibration_error(weight, residual, self.norm)

    def get_config(self):
        config = {
            **super().get_config(),
            "num_bins": self.num_bins,
            "binning": self.binning,
        }
        if self.norm is not None:
            # JSON has no infinity.
            config["norm"] = "inf" if self.norm == INFINITY else self.norm
        return config

    @classmethod
    def from_config(cls, config):
        if config.get("norm") == "inf":
            config = {**config, "norm": INFINITY}
        return cls(**config)


def check_bins(num_bins, binning):
    """Raise `ValueError` unless both are in their range."""
    if num_bins < 1 or num_bins != int(num_bins):
        raise ValueError(
            "`num_bins` is the number of confidence bins, at least 1. "
            f"Received: num_bins={num_bins}."
        )
    if binning not in ("width", "mass"):
        raise ValueError(
            '`binning` must be "width" (bins of equal width) or "mass" (bins '
            f"of equal numbers of samples). Received: binning={binning!r}."
        )


def centres(num_bins):
    """The middle of each bin of equal width."""
    return (np.arange(num_bins) + 0.5) / num_bins
