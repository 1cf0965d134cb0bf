"""Predict only where it is safe: a threshold with a bound on the risk."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import ArrayLike
from keras_calib._typing import Tensor
from keras_calib._warning import warn
from keras_calib.inputs import arrays
from keras_calib.inputs.arguments import generator
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_fraction
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import as_floats
from keras_calib.inputs.tensors import maximum
from keras_calib.inputs.tensors import row_max
from keras_calib.layers._decision import TUNING
from keras_calib.layers._decision import DecisionLayer
from keras_calib.layers._decision import classes
from keras_calib.ops.confidence import first_largest
from keras_calib.ops.confidence import is_first_largest

SCORES = ("confidence", "logit_norm")
# Numbers of accepted samples that are tested, from the fewest.
NUM_CANDIDATES = 50
LEAST_COVERAGE = 0.1
# Exponents of the norm; 0 stands for the confidence.
EXPONENTS = range(1, 10)


@keras.saving.register_keras_serializable(package="keras_calib")
class RiskThreshold(DecisionLayer):
    """The predicted class where the risk is bounded, -1 elsewhere.

    `adapt` finds a threshold t on the confidence, with as many accepted samples
    as it can, such that over repeated calibration sets

        P(R(t) > target_risk) <= 1 - confidence,
        R(t) = P(prediction is wrong | confidence > t)

    It is no promise for a single sample, a class, or data of another kind. 50
    thresholds, fixed by numbers of samples, are tested from the highest down;
    each passes if its count of errors would be rare at the target risk (an
    exact binomial test), and the last one before the first failure is taken.
    This is exact if the risk does not rise with the threshold.

    Args:
        target_risk: float in (0, 1), largest rate of errors among accepted
            samples.
        confidence: float in (0, 1), probability of a good calibration set.
        score: `"confidence"`, the probability of the predicted class; or
            `"logit_norm"`, the largest logit minus the mean, divided by the
            p-norm of the centered logits, with the p that ranks a fifth of the
            samples best (or the confidence, if no p is better). It repairs the
            ranking of networks trained with label smoothing, and needs three
            classes.
        seed: int, for the samples that `"logit_norm"` takes.
        **kwargs: `name`, as in Keras.

    Call arguments:
        logits: calibrated logits, `(batch, num_classes)`, or `(batch, 1)`
            before one sigmoid.

    Returns:
        int32, `(batch,)`: the predicted class, or -1.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> logits = 4 * rng.normal(size=(4000, 5))
        >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        >>> layer = kc.layers.RiskThreshold(target_risk=0.1)
        >>> found = layer.adapt(logits[:2000], labels[:2000])(logits[2000:])
        >>> found = np.asarray(found)
        >>> wrong = found != labels[2000:]
        >>> bool(wrong[found >= 0].mean() < 0.1)
        True

    Reference:
        Geifman and El-Yaniv, "Selective Classification for Deep Neural
        Networks", NeurIPS 2017; Angelopoulos et al., "Learn then Test", 2021.
        The normalized logits: Cattelan and Silva, "How to Fix a Broken
        Confidence Estimator", UAI 2024.
    """

    settings = ("target_risk", "confidence", "score", "seed")

    def __init__(
        self,
        *,
        target_risk: float = 0.05,
        confidence: float = 0.95,
        score: str = "confidence",
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        require_fraction(target_risk=target_risk, confidence=confidence)
        require_one_of(SCORES, score=score)
        require_integer(0, seed=seed)
        self.target_risk = target_risk
        self.confidence = confidence
        self.score = score
        self.seed = seed

    def build(self, input_shape: tuple) -> None:
        self._add("threshold", math.inf, trainable=False)
        self._add("exponent", 0.0, trainable=False)
        self.built = True

    def call(self, logits: Tensor) -> Tensor:
        z = classes(logits)
        score = self._log_odds(z, ops)
        if self.score == "logit_norm":
            normalized = _normalized(z, self.exponent, ops)
            score = ops.where(self.exponent > 0, normalized, score)
        predicted = ops.cast(first_largest(z), "int32")
        return ops.where(score > self.threshold, predicted, -1)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape[:-1]

    def compute_output_spec(self, logits: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor(logits.shape[:-1], "int32")

    def solve(self, logits: np.ndarray, labels: np.ndarray) -> tuple:
        wrong = logits.argmax(axis=1) != labels
        used, exponent = np.ones(len(labels), bool), 0
        if self.score == "logit_norm":
            used, exponent = self._choose_exponent(logits, wrong)
        score = self._score(logits[used], exponent)
        threshold, record = self.find_threshold(score, wrong[used])
        if threshold == math.inf:
            needed = _least_samples(self.target_risk, 1 - self.confidence)
            warn(
                f"No threshold keeps the risk below {self.target_risk}: every "
                "sample is rejected. The smallest bound found is "
                f"{record['risk_bound']:.3g}; without an error, {needed} "
                "accepted samples are needed."
            )
        return (
            {"threshold": threshold, "exponent": exponent},
            {"exponent": exponent, **record},
        )

    def find_threshold(self, score: ArrayLike, wrong: ArrayLike) -> tuple:
        """The threshold on any score, and what the record contains of it.

        Args:
            score: float, `(n,)`; samples above the threshold are accepted.
            wrong: bool, `(n,)`, whether a prediction is wrong.

        Returns:
            threshold: float, infinite if no threshold passes.
            record: dict of JSON values.

        Raises:
            ValueError: for scores that are NaN, or if there is not one of each
                for every sample.
        """
        score, wrong = as_floats(score, "`score`", "float64"), as_array(wrong)
        require(
            score.ndim == 1 and score.shape == wrong.shape,
            "`score` and `wrong` must be `(n,)`, one of each for every sample.",
            score=score.shape,
            wrong=wrong.shape,
        )
        require(
            bool(np.isin(wrong, (0, 1)).all()),
            "`wrong` must be True or False.",
            wrong=wrong,
        )
        require(
            not np.isnan(score).any(),
            "A score that is missing is neither accepted nor rejected.",
            "Leave such samples out, or give them minus infinity.",
            score=f"NaN in {np.isnan(score).sum()} of {len(score)}",
        )
        n, delta = len(score), 1 - self.confidence
        order = np.argsort(-score, kind="stable")
        score, errors = score[order], np.cumsum(wrong[order])
        least = _least_samples(self.target_risk, delta)
        first = max(least, math.ceil(LEAST_COVERAGE * n))
        threshold, passed, bounds = math.inf, (0, 0), [1.0]
        if first <= n:
            counts = np.linspace(first, n, NUM_CANDIDATES).round().astype(int)
            for count in dict.fromkeys(counts.tolist()):
                limit = score[count] if count < n else -math.inf
                accepted = int((score > limit).sum())
                # Equal scores can leave too few samples above the limit. That
                # says nothing about the risk, and is no failure.
                if accepted < least:
                    continue
                wrong = int(errors[accepted - 1])
                bounds.append(_upper_bound(wrong, accepted, delta))
                if not bounds[-1] <= self.target_risk:
                    break
                threshold, passed = float(limit), (accepted, wrong)
        accepted, wrong = passed
        if np.isfinite(threshold):
            # Towards fewer accepted samples, by what float32 may round off.
            threshold += 1e-6 * max(1.0, abs(threshold))
        return threshold, {
            "num_samples_for_threshold": n,
            "accepted": accepted,
            "errors": wrong,
            "risk_bound": _upper_bound(wrong, accepted, delta)
            if accepted
            else min(bounds),
        }

    def _choose_exponent(self, logits, wrong):
        """The rows left for the threshold, and the exponent that ranks best."""
        n, num_classes = logits.shape
        if num_classes < 3:
            raise ValueError(
                '`score="logit_norm"` is the same number for every sample of '
                f"two classes. Received: logits of {num_classes} classes. Use "
                '"confidence".'
            )
        order = generator(self.seed).permutation(n)
        tuning = order[: int(TUNING * n)]
        used = np.ones(n, bool)
        used[tuning] = False

        def area(exponent):
            score = self._score(logits[tuning], exponent)
            return _area_under_risk_coverage(score, wrong[tuning])

        return used, min((0, *EXPONENTS), key=area)

    def _score(self, logits, exponent):
        if exponent:
            return _normalized(logits, exponent, np)
        return self._log_odds(logits, np)

    def _log_odds(self, z, xp):
        """`log(p / (1 - p))` of the predicted class.

        In float32 many probabilities are 1, and none of their log-odds tie.
        """
        top = row_max(z, xp, keepdims=True)
        # The largest logit once, so that of two equal ones one is left.
        others = xp.where(is_first_largest(z, xp), -np.inf, z - top)
        return -xp.log(xp.sum(xp.exp(others), axis=-1) + arrays.TINY)


def _normalized(z, exponent, xp):
    """The largest logit over the norm of all, both minus the mean: 0 to 1.

    Of the classes that are not ruled out. It is 0 where all logits are equal,
    and 1 where there is one class.
    """
    away = row_max(z, xp, keepdims=True) - z
    others = xp.where(is_first_largest(z, xp), -np.inf, -away)
    next_one = -row_max(others, xp, keepdims=True)
    known = away < maximum(arrays.TIMES * next_one, arrays.RULED_OUT, xp)
    count = xp.sum(xp.where(known, 1.0, 0.0), axis=-1, keepdims=True)
    away = xp.where(known, away, 0.0)
    mean = xp.sum(away, axis=-1, keepdims=True) / count
    z = xp.where(known, mean - away, 0.0)
    largest = row_max(xp.abs(z), xp, keepdims=True)
    largest = maximum(largest, arrays.TINY, xp)
    # An exponent of 0 is not used, and must not divide.
    exponent = xp.maximum(exponent, 1)
    norm = xp.sum((xp.abs(z) / largest) ** exponent, axis=-1) ** (1 / exponent)
    # The largest of the absolute values adds 1 to the norm, if it is not 0.
    score = mean[..., 0] / largest[..., 0] / maximum(norm, 1.0, xp)
    return xp.where(count[..., 0] > 1, score, 1.0)


def _area_under_risk_coverage(score, wrong):
    if not len(score):
        return 0.0
    order = np.argsort(-score, kind="stable")
    return float(
        np.mean(np.cumsum(wrong[order]) / np.arange(1, len(wrong) + 1))
    )


def _least_samples(target, delta):
    """Fewest samples without an error that show a risk below the target."""
    return math.ceil(math.log(delta) / math.log1p(-target))


def _log_binomial_cdf(errors, count, p):
    """Logarithm of `P(at most errors of count)` with the probability p."""
    i = np.arange(errors)
    steps = np.log((count - i) / (i + 1)) + math.log(p) - math.log1p(-p)
    terms = count * math.log1p(-p) + np.append(0.0, np.cumsum(steps))
    return float(np.logaddexp.reduce(terms))


def _upper_bound(errors, count, delta):
    """Clopper and Pearson's bound: largest `p` with `P(errors | p) >= delta`.

    `P` is that of at most so many errors; `p` is found by bisection.
    """
    if errors >= count:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _log_binomial_cdf(errors, count, middle) > math.log(delta):
            low = middle
        else:
            high = middle
    return high
