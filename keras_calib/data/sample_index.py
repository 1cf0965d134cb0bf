"""Training data -> the same data, and with each sample a number of its own.

Losses and callbacks with a memory must know which sample they see again. The
number travels with the inputs: `{"inputs": x, "sample_index": i}`.
"""

import sys
import threading

import keras
import numpy as np

from keras_calib.inputs.arrays import as_array
from keras_calib.keras_private import dataset_inputs

INPUTS = "inputs"
SAMPLE_INDEX = "sample_index"


def add_sample_index(data, batched=None):
    """Number the samples of training data: wrap the first argument of `fit`.

    A sample keeps its number in every epoch, however the data is shuffled
    later. The numbers are 0, 1, 2, ... as int32: exact for every data set of
    up to 2^31 samples.

    `kc.models.SampleHistoryModel` takes such data; validation and prediction
    need no numbers.

    Args:
        data: one of

            - arrays, or a list or dict of arrays, one entry per input of the
              network: `fit(kc.add_sample_index(x), y)`;
            - a `tf.data.Dataset` of `(x, y)` or `(x, y, sample_weight)`,
              **before** it is shuffled or repeated: those come afterwards;
            - a `keras.utils.PyDataset` that gives the same batches in every
              epoch. One that shuffles its own samples must give the numbers
              itself, as `{"inputs": x, "sample_index": i}`;
            - a torch `DataLoader` of a dataset with a length; it may shuffle.
        batched: for `tf.data` only: whether its elements are batches. By
            default they are where every component has the same, or an unknown,
            first dimension.

    Returns:
        What `fit` takes in the place of `data`. Arrays become the dict
        `{"inputs": data, "sample_index": numbers}`, a dataset or a loader one
        of the same kind.

    Raises:
        ValueError: if samples cannot be told apart: a shuffled or repeated
            `tf.data`, a `PyDataset` with hooks of its own, an iterable
            without random access; or if arrays differ in length.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> x = kc.add_sample_index(np.zeros((3, 8)))
        >>> x["inputs"].shape, x["sample_index"].tolist()
        ((3, 8), [0, 1, 2])
    """
    if is_py_dataset(data):
        return _IndexedPyDataset(data)
    if is_tf_data(data):
        return _index_tf_data(data, batched)
    if is_loader(data):
        return _index_loader(data)
    return _index_arrays(data)


def split_index(inputs):
    """The inputs of the network and the numbers, `None` where there are none.

    Args:
        inputs: a batch as `fit` hands it over, indexed or not.

    Returns:
        inputs: what the network takes.
        index: int32 `(batch,)`, or `None`.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> split_index(kc.add_sample_index(np.zeros((2, 8))))[1].tolist()
        [0, 1]
    """
    if isinstance(inputs, dict) and set(inputs) == {INPUTS, SAMPLE_INDEX}:
        return inputs[INPUTS], inputs[SAMPLE_INDEX]
    return inputs, None


def is_py_dataset(data):
    """Whether it is a `keras.utils.PyDataset`."""
    return isinstance(data, keras.utils.PyDataset)


def is_tf_data(data):
    """Whether it is a `tf.data.Dataset`."""
    return _is_of(data, "tensorflow", "data", "Dataset")


def is_loader(data):
    """Whether it is a torch `DataLoader`."""
    return _is_of(data, "torch", "utils", "data", "DataLoader")


def _is_of(data, module, *path):
    """Whether it is of a class of a package, which is not imported for it."""
    found = sys.modules.get(module)
    for name in path:
        found = getattr(found, name, None)
    return found is not None and isinstance(data, found)


def _index_arrays(data):
    leaves = keras.tree.flatten(data)
    if not leaves or not all(hasattr(leaf, "shape") for leaf in leaves):
        raise ValueError(
            "Samples can be numbered in arrays, a `tf.data.Dataset`, a "
            "`PyDataset` and a torch `DataLoader`. Received: "
            f"{type(data).__name__}. A generator must give the numbers "
            'itself: `{"inputs": x, "sample_index": i}` in the place of `x`.'
        )
    lengths = {int(leaf.shape[0]) for leaf in leaves}
    if len(lengths) != 1:
        raise ValueError(
            "All inputs must have one entry per sample. Received: lengths "
            f"{sorted(lengths)}. Labels are not part of it: "
            "`fit(kc.add_sample_index(x), y)`."
        )
    return {INPUTS: data, SAMPLE_INDEX: np.arange(lengths.pop(), dtype="int32")}


def _attach(batch, index):
    batch = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
    return ({INPUTS: batch[0], SAMPLE_INDEX: index}, *batch[1:])


def _index_tf_data(data, batched):
    import tensorflow as tf

    reordered = sorted(_steps(data) & {"ShuffleDataset", "RepeatDataset"})
    if reordered:
        raise ValueError(
            "Number the samples before they are shuffled or repeated: "
            "`kc.add_sample_index(dataset).shuffle(...)`. Received: a "
            f"`tf.data` pipeline with {reordered} in it."
        )
    if batched is None:
        first = {
            "scalar" if spec.shape.rank == 0 else spec.shape[0]
            for spec in tf.nest.flatten(data.element_spec)
        }
        batched = len(first) == 1 and first != {"scalar"}
    if not batched:
        return data.enumerate().map(
            lambda i, *element: _attach(_joined(element), tf.cast(i, "int32"))
        )

    def number(start, *element):
        element = _joined(element)
        end = start + tf.shape(tf.nest.flatten(element)[0])[0]
        return end, _attach(element, tf.range(start, end))

    return data.scan(tf.constant(0, "int32"), number)


def _joined(element):
    """`tf.data` unpacks tuples into arguments, and nothing else."""
    if len(element) == 1 and isinstance(element[0], tuple):
        return element[0]
    return element


def _steps(data):
    """Names of the steps of a `tf.data` pipeline, as far as it tells."""
    names = {type(data).__name__.strip("_")}
    for parent in dataset_inputs(data):
        names |= _steps(parent)
    return names


class _IndexedPyDataset(keras.utils.PyDataset):
    """A `PyDataset` whose batches are numbered by their place in it."""

    def __init__(self, data):
        hooks = [
            name
            for name in ("on_epoch_begin", "on_epoch_end")
            if getattr(type(data), name)
            is not getattr(keras.utils.PyDataset, name)
        ]
        if hooks:
            raise ValueError(
                "A `PyDataset` that may reorder its samples between epochs "
                "must number them itself: return `{'inputs': x, "
                "'sample_index': i}` in the place of `x`. Received: "
                f"{type(data).__name__} with {' and '.join(hooks)}."
            )
        if data.num_batches is None:
            raise ValueError(
                "The samples of an endless `PyDataset` cannot be numbered by "
                "their place. Let it return `{'inputs': x, 'sample_index': "
                "i}` in the place of `x`."
            )
        super().__init__(
            workers=data.workers,
            use_multiprocessing=data.use_multiprocessing,
            max_queue_size=data.max_queue_size,
        )
        self.data = data
        self.size = _batch_length(data[0])

    @property
    def num_batches(self):
        return self.data.num_batches

    def __getitem__(self, i):
        batch = self.data[i]
        length = _batch_length(batch)
        last = i == self.num_batches - 1
        if length > self.size or (length < self.size and not last):
            raise ValueError(
                "All batches but the last must have one length, so that a "
                "sample is known by its place. Received: a batch of "
                f"{length} after one of {self.size}. Let the `PyDataset` "
                "return `{'inputs': x, 'sample_index': i}` itself."
            )
        start = i * self.size
        return _attach(batch, np.arange(start, start + length, dtype="int32"))


def _batch_length(batch):
    return int(keras.tree.flatten(batch)[0].shape[0])


class _NumberedDataset:
    """A torch dataset that gives its own index with each item."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        return i, self.dataset[i]


class _Collate:
    """The loader's own collation, and the numbers beside it; can be pickled."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, items):
        import torch

        index, items = zip(*items, strict=True)
        return _attach(
            self.collate(list(items)), torch.tensor(index, dtype=torch.int32)
        )


def _index_loader(loader):
    from torch.utils.data import DataLoader
    from torch.utils.data import IterableDataset

    streams = isinstance(loader.dataset, IterableDataset)
    if streams or loader.batch_sampler is None:
        raise ValueError(
            "A `DataLoader` can be numbered if its dataset has random access "
            "and the loader makes the batches. Received: a dataset of type "
            f"{type(loader.dataset).__name__}, batch_size={loader.batch_size}."
            " Let it give `{'inputs': x, 'sample_index': i}` itself."
        )
    return DataLoader(
        _NumberedDataset(loader.dataset),
        batch_sampler=loader.batch_sampler,
        collate_fn=_Collate(loader.collate_fn),
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


class IndexedArrays(keras.utils.PyDataset):
    """Arrays as batches, of which a callback drops or relabels samples.

    `kc.callbacks.DataPruning` and `EmpiricalTargets` make one; `fit` takes it.
    Each epoch has the samples that are kept when it begins, in an order of its
    own, which depends on the seed and the number of the epoch only. Keras
    shuffles the batches of a `PyDataset` unless `fit` is told not to; here the
    batch that it asks for first is the first one of the order, whatever its
    number.

    Args:
        x: arrays, or a list or dict of them.
        y: labels.
        sample_weight: weights, or `None`.
        batch_size: int.
        shuffle: whether each epoch has an order of its own.
        seed: int or `None`, for the orders.
        index: whether the samples carry their numbers.

    Attributes:
        kept: true for the samples that the next epoch has, `(num_samples,)`.

    Raises:
        ValueError: if arrays differ in length, or `batch_size` is below 1.
    """

    def __init__(
        self,
        x,
        y,
        sample_weight=None,
        batch_size=32,
        shuffle=True,
        seed=None,
        index=True,
    ):
        super().__init__()
        if batch_size < 1:
            raise ValueError(
                f"`batch_size` must be at least 1. Received: {batch_size}."
            )
        # Lists in `x` are several inputs; labels and weights are one array.
        labels = [
            np.asarray(part) if isinstance(part, list | tuple) else part
            for part in (y, sample_weight)
            if part is not None
        ]
        self.arrays = keras.tree.map_structure(as_array, (x, *labels))
        lengths = {len(leaf) for leaf in keras.tree.flatten(self.arrays)}
        if len(lengths) != 1:
            raise ValueError(
                "Inputs, labels and weights must have the same length. "
                f"Received: lengths {sorted(lengths)}."
            )
        self.num_samples = lengths.pop()
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        if seed is None:
            self.seed = int(np.random.SeedSequence().generate_state(1)[0])
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
        """Say which epoch, counted from 0, comes next."""
        self.epoch = epoch
        self.places = {}

    def on_epoch_begin(self):
        order = np.flatnonzero(self.kept)
        if self.shuffle:
            np.random.default_rng((self.seed, self.epoch)).shuffle(order)
        self.order = order
        self.places = {}
        # Without a callback nobody counts.
        self.epoch += 1

    def __getitem__(self, i):
        part = self._place(i) * self.batch_size
        chosen = self.order[part : part + self.batch_size]
        batch = keras.tree.map_structure(lambda leaf: leaf[chosen], self.arrays)
        if not self.index:
            return batch
        return _attach(batch, chosen.astype("int32"))

    def _place(self, i):
        """Which batch it is that was asked for as the `i`-th one.

        A batch keeps its place in an epoch: what asks twice, as readers ahead
        of time do, takes nothing away.
        """
        if i >= self.num_batches:
            return i
        with self._lock:
            return self.places.setdefault(i, len(self.places))

    def relabel(self, labels):
        """Train on other labels from now on, of the same shape and dtype."""
        self.arrays = (self.arrays[0], labels, *self.arrays[2:])

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
