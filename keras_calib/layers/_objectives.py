"""The objectives that calibration layers minimize, one class each.

All arithmetic is NumPy on scores before softmax; sums are float64. An
objective is a weighted mean over samples or a calibration error.
"""

import numpy as np

from keras_calib.evaluation.confidence_error import expected_calibration_error
from keras_calib.inputs import arrays
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_at_least
from keras_calib.inputs.arguments import require_fraction
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.arguments import require_positive
from keras_calib.ops import soft_bins
from keras_calib.ops.binning import centers
from keras_calib.ops.binning import interior_edges
from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import TINY64
from keras_calib.solvers.blocks import normalized_weights
from keras_calib.solvers.blocks import row_blocks

Array = np.ndarray


class Objective:
    """Base of the objectives: a number computed from scores and labels.

    Attributes:
        name: the name in `adapt(objective=...)` and in the record.
        is_plain_nll: whether it is the negative log-likelihood of the labels.
        per_sample: whether the objective is a mean of one loss per sample,
            which class-wise loss scaling needs.
        of_confidence: whether it depends only on confidence and correctness
            of the predictions.
        is_cross_entropy: whether it is the negative log-likelihood of the
            labels, smoothed or not.
        smoothing: the weight of the uniform distribution in the labels.
        settings: names of the arguments, which are attributes.
    """

    name: str | None = None
    is_plain_nll = False
    per_sample = True
    of_confidence = False
    is_cross_entropy = False
    smoothing = 0.0
    settings: tuple[str, ...] = ()

    def losses(self, scores: Array, labels: Array) -> Array:
        """One loss per sample, float64, `(n,)`; if `per_sample`."""
        raise NotImplementedError

    def value(
        self, scores: Array, labels: Array, sample_weight: Array | None = None
    ) -> float:
        """The objective.

        Args:
            scores: the map's output before softmax, `(n, num_classes)`.
            labels: int class ids, `(n,)`.
            sample_weight: `None`, or weights >= 0, `(n,)`; a constant factor
                changes nothing.
        """
        losses = self.losses(scores, labels)
        return float(np.average(losses, weights=sample_weight))

    def value_and_gradient(
        self, scores: Array, labels: Array, sample_weight: Array | None = None
    ) -> tuple[float, Array]:
        """The objective, and its derivative with respect to every score.

        Returns:
            value: float.
            gradient: `(n, num_classes)`, in the dtype of the scores.
        """
        raise NotImplementedError

    def losses_and_gradients(
        self, scores: Array, labels: Array
    ) -> tuple[Array, Array]:
        """Each sample's loss and its gradient; if `per_sample`.

        Returns:
            losses: see `losses`.
            gradients: `(n, num_classes)`, in the dtype of the scores.
        """
        _, gradient = self.value_and_gradient(scores, labels)
        gradient = len(labels) * gradient
        return self.losses(scores, labels), gradient.astype(scores.dtype)

    @property
    def title(self) -> str | None:
        """The name in the record."""
        return self.name

    def arguments(self) -> dict:
        """The arguments as JSON values, for the record."""
        return {name: getattr(self, name) for name in self.settings}


class _LogProbabilityObjective(Objective):
    """Base of the losses of one sample's log-probabilities."""

    def losses(self, scores: Array, labels: Array) -> Array:
        return self._losses(*_log_probabilities(scores, labels))

    def _losses(self, log_p, label_log_p):
        """Losses from log-probabilities, and those of the labels."""
        raise NotImplementedError

    def value_and_gradient(
        self, scores: Array, labels: Array, sample_weight: Array | None = None
    ) -> tuple[float, Array]:
        weights = normalized_weights(sample_weight, len(labels))
        losses, gradient = self.losses_and_gradients(scores, labels)
        gradient *= weights[:, None].astype(gradient.dtype)
        return float(weights @ losses), gradient


class NegativeLogLikelihoodObjective(_LogProbabilityObjective):
    """`mean(-log p_y)`, the default objective."""

    name = "nll"
    is_plain_nll = True
    is_cross_entropy = True

    def _losses(self, log_p, label_log_p):
        if not self.smoothing:
            return -label_log_p
        mean = log_p.mean(axis=1, dtype="float64")
        return -((1 - self.smoothing) * label_log_p + self.smoothing * mean)

    def losses_and_gradients(
        self, scores: Array, labels: Array
    ) -> tuple[Array, Array]:
        log_p, label_log_p = _log_probabilities(scores, labels)
        losses = self._losses(log_p, label_log_p)
        # d loss / d score_k = p_k - target_k
        gradient = np.exp(log_p, out=log_p)
        if self.smoothing:
            gradient -= self.smoothing / scores.shape[1]
        gradient[np.arange(len(labels)), labels] -= 1 - self.smoothing
        return losses, gradient


class LabelSmoothingObjective(NegativeLogLikelihoodObjective):
    """Cross-entropy to labels mixed with the uniform distribution.

    Args:
        smoothing: float in `[0, 1)`, the weight of the uniform distribution.

    Raises:
        ValueError: if `smoothing` is out of range.
    """

    name = "label_smoothing"
    is_plain_nll = False
    settings = ("smoothing",)

    def __init__(self, *, smoothing: float = 0.05) -> None:
        require_fraction(zero=True, smoothing=smoothing)
        self.smoothing = smoothing


class FocalObjective(_LogProbabilityObjective):
    """`mean(-(1 - p_y)^gamma log p_y)`, with its true gradient.

    Args:
        gamma: float >= 0.

    Raises:
        ValueError: if `gamma` is negative.
    """

    name = "focal"
    settings = ("gamma",)

    def __init__(self, *, gamma: float = 3.0) -> None:
        require_at_least(0, gamma=gamma)
        self.gamma = gamma

    def _losses(self, log_p, label_log_p):
        return -((-np.expm1(label_log_p)) ** self.gamma) * label_log_p

    def losses_and_gradients(
        self, scores: Array, labels: Array
    ) -> tuple[Array, Array]:
        log_p, label_log_p = _log_probabilities(scores, labels)
        losses = self._losses(log_p, label_log_p)
        one_minus_p = np.maximum(-np.expm1(label_log_p), TINY64)
        p = np.exp(label_log_p)
        # d loss / d log p_y
        slope = self.gamma * one_minus_p ** (self.gamma - 1) * p * label_log_p
        slope -= one_minus_p**self.gamma
        # d log p_y / d score_k = [k = y] - p_k
        gradient = np.exp(log_p, out=log_p)
        np.negative(gradient, out=gradient)
        gradient[np.arange(len(labels)), labels] += 1
        gradient *= slope[:, None].astype(gradient.dtype)
        return losses, gradient


class _ConfidenceObjective(Objective):
    """Base of the calibration errors."""

    per_sample = False
    of_confidence = True

    def of(
        self, confidence: Array, correct: Array, weights: Array | None = None
    ) -> float:
        """The error, from confidence and correctness, each `(n,)`."""
        raise NotImplementedError

    def value(
        self, scores: Array, labels: Array, sample_weight: Array | None = None
    ) -> float:
        confidence, correct = confidences(scores, labels)
        return self.of(confidence, correct, sample_weight)


def _check_norm(norm):
    require(
        is_number(norm) and norm >= 1,
        "`norm` is the order of a norm, at least 1.",
        norm=norm,
    )


class ExpectedCalibrationErrorObjective(_ConfidenceObjective):
    """ECE with hard bins of equal width: a step function, without a gradient.

    Args:
        num_bins: int.
        norm: 1, 2 or `inf`.

    Raises:
        ValueError: if an argument is out of range.

    Reference:
        Karandikar et al., "Soft Calibration Objectives for Neural Networks",
        NeurIPS 2021, Appendix C (TS-HB-ECE).
    """

    name = "ece"
    settings = ("num_bins", "norm")

    def __init__(self, *, num_bins: int = 15, norm: float = 1) -> None:
        require_integer(1, num_bins=num_bins)
        _check_norm(norm)
        self.num_bins = num_bins
        self.norm = norm

    def of(
        self, confidence: Array, correct: Array, weights: Array | None = None
    ) -> float:
        return expected_calibration_error(
            confidence, correct, self.num_bins, norm=self.norm, weights=weights
        )


class SoftBinnedECEObjective(_ConfidenceObjective):
    """ECE with soft bins: `u_j(c) = softmax_j(-(c - x_j)^2 / temperature)`.

    The formula is that of `kc.losses.soft_binned_ece`; the defaults are those
    of a fit to all samples at once, not of a batch.

    Args:
        num_bins: int.
        temperature: float > 0, how soft the bins are; the paper tunes it and
            prints none.
        norm: float >= 1, the power `p`.
        form: `"bin"`, the error of each bin's means, or `"label"`, the error
            of each confidence against its bins' accuracies.

    Raises:
        ValueError: if an argument is out of range.

    Reference:
        Karandikar et al., "Soft Calibration Objectives for Neural Networks",
        NeurIPS 2021, equations 8 to 12 (TS-SB-ECE).
    """

    name = "soft_binned_ece"
    settings = ("num_bins", "temperature", "norm", "form")

    def __init__(
        self,
        *,
        num_bins: int = 15,
        temperature: float = 0.01,
        norm: float = 2,
        form: str = "bin",
    ) -> None:
        require_one_of(("bin", "label"), form=form)
        require_integer(1, num_bins=num_bins)
        _check_norm(norm)
        require_positive(temperature=temperature)
        self.num_bins = num_bins
        self.temperature = temperature
        self.norm = norm
        self.form = form

    def of(
        self, confidence: Array, correct: Array, weights: Array | None = None
    ) -> float:
        weights = normalized_weights(weights, len(confidence))
        middle = centers(interior_edges(self.num_bins))
        blocks = row_blocks(len(confidence), self.num_bins, 2 * IN_CACHE)

        columns = weights, confidence, correct

        def members(rows):
            return soft_bins.memberships(
                confidence[rows], middle, self.temperature
            )

        def sums(rows):
            parts = (column[rows] for column in columns)
            return np.stack(soft_bins.soft_bin_sums(members(rows), *parts))

        size, *totals = np.sum([sums(rows) for rows in blocks], axis=0)
        mean, accuracy = (soft_bins.bin_mean(total, size) for total in totals)
        if self.form == "bin":
            error = soft_bins.bin_error(size, mean, accuracy, self.norm)
        else:
            error = sum(
                soft_bins.label_error(
                    members(rows),
                    weights[rows],
                    confidence[rows],
                    accuracy,
                    self.norm,
                )
                for rows in blocks
            )
        return float(error ** (1 / self.norm))


NAMES: dict[str | None, type[Objective]] = {
    objective.name: objective
    for objective in (
        NegativeLogLikelihoodObjective,
        LabelSmoothingObjective,
        FocalObjective,
        SoftBinnedECEObjective,
        ExpectedCalibrationErrorObjective,
    )
}


def confidences(scores, labels):
    """Confidence and correctness of each prediction, float64, `(n,)`."""
    largest = scores.max(axis=1, keepdims=True)
    total = np.exp(scores - largest).sum(axis=1, dtype="float64")
    correct = scores.argmax(axis=1) == labels
    return 1 / total, correct.astype("float64")


def _log_probabilities(scores, labels):
    """Log-probabilities, and those of the labels as float64."""
    log_p = arrays.log_softmax(scores)
    return log_p, log_p[np.arange(len(labels)), labels].astype("float64")
