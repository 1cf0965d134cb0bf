"""What every calibration map shares: a layer on logits that adapts to data."""

import dataclasses

import keras
import numpy as np

from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import two_classes
from keras_calib.inputs.predictions import calibration_data
from keras_calib.inputs.predictions import relative_weights
from keras_calib.layers._class_loss_scaling import fit_with_scaling
from keras_calib.layers._class_loss_scaling import resolve_scaling
from keras_calib.layers._objectives import NegativeLogLikelihood
from keras_calib.layers._objectives import resolve_objective

# Elements of the logits that are worked on at once.
BLOCK = 1 << 20
# What float32 may take from a likelihood without a word.
ROUNDING = 1e-6


class CalibrationLayer(keras.layers.Layer):
    """Base of the maps: logits in, calibrated logits out.

    A subclass starts as the identity, and implements `fit`, which returns new
    weights instead of setting them: a failed fit leaves the layer as it was,
    and not built if it was not.

    A Keras mask goes through: it says which samples or tokens count, and a map
    changes none of that.

    Maps run in float32 also behind a network of half precision.

    Args:
        record: what `kc.calibrate` found, JSON values; it travels in the file.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Attributes:
        record: see above; `None` before `adapt`.
        preserves_accuracy: whether the map never changes a prediction.
        shift_invariant: whether a constant added to all logits of a sample
            changes nothing, so that `log p` serves as well as logits.
        binary_only: whether the map is for two classes (or one sigmoid).
        objectives: names of what `fit` can minimise; `"loss"` is any loss
            object.
        fitted_by: `"likelihood"`, or `"frequencies"` of labels where `fit`
            minimizes no mean loss; `kc.calibrate` judges a map by it.
        ends_in: what the layer's output is, for `keras_graph`.
        parametric: whether `fit` minimises a mean of losses, so that
            class-wise loss scaling means something.
    """

    preserves_accuracy = False
    shift_invariant = False
    binary_only = False
    objectives = ("nll",)
    parametric = True
    fitted_by = "likelihood"
    ends_in = "linear"
    # Whether float32 can take the output far from what the fit saw: then the
    # record tells the output.
    _rounds = False

    def __init__(self, record=None, **kwargs):
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self.record = record
        self.supports_masking = True

    def degrees_of_freedom(self, num_classes):
        """How many numbers the map learns, for the rule on sample size."""
        raise NotImplementedError

    def as_affine(self, num_classes):
        """The map as `logits @ matrix + bias`, for fusing into a head.

        Returns:
            matrix: a scalar, a diagonal `(num_classes,)` or
                `(num_classes, num_classes)`; NumPy.
            bias: `(num_classes,)`. Or `None` where the map is not affine.
        """
        return None

    def fit(self, logits, labels, weight, objective):
        """Find the best weights without setting them.

        The layer may not be built yet.

        Args:
            logits: float array, `(n, num_classes)`, one row per sample.
            labels: int32 class ids, `(n,)`.
            weight: `None`, or float64 weights, `(n,)`, whose sum is the number
                of samples; soft labels make more rows than samples.
            objective: an `Objective`, one of those in `objectives`; its
                `is_plain_nll` says whether it is the NLL.

        Returns:
            weights: dict from weight name to NumPy array.
            record: dict of JSON values worth telling, e.g. the temperature.
        """
        raise NotImplementedError

    def adapt(
        self,
        logits,
        labels,
        sample_weight=None,
        objective="nll",
        class_loss_scaling=None,
        ignore_class=None,
    ):
        """Fit the map to calibration data, which the network never trained on.

        Args:
            logits: network outputs before softmax, `(..., num_classes)`; or
                `(..., 1)` or `(n,)` before one sigmoid. Arrays, tensors,
                memory maps.
            labels: class ids, `(...)` or `(..., 1)`, or rows, `(...,
                num_classes)`: one-hot, or soft, for which the expected
                objective is minimised.
            sample_weight: `None`, or weights >= 0, which broadcast to `(...)`
                from the left. A constant factor changes nothing.
            objective: what to minimise: `"nll"`, `"label_smoothing"`,
                `"focal"`, `"soft_binned_ece"`, `"ece"`, or a
                `keras.losses.Loss`; `objectives` lists what this map can.
            class_loss_scaling: `None`; or `"normal"`, `"min_max"` or
                `"centered"`, to weigh each class's loss by how large it is
                among the classes.
            ignore_class: samples with this label do not count.

        Returns:
            The layer itself.

        Raises:
            ValueError: for bad input; the layer is then as it was.

        Reference:
            Class-wise loss scaling: Jung et al., "Scaling of Class-wise
            Training Losses for Post-hoc Calibration", ICML 2023.
        """
        rows = read_rows(logits, labels, sample_weight, ignore_class)
        return self.adapt_to_rows(rows, objective, class_loss_scaling)

    def adapt_to_rows(self, rows, objective="nll", class_loss_scaling=None):
        """`adapt` to data that has been read, once for several fits.

        Args:
            rows: `CalibrationRows`, see `read_rows`.
            objective: see `adapt`.
            class_loss_scaling: see `adapt`.

        Returns:
            The layer itself.

        Raises:
            ValueError: as `adapt`; the layer is then as it was.
        """
        objective = resolve_objective(objective, self)
        scaling = resolve_scaling(class_loss_scaling, self, objective)
        logits, labels, weight = rows.logits, rows.labels, rows.weight
        check_objective(logits, objective)
        if self.binary_only and logits.shape[-1] > 2:
            raise ValueError(
                f"{type(self).__name__} is for two classes. Received: logits "
                f"of {logits.shape[-1]} classes."
            )
        given = logits
        if given.shape[-1] == 1:
            logits = two_classes(given)
        if scaling is None:
            weights, record = self.fit(logits, labels, weight, objective)
        else:
            # Scores of weights that this layer may never have.
            twin = type(self).from_config(self.get_config())
            weights, record = fit_with_scaling(
                self,
                logits,
                labels,
                weight,
                objective,
                scaling,
                lambda weights, rows: twin._scores(weights, given[rows]),
            )
            scaling = scaling.normalization
        self._assign(weights, given.shape[-1])
        if self._rounds and scaling is None and "nll_after" in record:
            found = self._nll(given, labels, weight)
            if abs(found - record["nll_after"]) > ROUNDING:
                record["nll_after"] = found
        self.record = {
            "num_samples": rows.num_samples,
            "objective": objective.title,
            "objective_arguments": objective.arguments(),
            "class_loss_scaling": scaling,
            **record,
        }
        return self

    def _scores(self, weights, logits):
        """The map's output under other weights, which it keeps."""
        self._assign(weights, logits.shape[-1])
        scores = as_array(self(logits))
        return two_classes(scores) if scores.shape[-1] == 1 else scores

    def _nll(self, logits, labels, weight):
        """Mean negative log-likelihood of the map's own output."""
        likelihood = NegativeLogLikelihood()
        rows = max(1, BLOCK // logits.shape[1])
        losses = []
        for start in range(0, len(labels), rows):
            scores = as_array(self(logits[start : start + rows]))
            if scores.shape[1] == 1:
                scores = two_classes(scores)
            part = labels[start : start + rows]
            losses.append(likelihood.losses(scores, part))
        return float(np.average(np.concatenate(losses), weights=weight))

    def _assign(self, weights, num_units):
        """Set weights by name: all of them, or none where one does not fit."""
        for name, value in weights.items():
            if not np.isfinite(np.asarray(value, "float32")).all():
                raise ValueError(
                    f"The fit of {type(self).__name__} failed: its weight "
                    f"`{name}` is not a finite number. Check the calibration "
                    "data."
                )
        if not self.built:
            self.build((None, num_units))
        for name, value in weights.items():
            shape = tuple(getattr(self, name).shape)
            if np.shape(value) != shape:
                raise ValueError(
                    f"{type(self).__name__} was built for other logits: its "
                    f"weight `{name}` has shape {shape}. Received: "
                    f"{np.shape(value)}. Adapt a new layer."
                )
        for name, value in weights.items():
            getattr(self, name).assign(value)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "record": self.record}


@dataclasses.dataclass(frozen=True)
class CalibrationRows:
    """Calibration data as a map is fitted to it, read and checked.

    Attributes:
        logits: float32 or float64, `(n, num_classes)`; one column for one
            sigmoid unit; minus infinity for a class that is ruled out.
        labels: int32 class ids, `(n,)`.
        weight: `None` or float64, `(n,)`, with the sum `num_samples`.
        num_samples: how many samples count; soft labels make more rows.
    """

    logits: np.ndarray
    labels: np.ndarray
    weight: np.ndarray | None
    num_samples: int

    def part(self, keep):
        """Some of the rows, by a boolean array or sorted indices, `(n,)`.

        Each row must be a sample.
        """
        weight = None if self.weight is None else self.weight[keep]
        labels = self.labels[keep]
        return CalibrationRows(
            np.asarray(self.logits[keep]),
            labels,
            relative_weights(weight),
            len(labels),
        )


def read_rows(logits, labels, sample_weight=None, ignore_class=None):
    """Read and check what maps are fitted to; see `CalibrationLayer.adapt`.

    Returns:
        `CalibrationRows`.

    Raises:
        ValueError: for bad input, or if no sample is left.
    """
    logits, labels, weight, num_samples = calibration_data(
        logits, labels, sample_weight, ignore_class
    )
    logits = ruled_out(logits)
    check_possible(logits, labels)
    check_size(logits)
    return CalibrationRows(logits, labels, weight, num_samples)


def check_possible(logits, labels):
    """Raise where the network rules out the class of a label."""
    if logits.shape[1] == 1:
        return
    impossible = np.isneginf(logits[np.arange(len(labels)), labels])
    if impossible.any():
        raise ValueError(
            "The network rules out the class of a label: its logit is minus "
            f"infinity. Received: {impossible.sum()} such samples, first in "
            f"{impossible.argmax()}. Leave these samples out."
        )


def check_size(logits):
    """Raise for numbers whose differences a float32 layer cannot hold."""
    if logits.max() >= -LOWEST:
        raise ValueError(
            f"Logits must be below {-LOWEST:.0e}. Received: a logit of "
            f"{logits.max():.3g}. Look for overflow in the network."
        )


def ruled_out(logits):
    """Logits with minus infinity in the place of what is as good as that.

    Masks are often written with the smallest float instead.
    """
    if not logits.min() < LOWEST:
        return logits
    return np.where(logits < LOWEST, -np.inf, logits)


def check_objective(logits, objective):
    """Raise where a class that is ruled out is given a share of a label."""
    if getattr(objective, "smoothing", 0) and np.isneginf(logits.min()):
        raise ValueError(
            "Smoothed labels give every class a share, also one that the "
            "network rules out: no map has a finite loss. Received: a logit "
            f'of minus infinity, objective="{objective.name}". Use '
            'objective="nll", or give such classes a finite logit.'
        )
