"""Arrays as batches, from which callbacks drop samples or replace labels."""

import threading

import keras
import numpy as np

from keras_calib.data.batches import as_batch
from keras_calib.data.batches import check_same_length
from keras_calib.data.batches import lists_as_arrays
from keras_calib.data.sample_index import with_index
from keras_calib.inputs.arguments import generator
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import is_sparse


def as_arrays(arrays):
    """A structure of arrays; a sparse matrix remains one, with fast rows."""
    return keras.tree.map_structure(
        lambda leaf: leaf.tocsr() if is_sparse(leaf) else as_array(leaf), arrays
    )


class IndexedArrays(keras.utils.PyDataset):
    """Arrays as batches, from which a callback drops or relabels samples.

    `kc.callbacks.DataPruning` and `EmpiricalTargets` make one for `fit`. An
    epoch contains the samples that are kept when it begins, in an order that
    depends only on the seed and the number of the epoch. Keras shuffles the
    batches of a `PyDataset` by default. Here the first batch that Keras asks
    for, whatever its number, is the first one of the order.

    Args:
        x: arrays, or a list or dict of them; also sparse matrices of SciPy.
        y: labels.
        sample_weight: weights, or `None`.
        batch_size: int.
        shuffle: whether to shuffle the samples in each epoch.
        seed: int or `None`, for the orders.
        index: whether the samples carry their numbers.

    Attributes:
        kept: boolean, which samples the next epoch contains,
            `(num_samples,)`.

    Raises:
        ValueError: if arrays differ in length or are empty, or `batch_size`
            is below 1.
    """

    def __init__(
        self,
        x,
        y,
        sample_weight=None,
        *,
        batch_size=32,
        shuffle=True,
        seed=None,
        index=True,
    ):
        super().__init__()
        require_integer(1, batch_size=batch_size)
        # Lists in `x` are several inputs; labels and weights are one array.
        labels = [p for p in lists_as_arrays(y, sample_weight) if p is not None]
        self.arrays = as_arrays((x, *labels))
        self.num_samples = check_same_length(self.arrays)
        problem = "There are no samples to train on."
        require(self.num_samples > 0, problem, num_samples=self.num_samples)
        self.batch_size = batch_size
        self.shuffle = shuffle
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        generator(seed)  # refuses what is no seed
        self.seed = seed
        self.index = index
        self.kept = np.ones(self.num_samples, bool)
        self.epoch = 0
        self.order = np.arange(self.num_samples)
        self.places = {}
        self._lock = threading.Lock()

    @property
    def num_batches(self):
        return -(-int(self.kept.sum()) // self.batch_size)

    def start(self, epoch):
        """Set the number of the next epoch, counted from 0."""
        self.epoch = epoch
        self.places = {}

    def on_epoch_begin(self):
        order = np.flatnonzero(self.kept)
        if self.shuffle:
            generator(self.seed, self.epoch).shuffle(order)
        self.order = order
        self.places = {}
        # Without a callback no one else counts epochs.
        self.epoch += 1

    def __getitem__(self, i):
        part = self._place(i) * self.batch_size
        chosen = self.order[part : part + self.batch_size]
        batch = as_batch(self.arrays, chosen)
        return (
            with_index(batch, chosen.astype("int32")) if self.index else batch
        )

    def _place(self, i):
        """Place in the order of the batch that Keras calls the `i`-th.

        A batch keeps its place during an epoch, so that data can be read
        twice, as prefetching does.
        """
        if i >= self.num_batches:
            return i
        with self._lock:
            return self.places.setdefault(i, len(self.places))

    def relabel(self, labels):
        """Train on other labels from now on, of the same shape and dtype."""
        self.arrays = (self.arrays[0], labels, *self.arrays[2:])

    def check_steps(self, callback):
        """Refuse `steps_per_epoch`.

        Keras would read on in the next epoch, in another order, and has read
        some of those batches in this one.

        Raises:
            ValueError: if an epoch of `fit` has another number of batches.
        """
        steps = callback.params.get("steps")
        if steps not in (None, self.num_batches):
            raise ValueError(
                "An epoch has all samples that are not dropped: leave out "
                "`steps_per_epoch`, and let `fit` take the `data` of "
                f"{type(callback).__name__}. Received: {steps} steps, "
                f"{self.num_batches} batches."
            )

    def check_used(self, callback):
        """Refuse an epoch that was trained on other data.

        Raises:
            ValueError: if no batch was taken in this epoch.
        """
        if not self.places:
            name = type(callback).__name__
            raise ValueError(
                f"`fit` takes its data from {name}: `callback = {name}(x, y, "
                "...)`, then `model.fit(callback.data, callbacks=[callback])`."
                " Received: an epoch on other data."
            )

    def __getstate__(self):
        # Keras copies a dataset to its workers.
        return {k: v for k, v in vars(self).items() if k != "_lock"}

    def __setstate__(self, state):
        vars(self).update(state)
        self._lock = threading.Lock()
