"""One data set of two parts: batches of the first, then of the second.

Each batch says which part it belongs to: `{"inputs": x, "for_penalty": flags}`.
"""

import keras
import numpy as np

from keras_calib.data import batches
from keras_calib.data.indexed_arrays import IndexedArrays
from keras_calib.data.indexed_arrays import as_arrays
from keras_calib.data.sample_index import INPUTS
from keras_calib.inputs.arguments import generator
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.tensors import unwrapped

FOR_PENALTY = "for_penalty"


def read_arrays(name, x, y, sample_weight=None):
    """`(x, y)` or `(x, y, sample_weight)` as arrays of one length."""
    y, sample_weight = unwrapped(y), unwrapped(sample_weight)
    whole = (x, y) if sample_weight is None else (x, y, sample_weight)
    whole = as_arrays(whole)
    batches.check_same_length(whole, f" in {name}")
    return whole


def last_fraction(whole, fraction):
    """The samples before the last ones, and the last ones, as Keras does."""
    if not (is_number(fraction) and 0 < fraction < 1):
        raise ValueError(
            "`validation_split` must be between 0 and 1. "
            f"Received: validation_split={fraction}."
        )
    size = len(whole[1])
    first = int(size * (1 - fraction))
    if not 0 < first < size:
        raise ValueError(
            "Training and validation both need samples. Received: "
            f"{size} samples, validation_split={fraction}."
        )
    return batches.take(whole, slice(first)), batches.take(
        whole, slice(first, None)
    )


def random_fraction(whole, fraction, seed):
    """The samples that are left, and a random fraction of them."""
    size = len(whole[1])
    number = max(round(size * fraction), 1)
    if number >= size:
        raise ValueError(
            "Both parts need samples. Received: "
            f"{size} samples, penalty_split={fraction}."
        )
    order = generator(seed).permutation(size)
    chosen = np.sort(order[number:]), np.sort(order[:number])
    return batches.take(whole, chosen[0]), batches.take(whole, chosen[1])


def of_arrays(majority, for_penalty, **kwargs):
    """A data set of two tuples of arrays.

    Args:
        majority: `(x, y)` or `(x, y, sample_weight)`.
        for_penalty: a tuple of the same length.
        **kwargs: see `IndexedArrays`.
    """
    _check_same_parts(len(majority), len(for_penalty))
    return _PyDatasets(
        *(
            IndexedArrays(*part, index=False, **kwargs)
            for part in (majority, for_penalty)
        )
    )


def _check_same_parts(majority, for_penalty):
    if majority != for_penalty:
        raise ValueError(
            "Both parts are `(x, y)`, or both `(x, y, sample_weight)`. "
            f"Received: {majority} and {for_penalty} arrays."
        )


def _parts_of_batches(data):
    """2 or 3, for batches of inputs, labels and perhaps weights."""
    spec = data.element_spec if batches.is_tf_data(data) else data[0]
    return len(spec)


def of_datasets(majority, for_penalty):
    """A data set of two of the same kind.

    Raises:
        ValueError: for data sets of other kinds, or endless ones.
    """
    both = majority, for_penalty
    if all(map(batches.is_tf_data, both)):
        chain = _chain_tf_data
    elif all(isinstance(part, keras.utils.PyDataset) for part in both):
        chain = _PyDatasets
    elif all(map(batches.is_loader, both)):
        chain = _chain_loaders
    else:
        raise ValueError(
            "Interleaved training takes arrays `fit(x, y)`, which it splits, "
            "or two data sets of one kind (`tf.data.Dataset`, `PyDataset` or "
            "torch `DataLoader`): `fit(majority, penalty_data=...)`. Received: "
            f"{type(majority).__name__} and penalty_data="
            f"{type(for_penalty).__name__}."
        )
    if batches.ENDLESS in map(batches.num_batches, both):
        raise ValueError(
            "Each part must end, so that the other has its turn. "
            "Received: endless data. Leave out `repeat()`."
        )
    if chain is not _chain_loaders:
        _check_same_parts(*map(_parts_of_batches, both))
    return chain(majority, for_penalty)


def _flagged(batch, flags):
    # As uint8: Keras sums over replicas whatever is in a batch, and bool
    # cannot be summed.
    return ({INPUTS: batch[0], FOR_PENALTY: flags}, *batch[1:])


class _PyDatasets(keras.utils.PyDataset):
    """One `PyDataset` after the other."""

    def __init__(self, majority, for_penalty):
        super().__init__(
            workers=majority.workers,
            use_multiprocessing=majority.use_multiprocessing,
            max_queue_size=majority.max_queue_size,
        )
        self.parts = (majority, for_penalty)

    @property
    def num_batches(self):
        return sum(part.num_batches for part in self.parts)

    def __getitem__(self, i):
        first = self.parts[0].num_batches
        part = int(i >= first)
        batch = self.parts[part][i - part * first]
        size = int(keras.tree.flatten(batch)[0].shape[0])
        return _flagged(batch, np.full(size, part, "uint8"))

    def start(self, epoch):
        """Set the number of the next epoch; orders of arrays depend on it."""
        for part in self.parts:
            part.start(epoch)

    def on_epoch_begin(self):
        for part in self.parts:
            part.on_epoch_begin()

    def on_epoch_end(self):
        for part in self.parts:
            part.on_epoch_end()


def _chain_tf_data(majority, for_penalty):
    import tensorflow as tf

    def flagged(flag):
        # It has nothing that AutoGraph would have to convert.
        @tf.autograph.experimental.do_not_convert
        def add(*batch):
            size = tf.shape(tf.nest.flatten(batch)[0])[0]
            return _flagged(batch, tf.fill([size], tf.cast(flag, "uint8")))

        return add

    return majority.map(flagged(0)).concatenate(for_penalty.map(flagged(1)))


def _chain_loaders(majority, for_penalty):
    import torch

    class Chained(torch.utils.data.IterableDataset):
        def __len__(self):
            return len(majority) + len(for_penalty)

        def __iter__(self):
            for flag, part in enumerate((majority, for_penalty)):
                for batch in part:
                    size = len(keras.tree.flatten(batch[0])[0])
                    flags = torch.full((size,), flag, dtype=torch.uint8)
                    yield _flagged(batch, flags)

    # The loaders inside make the batches, with workers of their own.
    return torch.utils.data.DataLoader(Chained(), batch_size=None)
