"""What a calibration map minimises: one object per objective.

`adapt` resolves its argument `objective` here, and hands the object to `fit`.
All arithmetic is NumPy on scores before softmax; sums are float64. An
objective is a weighted mean over samples, or a calibration error of them.
"""

import keras
import numpy as np
from keras import ops

from keras_calib.evaluation.bin_sums import expected_calibration_error
from keras_calib.inputs import arrays
from keras_calib.inputs.arrays import as_array


class Objective:
    """Base: a number to minimise, as a function of the map's output.

    Attributes:
        name: what `adapt(objective=...)` calls it, and the record.
        is_plain_nll: whether it is the negative log-likelihood itself, which
            most maps minimise with a solver of its own.
        per_sample: whether it is a mean of one loss per sample. Only such
            objectives have class losses, and so class-wise loss scaling.
        of_confidence: whether it depends on confidence and correctness of the
            predictions alone.
    """

    name = None
    is_plain_nll = False
    per_sample = True
    of_confidence = False

    def losses(self, scores, labels):
        """One loss per sample, float64, `(n,)`; if `per_sample`."""
        raise NotImplementedError

    def value(self, scores, labels, weight=None):
        """The objective as a float.

        Args:
            scores: the map's output before softmax, `(n, num_classes)`.
            labels: int class ids, `(n,)`.
            weight: `None`, or weights >= 0, `(n,)`.

        Returns:
            float: a mean over weights, whatever their sum.
        """
        return float(np.average(self.losses(scores, labels), weights=weight))

    def value_and_gradient(self, scores, labels, weight=None):
        """The objective, and its derivative with respect to every score.

        Returns:
            value: float.
            gradient: `(n, num_classes)`, in the dtype of the scores.
        """
        raise NotImplementedError

    @property
    def title(self):
        """What the record calls it."""
        return self.name

    def arguments(self):
        """The arguments as JSON values, for the record."""
        return {}


class NegativeLogLikelihood(Objective):
    """`mean(-log p_y)`, the objective of nearly every map."""

    name = "nll"
    is_plain_nll = True
    smoothing = 0.0

    def losses(self, scores, labels):
        log_p = arrays.log_softmax(scores)
        chosen = log_p[np.arange(len(labels)), labels].astype("float64")
        if not self.smoothing:
            return -chosen
        mean = log_p.mean(axis=1, dtype="float64")
        return -((1 - self.smoothing) * chosen + self.smoothing * mean)

    def value_and_gradient(self, scores, labels, weight=None):
        share = _shares(weight, len(labels))
        log_p = arrays.log_softmax(scores)
        rows = np.arange(len(labels))
        chosen = log_p[rows, labels].astype("float64")
        value = -(1 - self.smoothing) * float(share @ chosen)
        if self.smoothing:
            mean = log_p.mean(axis=1, dtype="float64")
            value -= self.smoothing * float(share @ mean)
        gradient = np.exp(log_p, out=log_p)
        gradient -= self.smoothing / scores.shape[1]
        gradient[rows, labels] -= 1 - self.smoothing
        gradient *= share[:, None].astype(gradient.dtype)
        return value, gradient


class LabelSmoothing(NegativeLogLikelihood):
    """Cross-entropy to labels mixed with the uniform distribution.

    Args:
        smoothing: float in `[0, 1)`, the share of the uniform distribution.
    """

    name = "label_smoothing"
    is_plain_nll = False

    def __init__(self, smoothing=0.05):
        if not 0 <= smoothing < 1:
            raise ValueError(
                "`smoothing` is a share of at least 0 and below 1. "
                f"Received: smoothing={smoothing}."
            )
        self.smoothing = smoothing

    def arguments(self):
        return {"smoothing": self.smoothing}


class Focal(Objective):
    """`mean(-(1 - p_y)^gamma log p_y)`, with its true gradient.

    Args:
        gamma: float >= 0.
    """

    name = "focal"

    def __init__(self, gamma=3.0):
        if not gamma >= 0:
            raise ValueError(f"`gamma` must be >= 0. Received: gamma={gamma}.")
        self.gamma = gamma

    def losses(self, scores, labels):
        log_p = arrays.log_softmax(scores)[np.arange(len(labels)), labels]
        log_p = log_p.astype("float64")
        return -((-np.expm1(log_p)) ** self.gamma) * log_p

    def value_and_gradient(self, scores, labels, weight=None):
        share = _shares(weight, len(labels))
        rows = np.arange(len(labels))
        log_p = arrays.log_softmax(scores)
        chosen = log_p[rows, labels].astype("float64")
        other = np.maximum(-np.expm1(chosen), 1e-300)
        value = -float(share @ (other**self.gamma * chosen))
        # d loss / d log p_y
        slope = (
            self.gamma * other ** (self.gamma - 1) * np.exp(chosen) * chosen
            - other**self.gamma
        )
        # d log p_y / d score_k = [k = y] - p_k
        gradient = np.exp(log_p, out=log_p)
        np.negative(gradient, out=gradient)
        gradient[rows, labels] += 1
        gradient *= (share * slope)[:, None].astype(gradient.dtype)
        return value, gradient

    def arguments(self):
        return {"gamma": self.gamma}


class _OfConfidence(Objective):
    """A calibration error of the predictions' confidence."""

    per_sample = False
    of_confidence = True

    def of(self, confidence, correct, weight=None):
        """The error from confidence and correctness, each `(n,)`."""
        raise NotImplementedError

    def value(self, scores, labels, weight=None):
        return self.of(*confidences(scores, labels), weight)


class ExpectedCalibrationError(_OfConfidence):
    """ECE with hard bins of equal width: piecewise, without a gradient.

    Args:
        num_bins: int.
        norm: 1, 2 or `inf`.

    Reference:
        Karandikar et al., "Soft Calibration Objectives for Neural Networks",
        NeurIPS 2021, Appendix C (TS-HB-ECE).
    """

    name = "ece"

    def __init__(self, num_bins=15, norm=1):
        self.num_bins = num_bins
        self.norm = norm

    def of(self, confidence, correct, weight=None):
        return expected_calibration_error(
            confidence, correct, self.num_bins, norm=self.norm, weights=weight
        )

    def arguments(self):
        return {"num_bins": self.num_bins, "norm": self.norm}


class SoftBinnedECE(_OfConfidence):
    """ECE with soft bins: `u_j(c) = softmax_j(-(c - xi_j)^2 / temperature)`.

    Args:
        num_bins: int.
        temperature: float > 0, how soft the bins are; the paper tunes it and
            prints none.
        norm: float >= 1, the power `p`.
        form: `"bin"`, the error of each bin's means, or `"label"`, the error
            of each confidence against its bins' accuracies.

    Reference:
        Karandikar et al., "Soft Calibration Objectives for Neural Networks",
        NeurIPS 2021, equations 8 to 12 (TS-SB-ECE).
    """

    name = "soft_binned_ece"

    def __init__(self, num_bins=15, temperature=0.01, norm=2, form="bin"):
        if form not in ("bin", "label"):
            raise ValueError(
                f'`form` must be "bin" or "label". Received: form={form!r}.'
            )
        self.num_bins = num_bins
        self.temperature = temperature
        self.norm = norm
        self.form = form

    def of(self, confidence, correct, weight=None):
        share = _shares(weight, len(confidence))
        centers = (np.arange(self.num_bins) + 0.5) / self.num_bins
        total = np.zeros(self.num_bins)
        sums = np.zeros((2, self.num_bins))
        parts = [slice(i, i + 8192) for i in range(0, len(confidence), 8192)]
        for part in parts:
            member = self._membership(confidence[part], centers)
            weighted = share[part, None] * member
            total += weighted.sum(axis=0)
            sums[0] += confidence[part] @ weighted
            sums[1] += correct[part] @ weighted
        mean, accuracy = sums / np.maximum(total, 1e-300)
        if self.form == "bin":
            error = total @ np.abs(accuracy - mean) ** self.norm
        else:
            error = 0.0
            for part in parts:
                member = self._membership(confidence[part], centers)
                gap = np.abs(accuracy - confidence[part, None]) ** self.norm
                error += share[part] @ (member * gap).sum(axis=1)
        return float(error ** (1 / self.norm))

    def _membership(self, confidence, centers):
        return np.exp(
            arrays.log_softmax(
                -((confidence[:, None] - centers) ** 2) / self.temperature
            )
        )

    def arguments(self):
        return {
            "num_bins": self.num_bins,
            "temperature": self.temperature,
            "norm": self.norm,
            "form": self.form,
        }


class KerasLoss(Objective):
    """Any loss object, on logits or on the probabilities it expects.

    All calibration samples are one batch, so the statistic of a batch is that
    of the calibration data.

    Args:
        loss: a `keras.losses.Loss`.
    """

    name = "loss"

    def __init__(self, loss):
        self.loss = loss
        config = loss.get_config()
        self.from_logits = config.get("from_logits", False)
        # Ids for Keras' own sparse losses, and for losses that read both.
        self.sparse = "sparse" in type(loss).__name__.lower() or (
            "ignore_class" in config
        )
        self.per_sample = not _has_batch_statistic(loss)

    @property
    def title(self):
        return type(self.loss).__name__

    def losses(self, scores, labels):
        targets, predictions = self._arguments(
            ops.convert_to_tensor(scores), labels
        )
        values = as_array(self.loss.call(targets, predictions))
        if values.shape != (len(labels),):
            raise ValueError(
                "Class-wise loss scaling needs one loss per sample. Received: "
                f"values of shape {values.shape} from "
                f"{type(self.loss).__name__}."
            )
        return values.astype("float64")

    def value(self, scores, labels, weight=None):
        scores = ops.convert_to_tensor(scores)
        return float(as_array(self._mean(scores, labels, weight)))

    def value_and_gradient(self, scores, labels, weight=None):
        return _value_and_gradient(
            lambda tensor: self._mean(tensor, labels, weight), scores
        )

    def _arguments(self, scores, labels):
        targets = ops.convert_to_tensor(labels)
        if not self.sparse:
            targets = ops.one_hot(targets, scores.shape[-1])
        if not self.from_logits:
            # This softmax carries its logits, so a Keras loss stays exact.
            scores = keras.activations.softmax(scores)
        return targets, scores

    def _mean(self, scores, labels, weight):
        if weight is not None:
            weight = (weight * (len(weight) / weight.sum())).astype("float32")
        value = self.loss(*self._arguments(scores, labels), weight)
        if self.loss.reduction == "sum":
            return value / len(labels)
        return ops.mean(value)


NAMES = {
    objective.name: objective
    for objective in (
        NegativeLogLikelihood,
        LabelSmoothing,
        Focal,
        SoftBinnedECE,
        ExpectedCalibrationError,
    )
}


def resolve_objective(objective, layer):
    """The objective that `adapt` was given, as an object.

    Args:
        objective: a name, an `Objective` or a `keras.losses.Loss`.
        layer: the calibration layer, which knows what it supports.

    Returns:
        `Objective`.

    Raises:
        ValueError: if there is no such objective, or not for this map.
    """
    if isinstance(objective, str) and objective in NAMES:
        objective = NAMES[objective]()
    elif isinstance(objective, keras.losses.Loss):
        objective = KerasLoss(objective)
    elif not isinstance(objective, Objective):
        raise ValueError(
            f"`objective` must be one of {sorted(NAMES)} or a loss object. "
            f"Received: objective={objective!r}."
        )
    if objective.name not in layer.objectives:
        supported = ", ".join(
            "a loss object" if name == "loss" else f'"{name}"'
            for name in layer.objectives
        )
        raise ValueError(
            f"{type(layer).__name__} cannot minimise this objective. "
            f'Received: objective="{objective.name}". It can minimise: '
            f"{supported}."
        )
    return objective


def confidences(scores, labels):
    """Confidence and correctness of each prediction, float64, `(n,)`."""
    largest = scores.max(axis=1, keepdims=True)
    total = np.exp(scores - largest).sum(axis=1, dtype="float64")
    correct = scores.argmax(axis=1) == labels
    return 1 / total, correct.astype("float64")


def _shares(weight, count):
    """Weights that sum to one."""
    if weight is None:
        return np.full(count, 1 / count)
    return weight / weight.sum()


def _has_batch_statistic(loss):
    """Whether a loss, or the primary inside it, is one number per batch."""
    while loss is not None:
        if getattr(loss, "batch_statistic", False):
            return True
        loss = getattr(loss, "primary", None)
    return False


def _value_and_gradient(function, x):
    """A scalar function of one array, and its gradient, as NumPy.

    Keras has no gradient of its own: each backend is asked in its own words.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        x = tf.convert_to_tensor(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = function(x)
        gradient = tape.gradient(value, x)
    elif backend == "jax":
        import jax

        value, gradient = jax.value_and_grad(function)(jax.numpy.asarray(x))
    else:
        x = ops.convert_to_tensor(x).detach().clone().requires_grad_(True)
        value = function(x)
        value.backward()
        gradient = x.grad
    return float(as_array(value)), as_array(gradient)
