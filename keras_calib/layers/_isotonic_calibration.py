"""Isotonic calibration: probabilities through increasing functions."""

import keras
import numpy as np
from keras import ops

from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._logit_ops import keep_prediction
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._logit_ops import on_pairs
from keras_calib.layers._logit_ops import probabilities
from keras_calib.layers._logit_ops import probabilities_seen
from keras_calib.layers._piecewise_linear import interpolate
from keras_calib.layers._piecewise_linear import padded
from keras_calib.layers._piecewise_linear import table_size
from keras_calib.solvers.isotonic import at_most
from keras_calib.solvers.isotonic import isotonic_regression
from keras_calib.solvers.isotonic import without_certainty

TINY = 1e-30


@keras.saving.register_keras_serializable(package="keras_calib")
class IsotonicCalibration(CalibrationLayer):
    """Replace probabilities by how often they came true, in order.

    Increasing functions of the probabilities, fitted by least squares without
    any assumption on their shape; straight lines between the fitted points;
    then rows are normalised. Output is `log q`. A probability that never came
    true does not become 0, which would be infinitely wrong the first time: it
    becomes as small as the data can tell.

    Args:
        per_class: `False`, one function for all entries (IRM): predictions
            stay. `True`, one function for each class, against the rest
            (IROvA): predictions may change; a class that is absent from the
            calibration data keeps its probabilities.
        num_levels: int, the largest number of steps of a function; a fit with
            more (they are rare: steps grow with the cube root of the number
            of samples) joins those that differ least.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Raises:
        ValueError: if `per_class` is no bool, or `num_levels` below 2.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> logits = np.log([[0.9, 0.1]] * 4 + [[0.4, 0.6]] * 2)
        >>> layer = kc.layers.IsotonicCalibration(per_class=True)
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
    parametric = False
    fitted_by = "frequencies"

    def __init__(self, per_class=False, num_levels=256, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(per_class, bool):
            raise ValueError(
                "`per_class` must be True or False. "
                f"Received: per_class={per_class!r}."
            )
        if num_levels < 2:
            raise ValueError(
                "`num_levels` must be at least 2. "
                f"Received: num_levels={num_levels}."
            )
        self.per_class = per_class
        self.num_levels = num_levels
        self.preserves_accuracy = not per_class

    def build(self, input_shape):
        rows = max(2, input_shape[-1]) if self.per_class else 1
        # Two knots for each level.
        size = table_size(2 * self.num_levels)
        start = np.full((rows, size), 2.0, "float32")
        start[:, :2] = 0.0, 1.0
        self.knots = self.add_weight(
            (rows, size), lambda *_, **__: ops.array(start), name="knots"
        )
        self.heights = self.add_weight(
            (rows, size),
            lambda *_, **__: ops.array(np.minimum(start, 1.0)),
            name="heights",
        )
        self.built = True

    def degrees_of_freedom(self, num_classes):
        # The effective number grows slowly with the data; about this many.
        return 10 * (num_classes if self.per_class else 1)

    def fit(self, logits, labels, weight, objective):
        p = probabilities_seen(logits)
        targets = np.zeros(p.shape, "float32")
        targets[np.arange(len(labels)), labels] = 1
        if not self.per_class:
            entry_weight = (
                None if weight is None else np.repeat(weight, p.shape[1])
            )
            tables = [
                self._table(p.reshape(-1), targets.reshape(-1), entry_weight)
            ]
        else:
            tables = [
                self._table(p[:, k], targets[:, k], weight)
                for k in range(p.shape[1])
            ]
        knots, heights, levels = zip(*tables, strict=True)
        weights = {"knots": np.stack(knots), "heights": np.stack(heights)}
        return weights, {"per_class": self.per_class, "num_levels": max(levels)}

    def _table(self, p, targets, weight):
        """Knots, heights and the number of levels of one function."""
        size = table_size(2 * self.num_levels)
        if not targets.any():
            return *padded(np.array([0.0, 1.0]), np.array([0.0, 1.0]), size), 1
        blocks = isotonic_regression(p, targets, weight)
        blocks = at_most(blocks, self.num_levels)
        level = without_certainty(blocks.level, blocks.weight, blocks.score)
        # Only the two ends have moved.
        level[0] = min(level[0], blocks.level[1:2].min(initial=1.0))
        level = np.maximum.accumulate(level)
        knots = np.stack([blocks.first, blocks.last], axis=1).reshape(-1)
        return *padded(knots, np.repeat(level, 2), size), len(level)

    def call(self, logits):
        return on_pairs(self._bend, logits)

    def _bend(self, logits):
        p = probabilities(logits)
        q = interpolate(self.knots, self.heights, p)
        log_q = log_softmax(ops.log(ops.maximum(q, TINY)))
        if self.per_class:
            return log_q
        return keep_prediction(logits, log_q)

    def get_config(self):
        config = {"per_class": self.per_class, "num_levels": self.num_levels}
        return {**super().get_config(), **config}
