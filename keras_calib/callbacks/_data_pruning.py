"""Dynamic train-time data pruning (DTDP): drop what the network doubts."""

import keras
import numpy as np

from keras_calib.callbacks._correctness_history import check_history
from keras_calib.data.sample_index import IndexedArrays


def smoothed(average, confidence, smoothing):
    """`e <- kappa c + (1 - kappa) e`; the first confidence starts it."""
    moved = smoothing * confidence + (1.0 - smoothing) * average
    return np.where(average == 0, confidence, moved)


def least_confident(average, kept, labels, fraction, min_per_class):
    """Which of the kept samples to drop: the lowest averages, at most."""
    candidates = np.flatnonzero(kept)
    left = dict(zip(*np.unique(labels[kept], return_counts=True), strict=True))
    number = int(fraction * len(candidates))
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

    After each epoch the confidence of a sample, taken from its training step,
    moves an average, `e <- smoothing * c + (1 - smoothing) * e`, which starts
    at the first confidence. Every few epochs the kept samples with the lowest
    averages are dropped for good: epochs get shorter. `fit` takes the data
    from the callback.

    The model is a `kc.models.SampleHistoryModel`, which keeps averages and kept
    samples in its weights: training resumes with what was left, wherever this
    callback stands in the list. Samples of a schedule that counts steps get
    fewer steps per epoch. Samples that training leaves out, void ones or those
    of weight 0, have no confidence and are never dropped.

    Published are an average with `smoothing` 0.3 and a `fraction` of 0.1; how
    many epochs lie between is not, nor whether the confidence is that of the
    predicted class, as here, or of the label.

    Args:
        x: training arrays, or a list or dict of them.
        y: labels, class ids or one-hot.
        sample_weight: weights, or `None`.
        fraction: float in `(0, 1)`, the share of the kept samples to drop.
        every: int, drop after each so many epochs.
        smoothing: float in `(0, 1]`, `kappa`.
        min_per_class: int, how many samples of a class are always kept.
        batch_size: int.
        shuffle: whether each epoch has an order of its own. It is the
            callback's: what `fit` is told about shuffling changes nothing.
        seed: int or `None`, for the orders; a resumed run has those of one
            that was not interrupted.

    Attributes:
        data: what `fit` takes.
        dropped: the numbers of the samples dropped so far, in their order; in
            a resumed run those of the earlier one come first, by number.

    Raises:
        ValueError: if an argument is out of its range; when training begins,
            if the model is no `SampleHistoryModel`, or one of another length;
            in `fit`, if it trains on other data or with `steps_per_epoch`.

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

    def __init__(
        self,
        x,
        y,
        sample_weight=None,
        fraction=0.1,
        every=5,
        smoothing=0.3,
        min_per_class=1,
        batch_size=32,
        shuffle=True,
        seed=None,
    ):
        super().__init__()
        if not (0 < fraction < 1 and 0 < smoothing <= 1) or every < 1:
            raise ValueError(
                "`fraction` is between 0 and 1, `smoothing` above 0 and at "
                "most 1, `every` at least 1. Received: "
                f"fraction={fraction}, smoothing={smoothing}, every={every}."
            )
        self.data = IndexedArrays(
            x, y, sample_weight, batch_size, shuffle, seed
        )
        labels = self.data.arrays[1]
        if labels.ndim == 2 and labels.shape[1] > 1:
            labels = labels.argmax(axis=-1)
        self.labels = labels.reshape(-1)
        if len(self.labels) != self.data.num_samples:
            raise ValueError(
                "A sample has one label, a class id or a one-hot row. "
                f"Received: labels of shape {tuple(labels.shape)}."
            )
        self.fraction = fraction
        self.every = every
        self.smoothing = smoothing
        self.min_per_class = min_per_class
        self.dropped = np.array([], int)
        self._seen = None

    # `SampleHistoryModel` calls it before those that save the model.
    changes_history = True

    def on_train_begin(self, logs=None):
        check_history(self)
        if self.model.num_samples != self.data.num_samples:
            raise ValueError(
                "History and data must have one length. Received: "
                f"num_samples={self.model.num_samples} in the model, "
                f"{self.data.num_samples} samples to prune. Pass "
                "`num_samples=len(x)` to `SampleHistoryModel`."
            )
        steps = self.params.get("steps")
        if steps not in (None, self.data.num_batches):
            raise ValueError(
                "An epoch has all samples that are kept: leave out "
                "`steps_per_epoch`, and let `fit` take `pruning.data`. "
                f"Received: {steps} steps, {self.data.num_batches} batches."
            )

    def on_epoch_begin(self, epoch, logs=None):
        # From the model, which may just have been restored.
        history = self.model.sample_history()
        self.data.kept = history["kept"] > 0
        self._seen = history["seen"]
        self.data.start(epoch)
        gone = np.flatnonzero(~self.data.kept)
        known = self.dropped[np.isin(self.dropped, gone)]
        self.dropped = np.append(np.setdiff1d(gone, known), known)

    def on_epoch_end(self, epoch, logs=None):
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
        if (epoch + 1) % self.every == 0:
            kept = self.data.kept.copy()
            drop = least_confident(
                average,
                kept & (history["seen"] > 0),
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
