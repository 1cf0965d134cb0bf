"""Dynamic train-time data pruning (DTDP): drop samples of low confidence."""

from typing import Any

import keras
import numpy as np

from keras_calib._typing import ArrayLike
from keras_calib._typing import Logs
from keras_calib.callbacks._correctness_history import check_history
from keras_calib.data.epoch_numbers import EpochNumbers
from keras_calib.data.indexed_arrays import IndexedArrays
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_fraction
from keras_calib.inputs.arguments import require_integer


def smoothed(average, confidence, smoothing):
    """`e <- kappa c + (1 - kappa) e`; the first confidence starts it."""
    moved = smoothing * confidence + (1.0 - smoothing) * average
    return np.where(average == 0, confidence, moved)


def least_confident(average, kept, labels, fraction, min_per_class):
    """Numbers of the kept samples to drop, those with the lowest averages."""
    candidates = np.flatnonzero(kept)
    left = dict(zip(*np.unique(labels[kept], return_counts=True), strict=True))
    # 0.29 of 100 is 28.999999999999996 in floating point.
    number = int(fraction * len(candidates) + 1e-9)
    dropped = []
    for i in candidates[np.argsort(average[candidates], kind="stable")]:
        if len(dropped) == number:
            break
        if left[labels[i]] > min_per_class:
            left[labels[i]] -= 1
            dropped.append(i)
    return np.array(dropped, int)


class DataPruning(keras.callbacks.Callback):
    """Drop the training samples that the network is least confident about.

        average <- smoothing * confidence + (1 - smoothing) * average

    The average of each sample starts at its first confidence, and is updated
    after each epoch with the confidence of its training step. Every `every`
    epochs, the kept samples with the lowest averages are dropped for the rest
    of the training. `fit` takes the data from the callback. Epochs become
    shorter, so a learning-rate schedule that counts steps advances more slowly
    per epoch.

    The model is a `kc.models.SampleHistoryModel`, which has the averages and
    the kept samples among its weights, so an interrupted training resumes with
    the same samples. Void samples and samples of weight 0 have no confidence
    and are never dropped.

    What is here follows a secondary account of the paper, which has
    `smoothing=0.3` and `fraction=0.1`. How many epochs lie between two
    prunings, and that the confidence is that of the predicted class, is our
    choice.

    Args:
        x: training arrays, or a list or dict of them.
        y: labels, class ids or one-hot.
        sample_weight: weights, or `None`.
        fraction: float in `(0, 1)`, fraction of the kept samples to drop.
        every: int, period of the prunings in epochs, which are counted over
            all calls of `fit` with one model.
        smoothing: float in `(0, 1]`, `kappa` in the paper.
        min_per_class: int, number of samples of a class that are always kept.
        **kwargs: `batch_size` (defaults to 32), `shuffle` (`True`; used
            instead of the argument of `fit`) and `seed` (`None`; with
            an int, a resumed run has the orders of one that was not
            interrupted).

    Attributes:
        data: what `fit` takes.
        dropped: numbers of the samples dropped so far, in this order; in a
            resumed run, those of the earlier run come first and are sorted.

    Raises:
        ValueError: if an argument is out of range, or there are no samples;
            when training begins, if the model is not a `SampleHistoryModel`,
            or one of another length; in `fit`, if it trains on other data or
            with `steps_per_epoch`.

    Example:
        >>> import keras, numpy as np, keras_calib as kc
        >>> x, y = np.random.default_rng(0).normal(size=(64, 4)), np.arange(64)
        >>> network = keras.Sequential([keras.layers.Dense(3)])
        >>> model = kc.models.SampleHistoryModel(network, num_samples=len(x))
        >>> model.compile("adam", kc.losses.FocalLoss(from_logits=True))
        >>> pruning = kc.callbacks.DataPruning(x, y % 3, fraction=0.25, every=1)
        >>> history = model.fit(
        ...     pruning.data, epochs=3, callbacks=[pruning], verbose=0
        ... )
        >>> history.history["kept_samples"]
        [48, 36, 27]

    Reference:
        Patra et al., "Calibrating Deep Neural Networks using Explicit
        Regularisation and Dynamic Data Pruning", WACV 2023. Its loss adds a
        penalty on mean confidence minus accuracy of the batch.
    """

    # `SampleHistoryModel` calls it before those that save the model.
    changes_history = True

    def __init__(
        self,
        x: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        fraction: float = 0.1,
        every: int = 5,
        smoothing: float = 0.3,
        min_per_class: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        require_fraction(fraction=fraction)
        require_integer(1, every=every)
        require_integer(0, min_per_class=min_per_class)
        problem = "`smoothing` must be above 0 and at most 1."
        valid = is_number(smoothing) and 0 < smoothing <= 1
        require(valid, problem, smoothing=smoothing)
        self.data = IndexedArrays(x, y, sample_weight, **kwargs)
        self.labels = _one_per_sample(y, self.data)
        self.fraction = fraction
        self.every = every
        self.smoothing = smoothing
        self.min_per_class = min_per_class
        self.dropped = np.array([], int)
        self._seen = None
        self._epochs = EpochNumbers()

    def on_train_begin(self, logs: Logs = None) -> None:
        check_history(self)
        if self.model.num_samples != self.data.num_samples:
            raise ValueError(
                "History and data must have one length. Received: "
                f"num_samples={self.model.num_samples} in the model, "
                f"{self.data.num_samples} samples to prune. Pass "
                "`num_samples=len(x)` to `SampleHistoryModel`."
            )
        self.data.check_steps(self)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        # Read from the model, which may just have been restored.
        history = self.model.sample_history()
        self.data.kept = history["kept"] > 0
        self._seen = history["seen"]
        self.data.start(self._epochs.begin(epoch, self.model))
        gone = np.flatnonzero(~self.data.kept)
        known = self.dropped[np.isin(self.dropped, gone)]
        self.dropped = np.append(np.setdiff1d(gone, known), known)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self.data.check_used(self)
        history = self.model.sample_history()
        average = np.where(
            history["seen"] > self._seen,
            smoothed(
                history["average_confidence"],
                history["confidence"],
                self.smoothing,
            ),
            history["average_confidence"],
        )
        self.model.average_confidence.assign(average)
        if self._epochs.end() % self.every == 0:
            kept = self.data.kept.copy()
            drop = least_confident(
                average,
                # Without a confidence that was a number there is no average.
                kept & (average > 0),
                self.labels,
                self.fraction,
                self.min_per_class,
            )
            kept[drop] = False
            self.model.kept.assign(kept.astype("float32"))
            self.data.kept = kept
            self.dropped = np.append(self.dropped, drop)
        if logs is not None:
            logs["kept_samples"] = int(self.data.kept.sum())


def _one_per_sample(y, data):
    """The class id of each sample, `(num_samples,)`."""
    problem = "A sample has one label, a class id or a one-hot row."
    require(y is not None, problem, y=y)
    labels = data.arrays[1]
    require(isinstance(labels, np.ndarray), problem, y=type(y).__name__)
    if labels.ndim == 2 and labels.shape[1] > 1:
        labels = labels.argmax(axis=-1)
    if labels.size != data.num_samples:
        raise ValueError(
            f"{problem} Received: labels of shape {tuple(labels.shape)}."
        )
    return labels.reshape(-1)
