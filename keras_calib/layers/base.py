"""What every calibration map shares: a layer on logits that adapts to data."""

import keras
import numpy as np

from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import two_classes
from keras_calib.inputs.predictions import calibration_data
from keras_calib.layers.class_loss_scaling import fit_with_scaling
from keras_calib.layers.class_loss_scaling import resolve_scaling
from keras_calib.layers.objectives import resolve_objective


class CalibrationLayer(keras.layers.Layer):
    """Base of the maps: logits in, calibrated logits out.

    A subclass starts as the identity, and implements `fit`, which returns new
    weights instead of setting them: a failed fit leaves the layer as it was.

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
        parametric: whether `fit` minimises a mean of losses, so that
            class-wise loss scaling means something.
    """

    preserves_accuracy = False
    shift_invariant = False
    binary_only = False
    objectives = ("nll",)
    parametric = True

    def __init__(self, record=None, **kwargs):
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self.record = record

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
        objective = resolve_objective(objective, self)
        scaling = resolve_scaling(class_loss_scaling, self, objective)
        logits, labels, weight, num_samples = calibration_data(
            logits, labels, sample_weight, ignore_class
        )
        check_possible(logits, labels)
        if self.binary_only and logits.shape[-1] > 2:
            raise ValueError(
                f"{type(self).__name__} is for two classes. Received: logits "
                f"of {logits.shape[-1]} classes."
            )
        if not self.built:
            self.build((None, logits.shape[-1]))
        given = logits
        if given.shape[-1] == 1:
            logits = two_classes(given)
        if scaling is None:
            weights, record = self.fit(logits, labels, weight, objective)
        else:
            weights, record = fit_with_scaling(
                self,
                logits,
                labels,
                weight,
                objective,
                scaling,
                lambda weights, rows: self._scores(weights, given[rows]),
            )
            scaling = scaling.normalization
        self._assign(weights)
        self.record = {
            "num_samples": num_samples,
            "objective": objective.title,
            "objective_arguments": objective.arguments(),
            "class_loss_scaling": scaling,
            **record,
        }
        return self

    def _scores(self, weights, logits):
        """The map's output under weights that it does not keep."""
        before = {
            name: np.array(as_array(getattr(self, name).value))
            for name in weights
        }
        try:
            self._assign(weights)
            scores = as_array(self(logits))
        finally:
            self._assign(before)
        return two_classes(scores) if scores.shape[-1] == 1 else scores

    def _assign(self, weights):
        """Set weights by name: all of them, or none where one does not fit."""
        for name, value in weights.items():
            shape = tuple(getattr(self, name).shape)
            if np.shape(value) != shape:
                raise ValueError(
                    f"{type(self).__name__} was built for other logits: its "
                    f"weight `{name}` has shape {shape}. Received: "
                    f"{np.shape(value)}. Adapt a new layer."
                )
            if np.isnan(value).any():
                raise ValueError(
                    f"The fit of {type(self).__name__} failed: its weight "
                    f"`{name}` is not a number. Check the calibration data."
                )
        for name, value in weights.items():
            getattr(self, name).assign(value)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "record": self.record}


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
