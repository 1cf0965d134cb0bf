"""`consistency_test`: is an error larger than that of a calibrated model?"""

import dataclasses

import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib.evaluation.calibrated_draws import CalibratedDraws
from keras_calib.evaluation.calibration_errors import check_bins_and_threshold
from keras_calib.evaluation.named_errors import BINARY
from keras_calib.evaluation.named_errors import CLASSWISE
from keras_calib.evaluation.named_errors import TOP_LABEL
from keras_calib.inputs.arguments import require_fraction
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.label_rules import refuse_no_rows
from keras_calib.inputs.predictions import read_predictions


@dataclasses.dataclass(frozen=True)
class Consistency:
    """Result of `consistency_test`.

    Attributes:
        value: the error of the predictions.
        expected: mean of the error under perfect calibration.
        upper: its quantile at `confidence_level` under perfect calibration.
        p_value: probability of an error at least as large under perfect
            calibration.
        num_draws: number of sets of labels drawn.
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
    """Test whether an error is larger than that of a calibrated model.

    The error of a calibrated model is above 0, because the accuracy of a bin is
    noisy. Sets of labels are drawn from the predicted probabilities, and the
    error of each is computed. The p-value is the fraction of sets, including
    the observed labels, with an error at least as large. Rows are assumed to be
    independent: for pixels of an image, which are not, the p-value is too
    small.

    Args:
        labels: class ids, `(...)`, or one-hot rows, `(..., num_classes)`.
        probabilities: `(..., num_classes)`; `(..., 1)` or `(n,)` for one
            sigmoid unit. NumPy arrays or tensors.
        sample_weight: `None`, or weights that broadcast from the left.
        metric: a key of `calibration_errors` that names an error.
        num_bins: int, number of bins.
        threshold: float, probabilities up to this value are ignored in TACE.
        from_logits: whether `probabilities` are logits.
        axis: the class axis.
        ignore_class: rows with this label are ignored.
        num_draws: int, number of sets of labels. The smallest p-value is
            `1 / (num_draws + 1)`.
        confidence_level: float, the level of the quantile `upper`.
        seed: int; the same seed draws the same labels.
        verbose: `"auto"` for a progress bar after a few seconds, 1 for a bar
            at once, 0 for none.

    Returns:
        An object with attributes `value`, `expected`, `upper`, `p_value` and
        `num_draws`.

    Raises:
        ValueError: if the input is invalid, or no row counts.

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
        Diagrams", 2007, Section 3; Vaicenavicius et al., "Evaluating model
        calibration in classification", AISTATS 2019, Section 5.
    """
    check_bins_and_threshold(num_bins, threshold)
    _check(metric, num_draws, confidence_level)
    data = read_predictions(
        labels, probabilities, sample_weight, from_logits, axis, ignore_class
    )
    refuse_no_rows(data)
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
    require_one_of((*TOP_LABEL, *CLASSWISE, *BINARY), metric=metric)
    require_integer(1, num_draws=num_draws)
    require_fraction(confidence_level=level)
