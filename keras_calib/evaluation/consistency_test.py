"""Is an error larger than that of a calibrated model on as many samples?"""

import dataclasses

import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib.evaluation.calibration_errors import check_bins
from keras_calib.evaluation.named_errors import BINARY
from keras_calib.evaluation.named_errors import CLASSWISE
from keras_calib.evaluation.named_errors import TOP_LABEL
from keras_calib.evaluation.replicates import CalibratedDraws
from keras_calib.inputs.predictions import read_predictions


@dataclasses.dataclass(frozen=True)
class Consistency:
    """What `consistency_test` found.

    Attributes:
        value: the error of the predictions.
        expected: its mean if the model were calibrated.
        upper: its quantile at `confidence_level` if the model were calibrated.
        p_value: how often a calibrated model's error is as large.
        num_draws: how many sets of labels were drawn.
    """

    value: float
    expected: float
    upper: float
    p_value: float
    num_draws: int


def consistency_test(
    labels: ArrayLike,
    probabilities: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    metric: str = "expected_calibration_error",
    num_bins: int = 15,
    threshold: float = 0.01,
    from_logits: bool = False,
    axis: int = -1,
    ignore_class: int | None = None,
    num_draws: int = 1000,
    confidence_level: float = 0.95,
    seed: int = 0,
    verbose: int | str = "auto",
) -> Consistency:
    """Test if an error is larger than a calibrated model's would be.

    A binned error is above 0 for a calibrated model, too: the accuracy of a
    bin is noisy. Labels are drawn from the predicted probabilities, many times,
    and the error is computed for each; the p-value is the share of draws, the
    observed one among them, with an error at least as large. Rows are taken
    for independent: pixels of an image are not, and the p-value is too small.

    Args:
        labels: class ids, `(...)`, or one-hot rows, `(..., num_classes)`.
        probabilities: `(..., num_classes)`; `(..., 1)` or `(n,)` for one
            sigmoid unit. NumPy arrays or tensors.
        sample_weight: `None`, or weights that broadcast from the left.
        metric: a key of `calibration_errors` that names an error.
        num_bins: int, how many bins.
        threshold: probabilities up to this do not count in TACE.
        from_logits: whether `probabilities` are logits.
        axis: the class axis.
        ignore_class: rows with this label do not count.
        num_draws: int, how many sets of labels to draw; the smallest p-value is
            `1 / (num_draws + 1)`.
        confidence_level: float, the quantile that `upper` is.
        seed: int; the same seed draws the same labels.
        verbose: `"auto"` for a progress bar when it takes more than a few
            seconds, 1 for a bar at once, 0 for silence.

    Returns:
        An object with attributes `value`, `expected`, `upper`, `p_value` and
        `num_draws`.

    Raises:
        ValueError: for bad input.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> p = rng.dirichlet([1, 1, 1], size=500)
        >>> labels = (p.cumsum(1) > rng.random((500, 1))).argmax(1)
        >>> found = kc.metrics.consistency_test(labels, p)  # calibrated
        >>> bool(found.p_value > 0.05)
        True
        >>> found = kc.metrics.consistency_test(labels, p**3 / (p**3).sum(
        ...     axis=1, keepdims=True))
        >>> bool(found.p_value < 0.05)
        True

    Reference:
        Broecker and Smith, "Increasing the Reliability of Reliability
        Diagrams", 2007, section 3; Vaicenavicius et al., "Evaluating model
        calibration in classification", AISTATS 2019, section 5.
    """
    check_bins(num_bins, threshold)
    _check(metric, num_draws, confidence_level)
    data = read_predictions(
        labels, probabilities, sample_weight, from_logits, axis, ignore_class
    )
    if metric in BINARY and data.num_classes != 2:
        raise ValueError(
            f"{metric!r} is for two classes. Received: predictions with "
            f"{data.num_classes} classes."
        )
    passes = data.num_classes if metric in CLASSWISE else 1
    draws = CalibratedDraws(data, num_draws, seed, passes, verbose)
    values = draws.statistics((metric,), num_bins, threshold)[metric]
    observed, drawn = float(values[0]), values[1:]
    reached = np.count_nonzero(drawn >= observed - 1e-12)
    return Consistency(
        observed,
        float(drawn.mean()),
        float(np.quantile(drawn, confidence_level)),
        float((1 + reached) / (num_draws + 1)),
        num_draws,
    )


def _check(metric, num_draws, level):
    metrics = (*TOP_LABEL, *CLASSWISE, *BINARY)
    if metric not in metrics:
        raise ValueError(
            f"`metric` must be one of {metrics}. Received: {metric!r}."
        )
    if num_draws < 1 or not 0 < level < 1:
        raise ValueError(
            "`num_draws` must be at least 1 and `confidence_level` between 0 "
            f"and 1. Received: num_draws={num_draws}, "
            f"confidence_level={level}."
        )
