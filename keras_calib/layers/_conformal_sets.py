"""Conformal prediction sets, which contain the label with a probability."""

import math
from fractions import Fraction
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib._typing import Tensor
from keras_calib._warning import warn
from keras_calib.inputs import arrays
from keras_calib.inputs.arguments import generator
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import require_at_least
from keras_calib.inputs.arguments import require_flags
from keras_calib.inputs.arguments import require_fraction
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.tensors import minimum
from keras_calib.inputs.tensors import row_max
from keras_calib.inputs.tensors import running_sum
from keras_calib.layers._decision import TUNING
from keras_calib.layers._decision import DecisionLayer
from keras_calib.layers._decision import classes
from keras_calib.layers._order import descending_order
from keras_calib.layers._order import ranks_of
from keras_calib.layers._order import take
from keras_calib.ops.confidence import first_largest

METHODS = ("lac", "aps", "raps")
# The largest prime whose square is below 2^31.
PRIME = 46337
# Temperatures that are tried, by the size of the sets that they give.
TEMPERATURES = np.exp(np.linspace(np.log(0.25), np.log(4.0), 65))


@keras.saving.register_keras_serializable(package="keras_calib")
class ConformalSets(DecisionLayer):
    """Sets of classes that contain the label with a given probability.

    For exchangeable samples, over calibration sets and test samples together,

        coverage <= P(y in set) <= coverage + 1 / (n + 1)

    where the upper bound needs scores without ties. It is no promise for a
    single class or sample. The classes of a sample are ordered by probability,
    `r` is the rank of class k, from 1, and the set holds each class whose
    score is at most the `ceil((n + 1) coverage)`-th smallest score of the
    labels in the calibration data:

        LAC    1 - p_k
        APS    the sum of p over ranks 1 to r
        RAPS   that of APS, plus penalty max(r - free_ranks, 0)

    LAC gives the smallest sets; APS and RAPS adapt their size to how hard a
    sample is. The papers' randomized scores count a part of each class, with
    one u in [0, 1) for a sample,

        APS    the sum of p over ranks 1 to r - 1, plus (1 - u) p_k

    and give smaller sets with the same coverage. With `randomized=True`,
    u is a hash of the logits of the sample: it looks random, and the same
    logits always have the same set. The guarantee needs no more, because the
    score stays a fixed function of the sample. Batches of another size, say,
    may round logits differently, which changes a few sets in a thousand.

    Sets of all kinds can be empty.

    Args:
        method: `"lac"`, `"aps"` or `"raps"`.
        coverage: float in (0, 1).
        temperature: float by which logits are divided first; or `"fit"` for
            the one with the smallest sets on a fifth of the calibration
            samples, which are not used otherwise. For LAC the calibrated
            logits (1.0) are right; APS and RAPS sets get smaller with a lower
            temperature, and adapt less.
        penalty: float >= 0, for RAPS.
        free_ranks: int >= 0, ranks without a penalty, for RAPS.
        randomized: whether APS and RAPS scores are randomized.
        allow_empty: whether a set may be empty. With `False` each set also
            holds the predicted class, which can only raise the coverage.
        seed: int, for the samples that `temperature="fit"` takes, and for the
            hash of `randomized=True`.
        **kwargs: `name`, as in Keras.

    Call arguments:
        logits: calibrated logits, `(batch, num_classes)`, or `(batch, 1)`
            before one sigmoid.

    Returns:
        bool, `(batch, num_classes)`; two classes for one sigmoid.

    Raises:
        ValueError: if an argument is out of range, or `randomized` with
            `"lac"`. In `adapt`: for too few samples.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> logits = 2 * rng.normal(size=(2000, 5))
        >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        >>> layer = kc.layers.ConformalSets(coverage=0.9)
        >>> sets = layer.adapt(logits[:1000], labels[:1000])(logits[1000:])
        >>> covered = np.asarray(sets)[np.arange(1000), labels[1000:]]
        >>> bool(0.87 < covered.mean() < 0.93)
        True

    Reference:
        LAC: Sadinle et al., "Least Ambiguous Set-Valued Classifiers with
        Bounded Error Levels", JASA 2019. APS: Romano et al., "Classification
        with Valid and Adaptive Coverage", NeurIPS 2020. RAPS: Angelopoulos et
        al., "Uncertainty Sets for Image Classifiers using Conformal
        Prediction", ICLR 2021. Temperature: Xi et al., "Does Confidence
        Calibration Improve Conformal Prediction?", TMLR 2025.
    """

    settings = (
        "method",
        "coverage",
        "temperature",
        "penalty",
        "free_ranks",
        "randomized",
        "allow_empty",
        "seed",
    )

    def __init__(
        self,
        *,
        method: str = "lac",
        coverage: float = 0.9,
        temperature: float | str = 1.0,
        penalty: float = 0.01,
        free_ranks: int = 5,
        randomized: bool = False,
        allow_empty: bool = True,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        require_one_of(METHODS, method=method)
        require_fraction(coverage=coverage)
        require_flags(randomized=randomized, allow_empty=allow_empty)
        valid = (
            temperature == "fit"
            if isinstance(temperature, str)
            else is_number(temperature) and 0 < temperature < math.inf
        )
        if not valid:
            raise ValueError(
                '`temperature` must be a number above 0, or "fit". '
                f"Received: temperature={temperature!r}."
            )
        require_at_least(0, penalty=penalty)
        require_integer(0, free_ranks=free_ranks, seed=seed)
        if randomized and method == "lac":
            raise ValueError(
                "`randomized=True` needs scores that are sums over classes. "
                'Received: method="lac". Use "aps" or "raps".'
            )
        self.method = method
        self.coverage = coverage
        self.temperature = temperature
        self.penalty = penalty
        self.free_ranks = free_ranks
        self.randomized = randomized
        self.allow_empty = allow_empty
        self.seed = seed

    def build(self, input_shape: tuple) -> None:
        self._add("threshold", -math.inf, trainable=False)
        fixed = self.temperature != "fit"
        self._add(
            "used_temperature",
            self.temperature if fixed else 1.0,
            trainable=False,
        )
        self.built = True

    def call(self, logits: Tensor) -> Tensor:
        z = classes(logits)
        log_p = _log_softmax(z, self.used_temperature, ops)
        u = self._uniform(z, ops)
        sets = self._conformity(log_p, ops, u) >= self.threshold
        if self.allow_empty:
            return sets
        top = first_largest(log_p)[..., None]
        # From 0: `jax2onnx` 0.17 fails where only the end is given.
        each = ops.arange(0, z.shape[-1], dtype="int32")
        return ops.logical_or(sets, each == top)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return (*input_shape[:-1], max(2, input_shape[-1]))

    def solve(self, logits: np.ndarray, labels: np.ndarray) -> tuple:
        temperature, used = self.temperature, np.ones(len(labels), bool)
        if temperature == "fit":
            order = generator(self.seed).permutation(len(labels))
            used[order[: max(1, int(TUNING * len(labels)))]] = False
            temperature = self._smallest_sets(logits[~used], labels[~used])
        if not used.any():
            raise ValueError(
                'With `temperature="fit"` at least 2 samples are needed. '
                f"Received: {len(labels)}."
            )
        conformity, terms = self._at(logits[used], temperature)
        threshold, rank = self._threshold(conformity, labels[used], terms)
        n = int(used.sum())
        if rank > n:
            warn(
                f"{n} samples are too few for a coverage of {self.coverage}: "
                "every set holds all classes. Use at least "
                f"{_least_samples(self.coverage)}."
            )
        return (
            {"threshold": threshold, "used_temperature": temperature},
            {
                "num_samples_for_threshold": n,
                "expected_coverage": min(rank / (n + 1), 1.0),
                "mean_size": float(self._sizes(conformity, threshold).mean()),
                "temperature": float(temperature),
            },
        )

    def _sizes(self, conformity, threshold):
        """How many classes the set of each row has."""
        sizes = (conformity >= threshold).sum(axis=1)
        return sizes if self.allow_empty else np.maximum(sizes, 1)

    def _threshold(self, conformity, labels, terms):
        """The conformity that a class needs, and its rank.

        Args:
            conformity: of all classes, `(n, num_classes)`.
            labels: class ids, `(n,)`.
            terms: the larger of the numbers whose difference it is.
        """
        n = len(labels)
        # Not in floating point, where 0.07 * 100 is above 7.
        rank = math.ceil((n + 1) * Fraction(str(self.coverage)))
        if rank > n:
            return -np.inf, rank
        own = np.sort(conformity[np.arange(n), labels])[::-1]
        value = float(own[rank - 1])
        # Towards more coverage, by what float32 may round off: of a logarithm
        # near 0, of a sum of probabilities that may be tiny, and of a
        # difference, which can be far less than its terms.
        if self.method == "lac":
            return value - 1e-6 * max(1.0, abs(value)), rank
        near = np.abs(conformity - value) <= 1e-5 * terms
        size = max(abs(value), terms[near].max(initial=0.0))
        if size < arrays.TINY:  # in float32 it can be 0
            return -arrays.TINY, rank
        return value - 1e-5 * size, rank

    def _at(self, logits, temperature):
        """The conformity of all classes, and the larger of its terms."""
        log_p = _log_softmax(logits, temperature, np)
        tail, lost = self._terms(log_p, np, self._uniform(logits, np))
        return tail - lost, np.maximum(np.abs(tail), lost)

    def _uniform(self, z, xp):
        """One number in [0, 1) for each row, `(..., 1)`, by its content.

            u = sum_k c_k floor(4096 (max z - z_k)) mod P / P

        with whole numbers `c_k` drawn once; a second sum adds digits. P^2 is
        below 2^31, so that int32 holds the products. `None` if scores are not
        randomized.
        """
        if not self.randomized:
            return None
        num_classes = z.shape[-1]
        coefficients = generator(self.seed, 1).integers(
            1, PRIME, (2, num_classes), "int32"
        )
        # Float32, as in the layer; far below the maximum nothing is seen.
        below = row_max(z, xp, keepdims=True) - z
        below = minimum(below, 1000.0, xp)
        digits = (
            ops.cast(4096 * below, "int32")
            if xp is ops
            else ((4096 * below.astype("float32")).astype("int32"))
        )
        digits, u = digits % PRIME, 0.0
        for c in coefficients:
            # As an array of NumPy it would make a traced graph of torch keep
            # the product for the one sample that it is traced with.
            c = xp.array(c)
            total = xp.sum(digits * c % PRIME, axis=-1, keepdims=True) % PRIME
            if xp is ops:
                total = ops.cast(total, "float32")
            u = (u + total) / PRIME
        return u

    def _smallest_sets(self, logits, labels):
        def size(temperature):
            conformity, terms = self._at(logits, temperature)
            threshold, _ = self._threshold(conformity, labels, terms)
            total = self._sizes(conformity, threshold).sum()
            return total, abs(np.log(temperature))

        return float(min(TEMPERATURES, key=size))

    def _conformity(self, log_p, xp, u=None):
        """Minus the score but for a constant: large for likely classes."""
        tail, lost = self._terms(log_p, xp, u)
        return tail - lost

    def _terms(self, log_p, xp, u):
        """The conformity, as a number and what is taken off it.

            LAC     log p_k
            APS     the sum of p over less likely classes, plus u p_k if
                    randomized
            RAPS    that of APS, minus penalty max(r - free_ranks, 0), with
                    r = 1 for the most likely class

        The usual score of APS sums over more likely classes. It is 1 minus
        this, and in float32 it comes to 1 for all unlikely classes.
        """
        if self.method == "lac":
            return log_p, 0.0
        order = descending_order(log_p, xp)
        rank = ranks_of(order, xp)
        ascending = xp.flip(take(xp.exp(log_p), order, xp), -1)
        # Not the sum up to a class minus its own: next to a probability of 1
        # the others would be lost.
        others = ascending[..., :-1]
        others = xp.concatenate([xp.zeros_like(log_p[..., :1]), others], -1)
        below = xp.flip(running_sum(others, xp), -1)
        tail = take(below, rank, xp)
        if u is not None:
            tail = tail + u * xp.exp(log_p)
        if self.method == "aps":
            return tail, 0.0
        excess = xp.maximum(rank + 1 - self.free_ranks, 0)
        if xp is ops:
            excess = ops.cast(excess, tail.dtype)
        return tail, self.penalty * excess


def _log_softmax(logits, temperature, xp):
    """Of logits over a temperature; first without what they have in common.

    Dividing would round it to other digits in each class.
    """
    z = (logits - row_max(logits, xp, keepdims=True)) / temperature
    return arrays.log_softmax(z) if xp is np else ops.log_softmax(z, axis=-1)


def _least_samples(coverage):
    """Smallest n with `ceil((n + 1) coverage) <= n`."""
    coverage = Fraction(str(coverage))
    return math.ceil(coverage / (1 - coverage))
