"""Calibrated probability estimation (CaPE): train on observed frequencies."""

from typing import Any

import keras
import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib._typing import Logs
from keras_calib.callbacks._fit_outputs import FitOutputs
from keras_calib.callbacks._predicting_callback import PredictingCallback
from keras_calib.data.epoch_numbers import EpochNumbers
from keras_calib.data.indexed_arrays import IndexedArrays
from keras_calib.inputs import label_rules
from keras_calib.inputs import rules
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import as_floats


def empirical_targets(probabilities, labels, num_bins=10, sample_weight=None):
    """The frequency of each class among samples of similar probability.

        t_nk = weighted mean of [y_i = k] over the samples i in the group of n

    For each class `k`, samples are sorted by their probability of `k` and cut
    into groups of equal weight. For two classes, the targets of the first one
    are one minus those of the second. For more classes, which the paper does
    not treat, each row of targets is divided by its sum.

    Args:
        probabilities: shape `(n, num_classes)`.
        labels: class ids, shape `(n,)`.
        num_bins: int, number of groups.
        sample_weight: `None`, or positive weights, shape `(n,)`.

    Returns:
        Rows that sum to one, float32, `(n, num_classes)`.

    Example:
        >>> import numpy as np
        >>> p = np.array([0.1, 0.8, 0.35, 0.55, 0.92, 0.4, 0.05])
        >>> both = np.stack([1 - p, p], axis=-1)
        >>> y = np.array([0, 1, 1, 0, 1, 0, 0])
        >>> targets = empirical_targets(both, y, num_bins=3)
        >>> [round(float(t), 2) for t in targets[:, 1]]
        [0.0, 0.67, 0.5, 0.67, 0.67, 0.5, 0.0]

    Reference:
        Liu et al., "Deep Probability Estimation", ICML 2022, CaPE-bin.
    """
    one_hot = np.eye(probabilities.shape[1])[labels]
    weights = np.ones(len(labels))
    if sample_weight is not None:
        weights = np.asarray(sample_weight, "float64")
    means = [
        _group_means(p, occurred, num_bins, weights)
        for p, occurred in zip(probabilities.T, one_hot.T, strict=True)
    ]
    if len(means) == 2:
        means[0] = 1.0 - means[1]
    targets = np.stack(means, axis=-1)
    total = targets.sum(axis=-1, keepdims=True)
    # If no class occurred in the groups of a sample, keep its label.
    targets = np.where(
        total > 0, targets / np.where(total > 0, total, 1), one_hot
    )
    return targets.astype("float32")


def _group_means(probability, occurred, num_bins, weights):
    """Weighted mean of `occurred` in groups of similar probability, `(n,)`."""
    order = np.argsort(probability, kind="stable")
    size = len(order)
    edges = (np.arange(1, num_bins) * size / num_bins).astype(int)
    # A sample belongs to the group that contains the middle of its weight.
    end = np.cumsum(weights[order])
    middle = (end - weights[order] / 2) * (size / end[-1])
    group = np.empty(size, int)
    group[order] = np.searchsorted(edges, middle, side="right")
    total = np.bincount(group, weights, num_bins)
    hits = np.bincount(group, weights * occurred, num_bins)
    return (hits / np.where(total > 0, total, 1.0))[group]


class EmpiricalTargets(PredictingCallback):
    """Train on observed frequencies instead of labels in some epochs (CaPE).

    Before the first epoch of each cycle, the model predicts the whole training
    data, and this epoch trains on `empirical_targets`: the frequency of each
    class among samples of similar probability. The other epochs train on the
    labels. Start from a network whose training was stopped early. `fit` takes
    the data from the callback, with labels as one-hot rows, so compile with a
    loss for those: `kc.losses` or `CategoricalCrossentropy`. Validation labels
    need the same form, `keras.utils.to_categorical(y_val, num_classes)`:
    Keras takes `metrics=["accuracy"]` for that of one-hot rows, and class ids
    would give a wrong `val_accuracy` (an error here). Pass weights of
    classes as `sample_weight`: for `class_weight`, Keras takes the class with
    the largest target.

    Args:
        x: training arrays, or a list or dict of them.
        y: class ids, `(num_samples,)`.
        sample_weight: weights, or `None`. They act in training and in the
            frequencies; a sample of weight 0 is ignored and keeps its label.
        num_classes: int.
        num_bins: int, number of groups of similar probability.
        cycle: int >= 1, length of a cycle in epochs, which are counted over
            all calls of `fit` with one model.
        from_logits: whether the model returns logits.
        **kwargs: `batch_size` (defaults to 32), `shuffle` (`True`; used
            instead of the argument of `fit`) and `seed` (`None`; with
            an int, a resumed run has the orders of one that was not
            interrupted).

    Attributes:
        data: what `fit` takes.
        targets: the last targets, `(num_samples, num_classes)`.

    Raises:
        ValueError: if an argument is out of range, or there are no samples; in
            `fit`, if the model does not return `num_classes` values per sample,
            trains on other data or with `steps_per_epoch`, or if validation
            labels are class ids where a metric takes rows (which is not found
            with `steps_per_execution` above 1).

    Example:
        >>> import keras, numpy as np, keras_calib as kc
        >>> x, y = np.random.default_rng(0).normal(size=(64, 4)), np.arange(64)
        >>> model = keras.Sequential([keras.layers.Dense(3, "softmax")])
        >>> model.compile("sgd", "categorical_crossentropy")
        >>> cape = kc.callbacks.EmpiricalTargets(x, y % 3, num_classes=3)
        >>> history = model.fit(cape.data, callbacks=[cape], verbose=0)
        >>> cape.targets.shape
        (64, 3)

    Reference:
        Liu et al., "Deep Probability Estimation", ICML 2022; 10 bins and one
        epoch in six, as in the authors' code. More than two classes are our
        reading of it.
    """

    counts_over_fits = True
    if_not_finite = "training goes on with the labels"

    def __init__(
        self,
        x: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        num_classes: int,
        num_bins: int = 10,
        cycle: int = 6,
        from_logits: bool = False,
        **kwargs: Any,
    ) -> None:
        counts = _positive(sample_weight)
        labels = class_ids(y, num_classes, counts)
        super().__init__(
            (x, labels, sample_weight),
            num_bins=num_bins,
            from_logits=from_logits,
        )
        require_integer(1, cycle=cycle)
        self.labels = labels
        self.counts = np.ones(len(labels), bool) if counts is None else counts
        self.one_hot = np.eye(num_classes, dtype="float32")[labels]
        self.cycle = cycle
        self.targets: Any = None
        self._epochs = EpochNumbers()
        self._validation: FitOutputs | None = None
        self.data = IndexedArrays(
            x, self.one_hot, sample_weight, index=False, **kwargs
        )

    def on_train_begin(self, logs: Logs = None) -> None:
        super().on_train_begin(logs)
        self.data.check_steps(self)
        self._validation = FitOutputs(self.model)

    def on_test_begin(self, logs: Logs = None) -> None:
        super().on_test_begin(logs)
        # The first validation in `fit` tells. Then metrics are known, too.
        if self._epoch is None or not _row_metrics(self.model):
            self._validation = None
        if self._validation is not None:
            self._validation.start()

    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None:
        super().on_test_batch_begin(batch, logs)
        if self._validation is not None and batch == 0:
            self._validation.arm()

    def on_test_end(self, logs: Logs = None) -> None:
        validation, self._validation = self._validation, None
        for scores, labels, *_ in validation.collected() if validation else ():
            if labels.shape != scores.shape:
                raise ValueError(
                    "Training labels are one-hot rows here, for which Keras "
                    f"has made {_row_metrics(self.model)}, and of class ids "
                    "these would be wrong. Received: validation labels of "
                    f"shape {labels.shape}. Pass `keras.utils.to_categorical("
                    f"y_val, {self.one_hot.shape[1]})`."
                )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_begin(epoch, logs)
        number = self._epochs.begin(epoch, self.model)
        self.data.start(number)
        found = None if number % self.cycle else self._probabilities()
        if found is None:
            self.data.relabel(self.one_hot)
            return
        probabilities, weights = found
        self.targets = self.one_hot.copy()
        self.targets[self.counts] = empirical_targets(
            probabilities,
            self.labels[self.counts],
            self.num_bins,
            sample_weight=weights,
        )
        self.data.relabel(self.targets)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self.data.check_used(self)
        self._epochs.end()

    def _probabilities(self):
        read = self.predictions()
        if read is None:
            return None
        found = read.probabilities
        expected = (int(self.counts.sum()), self.one_hot.shape[1])
        if found.shape != expected:
            raise ValueError(
                "There is one target per sample and class: the model's output "
                f"has shape {expected}, without a mask. Received: "
                f"predictions for {len(found)} samples and {found.shape[-1]} "
                "classes."
            )
        return found, read.weights

    def _read(self, scores, labels, weights, mask):
        if scores.shape[-1] == 1:
            raise ValueError(
                "Targets are rows of a probability per class. Received: "
                f"predictions of shape {tuple(scores.shape)}, one sigmoid "
                "unit. Give the network two softmax units."
            )
        return super()._read(scores, labels, weights, mask)


def _row_metrics(model):
    """The names of metrics that are silently wrong of class ids."""
    held = [getattr(metric, "metrics", metric) for metric in model.metrics]
    kind = keras.metrics.CategoricalAccuracy
    return [m.name for m in keras.tree.flatten(held) if isinstance(m, kind)]


def _positive(sample_weight):
    """Which samples have a positive weight, `(n,)`; `None` without weights."""
    if sample_weight is None:
        return None
    weights = as_floats(sample_weight, "Sample weights", "float64").reshape(-1)
    rules.check_weights(weights)
    if not weights.any():
        raise ValueError(
            "All weights are 0: there is no sample to learn from. Pass "
            "`sample_weight` with values above 0."
        )
    return weights > 0


def class_ids(y, num_classes, counts=None):
    """Labels of samples as int64 ids, `(n,)`.

    Args:
        y: labels, `(n,)` or `(n, 1)`.
        num_classes: int.
        counts: `None`, or which samples count, `(n,)`. Others may hold
            anything; what is not a class id becomes 0.

    Raises:
        ValueError: if one is not a whole number from 0 to `num_classes - 1`,
            or there is not one per sample.
    """
    require_integer(1, num_classes=num_classes)
    labels = np.asarray(as_array(y))
    if labels.shape[1:] not in ((), (1,)):
        raise ValueError(
            "A sample has one label, a class id. Received: labels of shape "
            f"{labels.shape}. For one-hot rows pass `y.argmax(axis=-1)`."
        )
    labels = labels.reshape(-1)
    label_rules.check_numbers(labels)
    if counts is not None and counts.shape == labels.shape:
        known = np.isin(labels, np.arange(num_classes))
        labels = np.where(counts | known, labels, 0)
    void = "Leave out a sample without a label, or give it a weight of 0"
    label_rules.check_ids(labels, num_classes, void)
    return labels.astype("int64")
