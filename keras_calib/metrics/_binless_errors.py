"""Errors without bins, KS and smooth, streamed from fixed cells."""

from typing import Any

import keras
from keras import ops

from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import require
from keras_calib.inputs.rows import Rows
from keras_calib.metrics._base import CalibrationMetric
from keras_calib.metrics._binned import BinnedMetric
from keras_calib.ops.bin_errors import Bins
from keras_calib.ops.bin_errors import ks_error
from keras_calib.ops.binning import bin_sums
from keras_calib.ops.smooth_error import smooth_error


@keras.saving.register_keras_serializable(package="keras_calib")
class KSCalibrationError(BinnedMetric):
    """Kolmogorov-Smirnov calibration error, streaming.

        max_t |1/n sum_(c_i <= t) (c_i - a_i)|

    This is the largest distance between the cumulative sums of confidence and
    of correctness, without bins.

    The maximum is taken at the ends of 1964 fixed cells, so the value is too
    small by at most `max_cell n_cell / n`, and on real networks by less than
    1e-4. Cells with one distinct value cause no error. `calibration_errors` and
    `CalibrationMonitor` compute the exact value.

    Args:
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if the input is invalid.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.KSCalibrationError()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.4

    Reference:
        Gupta et al., "Calibration of Neural Networks using Splines", ICLR
        2021, Section 3.1.
    """

    def __init__(self, **kwargs: Any) -> None:
        for name in ("num_bins", "binning", "norm"):
            require(
                name not in kwargs,
                "KS has no bins, and is the largest of all distances. "
                f"Received: {name}={kwargs.get(name)!r}.",
            )
        super().__init__(num_bins=1, binning="mass", **kwargs)

    def result(self) -> Tensor:
        return ks_error(Bins(*ops.unstack(self.sums("sums"))))


@keras.saving.register_keras_serializable(package="keras_calib")
class SmoothCalibrationError(CalibrationMetric):
    """Smooth calibration error (smECE), streaming.

        int |1/n sum_i (c_i - a_i) K_s(t, c_i)| dt

    `K_s` is a Gaussian kernel of standard deviation `s`, reflected at 0 and 1.
    By default `s` is the bandwidth at which the error equals `s`.

    Each residual is split between the two nearest of 4097 fixed nodes, `h`
    apart, such that its mean is kept. At bandwidth `s` the value differs from
    the exact one by at most `0.121 (h / s)^2 mean |c - a|`, which is 7e-5 at
    `s = 0.01`, and in practice by a hundredth of that. Bandwidths below `2 h`
    are not resolved. `calibration_errors` and `CalibrationMonitor` compute the
    exact value.

    Args:
        bandwidth: float, a fixed `s`, or `None` for the default.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `name` and `dtype`; see
            `CalibrationMetric`.

    Raises:
        ValueError: if an argument is out of range or the input is invalid.

    Example:
        >>> import keras_calib as kc
        >>> metric = kc.metrics.SmoothCalibrationError()
        >>> metric.update_state([0, 1], [[0.9, 0.1], [0.8, 0.2]])
        >>> round(float(metric.result()), 3)
        0.35

    Reference:
        Blasiok and Nakkiran, "Smooth ECE: Principled Reliability Diagrams via
        Kernel Smoothing", ICLR 2024, Sections 3 and 4.
    """

    settings = ("bandwidth",)
    CELLS = 4096

    def __init__(
        self, *, bandwidth: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        require(
            bandwidth is None or (is_number(bandwidth) and 0 < bandwidth <= 1),
            "`bandwidth` must be in (0, 1] or `None`.",
            bandwidth=bandwidth,
        )
        self.bandwidth = bandwidth
        self.add_sums("nodes", (self.CELLS + 1,))
        self.add_sums("weight", ())

    def update_rows(self, rows: Rows) -> None:
        confidence, correct, weight = self.events(rows)
        residual = weight * (confidence - correct)
        place = ops.clip(confidence, 0.0, 1.0) * self.CELLS
        # A NaN has no cell: its residual is NaN in the first one too.
        lower = ops.where(place >= 0, ops.floor(place), 0.0)
        lower = ops.minimum(lower, self.CELLS - 1)
        index = ops.cast(lower, "int32")
        above = residual * (place - lower)
        nodes = bin_sums(
            ops.concatenate([residual - above, above])[None],
            ops.concatenate([index, index + 1]),
            self.CELLS + 1,
        )
        self.add_to("nodes", nodes[0])
        self.add_to("weight", ops.sum(weight))

    def result(self) -> Tensor:
        nodes = ops.divide_no_nan(self.sums("nodes"), self.sums("weight"))
        return smooth_error(nodes, self.bandwidth)
