"""Isotonic calibration: increasing functions of the probabilities."""

from typing import Any

import keras
import numpy as np

from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arrays import TINY
from keras_calib.inputs.large import transposed
from keras_calib.inputs.tensors import maximum
from keras_calib.layers._logit_ops import keep_prediction
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._logit_ops import probabilities
from keras_calib.layers._logit_ops import probabilities_seen
from keras_calib.layers._piecewise_linear import UNUSED
from keras_calib.layers._piecewise_linear import interpolate
from keras_calib.layers._piecewise_linear import padded
from keras_calib.layers._piecewise_linear import table_size
from keras_calib.layers._shrunk import ShrunkCalibration
from keras_calib.solvers.isotonic import at_most
from keras_calib.solvers.isotonic import isotonic_of_entries
from keras_calib.solvers.isotonic import isotonic_regression
from keras_calib.solvers.isotonic import without_certainty


@keras.saving.register_keras_serializable(package="keras_calib")
class IsotonicCalibration(ShrunkCalibration):
    """Replace probabilities by increasing functions of them: `q = f(p)`.

    The functions minimize `sum_ik (f(p_ik) - [y_i = k])^2`; between fitted
    points they are straight lines. Rows are then normalized, and the output is
    `log q`. A frequency of 0, whose loss could be infinite, is replaced by
    the smallest value that the data support.

    Args:
        per_class: `False`, one function for all entries (IRM): predicted
            classes do not change. `True`, one function for each class, against
            the rest (IROvA): predicted classes can change, and a class that is
            absent from the calibration data keeps its probabilities.
        num_levels: int, the maximum number of steps of a function. A fit with
            more steps (rare: their number grows with the cube root of the
            number of samples) joins those that differ least.
        shrinkage: `"auto"` for a mixture with temperature scaling, which few
            samples leave near temperature scaling; `None` for the paper's map.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: `(..., num_classes)`, or `(..., 1)` before one sigmoid.

    Returns:
        Calibrated logits, of the shape of `logits`.

    Raises:
        ValueError: if `per_class` is not a bool, or `num_levels` below 2.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> logits = np.log([[0.9, 0.1]] * 4 + [[0.4, 0.6]] * 2)
        >>> layer = kc.layers.IsotonicCalibration(
        ...     per_class=True, shrinkage=None
        ... )
        >>> layer = layer.adapt(logits, [0, 0, 0, 1, 1, 0])
        >>> q = keras.ops.exp(layer(logits))
        >>> round(float(q[0, 0]), 4), round(float(q[4, 0]), 4)
        (0.75, 0.5)

    Reference:
        Zhang et al., "Mix-n-Match", ICML 2020, Section 4.2 (IRM). Zadrozny
        and Elkan, "Transforming Classifier Scores into Accurate Multiclass
        Probability Estimates", KDD 2002 (one against the rest).
    """

    shift_invariant = True
    fitted_by = "frequencies"
    settings = ("per_class", "num_levels", "shrinkage")

    def __init__(
        self,
        *,
        per_class: bool = False,
        num_levels: int = 256,
        shrinkage: str | None = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(shrinkage=shrinkage, **kwargs)
        require_flags(per_class=per_class)
        require_integer(2, num_levels=num_levels)
        self.per_class = per_class
        self.num_levels = num_levels
        self.preserves_accuracy = not per_class
        self.of_classes = per_class
        if per_class:  # as many functions as classes
            self.caution = 9.0

    def _add_weights(self, num_classes):
        rows = num_classes if self.per_class else 1
        # Two knots for each level.
        size = table_size(2 * self.num_levels)
        start = np.full((rows, size), UNUSED)
        start[:, :2] = 0.0, 1.0
        self._add("knots", start)
        self._add("heights", np.minimum(start, 1.0))

    def degrees_of_freedom(self, num_classes: int) -> int:
        # The effective number grows slowly with the data; about this many.
        return 10 * (num_classes if self.per_class else 1)

    def _seen(self, logits):
        return probabilities_seen(logits)

    def _solve(self, logits, labels, weights, objective, tempered):
        rest = labels, weights, objective, tempered
        return self._solve_seen(self._seen(logits), *rest)

    def _solve_seen(self, p, labels, weights, objective, tempered):
        functions: Any = [(p, labels, weights)]
        fit = isotonic_of_entries
        if self.per_class:
            columns = enumerate(transposed(p))
            functions = ((q, labels == k, weights) for k, q in columns)
            fit = _against_the_rest
        tables = [self._table(fit(*each)) for each in functions]
        knots, heights, levels = zip(*tables, strict=True)
        found = {"knots": np.stack(knots), "heights": np.stack(heights)}
        return found, {"per_class": self.per_class, "num_levels": max(levels)}

    def _table(self, blocks):
        """Knots, heights and the number of levels of one function."""
        size = table_size(2 * self.num_levels)
        if blocks is None:
            identity = np.array([0.0, 1.0])
            return *padded(identity, identity, size), 1
        blocks = at_most(blocks, self.num_levels)
        level = without_certainty(blocks.level, blocks.weight, blocks.score)
        # Only the first and the last level have changed.
        level[0] = min(level[0], blocks.level[1:2].min(initial=1.0))
        level = np.maximum.accumulate(level)
        knots = np.stack([blocks.first, blocks.last], axis=1).reshape(-1)
        return *padded(knots, np.repeat(level, 2), size), len(level)

    def _transform(self, logits, w, xp):
        p = probabilities(logits, xp)
        q = interpolate(w.knots, w.heights, p, xp)
        log_q = log_softmax(xp.log(maximum(q, TINY, xp)), xp)
        if self.per_class:
            return log_q
        return keep_prediction(logits, log_q, xp)


def _against_the_rest(p, targets, weights):
    """The regression of one class; `None` if it has no sample."""
    if not targets.any():
        return None
    return isotonic_regression(p, targets, weights)
