"""Meta-Cal: temperature scaling where it can be trusted, nothing elsewhere."""

import math
from fractions import Fraction
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib._warning import warn
from keras_calib.inputs import arrays
from keras_calib.inputs.arguments import require_fraction
from keras_calib.inputs.tensors import maximum
from keras_calib.inputs.tensors import row_max
from keras_calib.layers._decision import DecisionLayer
from keras_calib.layers._decision import classes
from keras_calib.layers._logit_ops import log1pexp
from keras_calib.layers._risk_threshold import RiskThreshold
from keras_calib.ops.confidence import first_largest
from keras_calib.solvers.temperature import fit_temperature

# The logit of the predicted class of a rejected sample; the others are 0. Its
# probabilities are 1 / num_classes, but for what tells the predicted class.
MARK = 1e-4


@keras.saving.register_keras_serializable(package="keras_calib")
class MetaCal(DecisionLayer):
    """Temperature scaling for samples of low entropy, uniform for the others.

        accepted_i = h_i <= t,       h_i the entropy of softmax(z_i)
        z'_i = z_i / T if accepted_i, else uniform

    `adapt` finds `t` for one of two constraints, and then `T` by the NLL of the
    accepted samples.

    - `max_miscoverage` bounds the share of correctly predicted samples that are
      rejected: with `n` correct calibration samples, `t` is the
      `ceil((n + 1) (1 - max_miscoverage))`-th smallest of their entropies, and

          P(a correct sample is rejected) <= max_miscoverage

      for calibration set and sample together. Given the calibration set, the
      rate varies around its mean with a beta distribution.
    - `min_accuracy` bounds the accuracy of accepted samples: over repeated
      calibration sets it is reached with probability `confidence`, by the tests
      of `RiskThreshold`.

    Predicted classes do not change: a rejected sample keeps its class by a
    margin of 1e-4 in the logits (in the authors' code all tie, and class 0 is
    predicted). Rejecting usually raises the NLL above that of temperature
    scaling; the record has both.

    Args:
        max_miscoverage: float in (0, 1); 0.05 if neither is given.
        min_accuracy: float in (0, 1), instead of `max_miscoverage`.
        confidence: float in (0, 1), for `min_accuracy`.
        **kwargs: `name`, as in Keras.

    Call arguments:
        logits: of the network, `(batch, num_classes)`, or `(batch, 1)` before
            one sigmoid.

    Returns:
        logits: calibrated, `(batch, max(2, num_classes))`.
        accepted: bool, `(batch,)`.

    Raises:
        ValueError: if an argument is invalid. In `adapt`: see `DecisionLayer`.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> logits = 4 * rng.normal(size=(4000, 5))
        >>> labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
        >>> layer = kc.layers.MetaCal(max_miscoverage=0.1)
        >>> layer = layer.adapt(logits[:2000], labels[:2000])
        >>> _, accepted = layer(logits[2000:])
        >>> correct = logits[2000:].argmax(axis=1) == labels[2000:]
        >>> bool(0.07 < 1 - np.asarray(accepted)[correct].mean() < 0.13)
        True

    Reference:
        Ma and Blaschko, "Meta-Cal: Well-controlled Post-hoc Calibration by
        Ranking", ICML 2021, arXiv:2105.04290. The authors take the threshold
        from at most 500 correct samples and the temperature from the others;
        here both are fitted to all samples.
    """

    settings = ("max_miscoverage", "min_accuracy", "confidence")
    gives_scores = True

    def __init__(
        self,
        *,
        max_miscoverage: float | None = None,
        min_accuracy: float | None = None,
        confidence: float = 0.95,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if max_miscoverage is None and min_accuracy is None:
            max_miscoverage = 0.05
        if max_miscoverage is not None and min_accuracy is not None:
            raise ValueError(
                "One threshold keeps one constraint. Received: max_miscoverage="
                f"{max_miscoverage}, min_accuracy={min_accuracy}. Leave out "
                "one of them."
            )
        require_fraction(confidence=confidence)
        if max_miscoverage is None:
            require_fraction(min_accuracy=min_accuracy)
        else:
            require_fraction(max_miscoverage=max_miscoverage)
        self.max_miscoverage = max_miscoverage
        self.min_accuracy = min_accuracy
        self.confidence = confidence

    def build(self, input_shape: tuple) -> None:
        self._add("threshold", math.inf, trainable=False)
        self._add("log_temperature", 0.0)
        self.built = True

    def call(self, logits: Tensor) -> tuple:
        z = maximum(classes(logits), arrays.LOWEST)
        top = first_largest(z)
        accepted = _entropy(z, top, ops) <= self.threshold
        predicted = ops.one_hot(top, z.shape[-1], dtype=z.dtype)
        tempered = z / ops.exp(self.log_temperature)
        z = ops.where(accepted[..., None], tempered, MARK * predicted)
        return z, accepted

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        *batch, width = tuple(input_shape)
        return (*batch, max(2, width)), tuple(batch)

    def compute_output_spec(self, logits: Tensor) -> tuple:
        scores, accepted = self.compute_output_shape(logits.shape)
        return (
            keras.KerasTensor(scores, self.compute_dtype),
            keras.KerasTensor(accepted, "bool"),
        )

    def solve(self, logits: np.ndarray, labels: np.ndarray) -> tuple:
        top = first_largest(logits, np)
        h, correct = _entropy(logits, top, np), top == labels
        if self.min_accuracy is None:
            threshold = self._of_miscoverage(h[correct])
        else:
            threshold = self._of_accuracy(h, correct)
        accepted, temperature = h <= threshold, 1.0
        if accepted.any():
            fit = fit_temperature(logits[accepted], labels[accepted])
            temperature = fit.temperature
        plain = fit_temperature(logits, labels)
        losses = -arrays.log_softmax_of_labels(logits / temperature, labels)
        uniform = math.log(logits.shape[1])
        record = {
            "temperature": temperature,
            "accepted": int(accepted.sum()),
            "rejected_correct": int((correct & ~accepted).sum()),
            "accepted_correct": int((correct & accepted).sum()),
            "nll_before": plain.nll_before,
            "nll_temperature_scaling": plain.nll_after,
            "nll_after": float(np.where(accepted, losses, uniform).mean()),
        }
        return {
            "threshold": threshold,
            "log_temperature": math.log(temperature),
        }, record

    def _of_miscoverage(self, entropies):
        """The largest entropy that is accepted, from those of correct rows."""
        n = len(entropies)
        # In fractions: floats make some ranks one too large.
        share = 1 - Fraction(str(self.max_miscoverage))
        rank = math.ceil((n + 1) * share)
        if rank > n:
            warn(
                f"{n} correct samples are too few to bound the miscoverage by "
                f"{self.max_miscoverage}: every sample is accepted."
            )
            return math.inf
        limit = float(_logarithm(np.sort(entropies)[rank - 1]))
        # Upwards, by what float32 may round off.
        return math.exp(limit + 1e-6 * max(1.0, abs(limit)))

    def _of_accuracy(self, entropies, correct):
        """The largest entropy whose bound on the risk is low enough."""
        search = RiskThreshold(
            target_risk=1 - self.min_accuracy, confidence=self.confidence
        )
        limit, _ = search.find_threshold(-_logarithm(entropies), ~correct)
        if limit == math.inf:
            warn(
                "No threshold keeps the accuracy of accepted samples above "
                f"{self.min_accuracy}: every sample is rejected."
            )
            return -math.inf
        # Rows at the limit itself are not accepted.
        return math.exp(-limit)


def _logarithm(entropies):
    """Of an entropy: those of sure rows differ by orders of magnitude."""
    return np.log(np.maximum(entropies, arrays.TINY))


def _entropy(z, top, xp):
    """Entropy of the softmax, in nats; a class that is ruled out adds 0.

    Next to the likeliest class, `top`, the others would be lost in a sum, so
    that they are summed alone.
    """
    z = z - row_max(z, xp, keepdims=True)
    others = xp.not_equal(xp.arange(0, z.shape[-1]), top[..., None])
    e = xp.where(others, xp.exp(z), 0.0)
    total = xp.sum(e, axis=-1)
    z = xp.where(e > 0, z, 0.0)
    # By operations that can be exported: ONNX has no `log1p`.
    log_partition = log1pexp(xp.log(maximum(total, arrays.TINY, xp)), xp)
    return log_partition - xp.sum(e * z, axis=-1) / (1 + total)
