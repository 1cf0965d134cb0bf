"""Beta calibration: a logistic regression on `log p` and `log(1 - p)`."""

import keras
import numpy as np
from keras import ops

from keras_calib.layers._platt_scaling import BinaryMap
from keras_calib.layers._platt_scaling import binary_nll
from keras_calib.layers._platt_scaling import log_odds_of
from keras_calib.solvers.binary_logistic import fit_logistic
from keras_calib.solvers.binary_logistic import platt_targets


@keras.saving.register_keras_serializable(package="keras_calib")
class BetaCalibration(BinaryMap):
    """Bend the two ends of a binary classifier's probabilities apart.

    `log-odds' = a log p - b log(1 - p) + c` with `a, b >= 0`, for logits of two
    classes or of one sigmoid unit. `a` shapes small probabilities, `b` those
    near 1; with `a = b` it is Platt scaling. Order is kept unless a = b = 0.

    Args:
        parameters: `"abm"` for a, b and c; `"am"` for a = b; `"ab"` for c = 0.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Raises:
        ValueError: for another `parameters`, or logits of more than two
            classes.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> logit = np.array([[2.0], [2.0], [2.0], [2.0], [-2.0], [-2.0]])
        >>> layer = kc.layers.BetaCalibration("am")
        >>> layer = layer.adapt(logit, [1, 1, 1, 0, 1, 0])
        >>> round(float(keras.ops.sigmoid(layer(logit))[0, 0]), 4)  # 3 of 4
        0.75

    Reference:
        Kull, Silva Filho and Flach, "Beta calibration: a well-founded and
        easily implemented improvement on logistic calibration for binary
        classifiers", AISTATS 2017.
    """

    def __init__(self, parameters="abm", **kwargs):
        super().__init__(**kwargs)
        if parameters not in ("abm", "am", "ab"):
            raise ValueError(
                '`parameters` must be "abm", "am" or "ab". '
                f"Received: parameters={parameters!r}."
            )
        self.parameters = parameters

    def build_weights(self):
        self.a = self.add_weight((), "ones", name="a")
        self.b = self.add_weight((), "ones", name="b")
        self.c = self.add_weight((), "zeros", name="c")

    def degrees_of_freedom(self, num_classes):
        return len(self.parameters)

    def fit(self, logits, labels, weight, objective):
        log_odds, targets = log_odds_of(logits, labels)
        features = np.stack(
            [
                -np.logaddexp(0.0, -log_odds),  # log p
                np.logaddexp(0.0, log_odds),  # -log(1 - p)
                np.ones_like(log_odds),
            ],
            axis=1,
        )
        theta = self._best(features, targets, weight)
        nll = binary_nll(features @ theta, targets, weight)
        smooth = nll <= 1e-8
        if smooth:  # separable: the slopes would grow without end
            aims = platt_targets(labels, weight)
            theta = self._best(features, aims, weight)
            nll = binary_nll(features @ theta, targets, weight)
        nll_before = binary_nll(log_odds, targets, weight)
        if nll > nll_before:  # smooth targets can ask for that
            theta, nll = (1.0, 1.0, 0.0), nll_before
        a, b, c = theta
        record = {
            "a": float(a),
            "b": float(b),
            "c": float(c),
            "smooth_targets": smooth,
            "nll_before": nll_before,
            "nll_after": nll,
        }
        return {"a": a, "b": b, "c": c}, record

    def _best(self, features, targets, weight):
        """The minimiser with `a, b >= 0`: tries every set that could be 0."""
        if self.parameters == "am":
            pair = np.stack([features[:, :2].sum(1), features[:, 2]], axis=1)
            candidates = []
            for fixed, start in (((), (1.0, 0.0)), ((0,), (0.0, 0.0))):
                theta, value = fit_logistic(pair, targets, start, weight, fixed)
                candidates.append((value, (theta[0], theta[0], theta[1])))
        else:
            candidates = []
            for zero in ((), (0,), (1,), (0, 1)):
                start = [0.0 if i in zero else 1.0 for i in range(2)] + [0.0]
                fixed = zero + ((2,) if self.parameters == "ab" else ())
                if len(fixed) == 3:
                    candidates.append((np.log(2), (0.0, 0.0, 0.0)))
                    continue
                theta, value = fit_logistic(
                    features, targets, start, weight, fixed
                )
                candidates.append((value, tuple(theta)))
        allowed = [c for c in candidates if c[1][0] >= 0 and c[1][1] >= 0]
        return np.array(min(allowed)[1])

    def bend(self, log_odds):
        return (
            self.b * ops.softplus(log_odds)
            - self.a * ops.softplus(-log_odds)
            + self.c
        )

    def get_config(self):
        return {**super().get_config(), "parameters": self.parameters}
