"""Base class of the errors that bin confidences."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import is_one_of
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.predictions import read_predictions
from keras_calib.inputs.rows import Rows
from keras_calib.keras_private import carried_logits
from keras_calib.keras_private import keras_mask
from keras_calib.metrics import _histogram as histogram
from keras_calib.metrics._base import CalibrationMetric
from keras_calib.ops.bin_errors import INFINITY
from keras_calib.ops.bin_errors import Bins
from keras_calib.ops.binning import bin_sums
from keras_calib.ops.binning import interior_edges
from keras_calib.ops.binning import interval_index


class BinnedMetric(CalibrationMetric):
    """Base class of the metrics that bin confidences, by width or by mass.

    Bins of equal width have sums of their own. Bins of equal mass are merged
    from the cells of a fine histogram when the result is read, because their
    edges are not known before. A subclass computes its `result` from `bins`.

    Args:
        num_bins: int, number of bins.
        binning: `"width"` or `"mass"`.
        norm: 1, 2 or `float("inf")`, the power of the gap.
        **kwargs: see `CalibrationMetric`.
    """

    # The allowed values of `norm`.
    norms: tuple[float, ...] = (1, 2, INFINITY)
    # How many sums each bin has; see `per_event`.
    num_columns = 2
    # Whether NumPy may update the sums: `events` are those of the predicted
    # class, and `per_event` works for arrays.
    numpy_events = True
    # Size of both grids of the histogram; see `cell_edges`.
    cells = histogram.CELLS

    def __init__(
        self,
        *,
        num_bins: int = 15,
        binning: str = "width",
        norm: float = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_bins(num_bins, binning)
        if isinstance(norm, str) and norm == "inf":
            norm = INFINITY
        if not (is_number(norm) and norm in self.norms):
            shown = ", ".join(
                'float("inf")' if n == INFINITY else str(n) for n in self.norms
            )
            raise ValueError(
                f"`norm` must be one of {shown}. Received: norm={norm!r}."
            )
        self.num_bins = num_bins
        self.binning = binning
        self.norm = norm
        self.create_sums()

    def create_sums(self) -> None:
        self.add_sums("sums", (self.num_columns, self.num_cells))

    @property
    def edges(self) -> np.ndarray:
        """Interior edges of the bins, or of the cells of the histogram."""
        if self.binning == "width":
            return interior_edges(self.num_bins)
        return histogram.cell_edges(self.cells)

    @property
    def num_cells(self) -> int:
        """Number of bins, or of cells of the histogram."""
        return len(self.edges) + 1

    def update_state(
        self,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        events = None
        if self.numpy_events:
            events = self.host_events(y_true, y_pred, sample_weight)
        if events is None:
            return super().update_state(y_true, y_pred, sample_weight)
        index = interval_index(events[0], self.edges)
        sums = [
            np.bincount(index, column, self.num_cells)
            for column in self.per_event(*events)
        ]
        self.add_to("sums", ops.convert_to_tensor(np.array(sums, "float32")))
        self.add_totals(events[2])

    def host_events(
        self,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        sample_weight: ArrayLike | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """`events` as NumPy arrays if this is cheap, else `None`.

        For invalid input it is `None` too, and `rows` raises the error.
        """
        softmax_as_logits = (
            self.from_logits and carried_logits(y_pred) is not None
        )
        if softmax_as_logits or not on_host(y_pred):
            return None
        try:
            found = read_predictions(
                y_true,
                y_pred,
                sample_weight,
                self.from_logits,
                self.axis,
                self.ignore_class,
                keras_mask(y_pred),
                # Weights are relative to those of all batches.
                relative=False,
            )
        except ValueError:
            return None
        self._values_seen = True
        weights = found.weights
        if weights is None:
            weights = np.ones(len(found.labels))
        return (*found.top_label, weights)

    def update_rows(self, rows: Rows) -> None:
        events = self.events(rows)
        index = interval_index(events[0], self.edges)
        columns = ops.stack(self.per_event(*events))
        self.add_to("sums", bin_sums(columns, index, self.num_cells))
        self.add_totals(events[2])

    def add_totals(self, weights: Tensor) -> None:
        """Add to sums over all events, where an error has such."""
        return None

    def per_event(
        self, confidence: Tensor, correct: Tensor, weights: Tensor
    ) -> list[Tensor]:
        """Terms of each event in the first `num_columns` sums of `Bins`."""
        columns = [weights, weights * (confidence - correct)]
        if self.num_columns > 2:
            columns.append(weights * correct)
        return columns

    def bins(self, sums=None):
        """The sums as `Bins`; cells are merged to bins of equal mass.

        Not for KS and sweep, which merge cells in another way, or for the
        label-binned error, which has other sums.
        """
        sums = self.sums("sums") if sums is None else sums
        if self.binning == "mass":
            sums = histogram.merge_cells(sums, self.num_bins)
        return Bins(*ops.unstack(sums))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        if config.get("norm") == INFINITY:
            config["norm"] = "inf"  # JSON has no infinity.
        return config


def on_host(y_pred):
    """Whether NumPy can read the predictions without a copy.

    Eager torch runs one small operation after another, which takes several
    times as long on a CPU as the same sums in NumPy. The other backends compile
    these operations.
    """
    if keras.backend.backend() != "torch":
        return False
    import torch

    return (
        isinstance(y_pred, torch.Tensor)
        and y_pred.device.type == "cpu"
        and not torch.compiler.is_compiling()
    )


def check_bins(num_bins, binning="width"):
    """Raise `ValueError` if an argument is out of range."""
    require_integer(1, num_bins=num_bins)
    require(
        is_one_of(binning, ("width", "mass")),
        '`binning` must be "width" (bins of equal width) or "mass" (bins of '
        "equal numbers of samples).",
        binning=binning,
    )
