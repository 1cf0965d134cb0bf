"""Beta calibration: a logistic regression on `log p` and `log(1 - p)`."""

from typing import Any

import keras
import numpy as np

from keras_calib._typing import Tensor
from keras_calib.inputs.arguments import require_one_of
from keras_calib.layers._binary_map import BinaryMap
from keras_calib.layers._logit_ops import log1pexp


@keras.saving.register_keras_serializable(package="keras_calib")
class BetaCalibration(BinaryMap):
    """Calibrate small and large probabilities of two classes separately.

        log-odds' = a log p - b log(1 - p) + c,  a, b >= 0

    for logits of two classes or of one sigmoid unit. `a` changes small
    probabilities, `b` those near 1; with `a = b` it is Platt scaling. The order
    of samples is kept unless a = b = 0.

    Args:
        parameters: `"abm"` for a, b and c; `"am"` for a = b; `"ab"` for c = 0.
        shrinkage: `"auto"` for a mixture with temperature scaling, which few
            samples leave near temperature scaling; `None` for the paper's map.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: of two classes, `(..., 2)`, or before one sigmoid, `(..., 1)`.

    Returns:
        Calibrated logits, of the shape of `logits`.

    Raises:
        ValueError: for another `parameters`, or logits of more than two
            classes.

    Example:
        >>> import numpy as np, keras, keras_calib as kc
        >>> logit = np.array([[2.0], [2.0], [2.0], [2.0], [-2.0], [-2.0]])
        >>> layer = kc.layers.BetaCalibration(
        ...     parameters="am", shrinkage=None
        ... )
        >>> layer = layer.adapt(logit, [1, 1, 1, 0, 1, 0])
        >>> round(float(keras.ops.sigmoid(layer(logit))[0, 0]), 4)  # 3 of 4
        0.75

    Reference:
        Kull, Silva Filho and Flach, "Beta calibration: a well-founded and
        easily implemented improvement on logistic calibration for binary
        classifiers", AISTATS 2017.
    """

    identity = {"a": 1.0, "b": 1.0, "c": 0.0}
    lower = (0.0, 0.0, -np.inf)
    settings = ("parameters", "shrinkage")

    def __init__(
        self,
        *,
        parameters: str = "abm",
        shrinkage: str | None = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(shrinkage=shrinkage, **kwargs)
        require_one_of(("abm", "am", "ab"), parameters=parameters)
        self.parameters = parameters

    def features(self, log_odds: np.ndarray) -> np.ndarray:
        log_p = -np.logaddexp(0.0, -log_odds)
        minus_log_one_minus_p = np.logaddexp(0.0, log_odds)
        return np.stack(
            [log_p, minus_log_one_minus_p, np.ones_like(log_odds)], axis=1
        )

    def design(self) -> np.ndarray:
        if self.parameters == "am":
            return np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        return np.eye(3)[:, : len(self.parameters)]

    def transform(self, log_odds: Tensor, w: Any, xp: Any) -> Tensor:
        # -log(1 - p) and -log p.
        plus, minus = (log1pexp(x, xp) for x in (log_odds, -log_odds))
        return w.b * plus - w.a * minus + w.c
