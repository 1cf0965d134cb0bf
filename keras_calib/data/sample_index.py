"""Training data -> the same data with a number for each sample.

Losses and callbacks with a memory must recognize a sample. Its number travels
with the inputs: `{"inputs": x, "sample_index": i}`.
"""

from typing import Any

import keras
import numpy as np

from keras_calib.data.batches import is_loader
from keras_calib.data.batches import is_tf_data
from keras_calib.data.order import reordering_steps
from keras_calib.data.order import takes_any_order
from keras_calib.inputs.arguments import require_flags

INPUTS = "inputs"
SAMPLE_INDEX = "sample_index"


def add_sample_index(data: Any, *, batched: bool | None = None) -> Any:
    """Number the samples of training data: wrap the first argument of `fit`.

    A sample keeps its number in every epoch, however the data is shuffled
    later. The numbers are 0, 1, 2, ... as int32, which is exact for up to 2^31
    samples.

    `kc.models.SampleHistoryModel` trains on such data. Validation and
    prediction need no numbers.

    Args:
        data: one of

            - arrays, or a list or dict of arrays, one entry per input of the
              network: `fit(kc.add_sample_index(x), y)`;
            - a `tf.data.Dataset` of `(x, y)` or `(x, y, sample_weight)`,
              **before** it is shuffled or repeated: those come afterwards;
            - a `keras.utils.PyDataset` that returns the same batches in every
              epoch. One that shuffles its samples must return the numbers
              itself, as `{"inputs": x, "sample_index": i}`;
            - a torch `DataLoader` of a dataset with a length; it may shuffle.
        batched: for `tf.data` only, whether its elements are batches. By
            default they are if all components have the same, or an unknown,
            first dimension.

    Returns:
        What `fit` takes instead of `data`. Arrays become the dict
        `{"inputs": data, "sample_index": numbers}`, a dataset or a loader
        becomes one of the same kind.

    Raises:
        ValueError: if samples cannot be told apart, as in a shuffled or
            repeated `tf.data`, a `PyDataset` with hooks of its own, or an
            iterable without random access; or if arrays differ in length.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> x = kc.add_sample_index(np.zeros((3, 8)))
        >>> x["inputs"].shape, x["sample_index"].tolist()
        ((3, 8), [0, 1, 2])
    """
    require_flags(none=True, batched=batched)
    if isinstance(data, keras.utils.PyDataset):
        return _IndexedPyDataset(data)
    if is_tf_data(data):
        return _index_tf_data(data, batched)
    if is_loader(data):
        return _index_loader(data)
    return _index_arrays(data)


def split_index(inputs):
    """The inputs of the network and the numbers, or `None` without numbers.

    Args:
        inputs: a batch as `fit` passes it on, with numbers or without.

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


def _index_arrays(data):
    leaves = keras.tree.flatten(data)
    if not leaves or not all(getattr(leaf, "shape", ()) for leaf in leaves):
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


def with_index(batch, index):
    """A batch `(x, ...)` with the numbers of its samples beside `x`."""
    batch = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
    return ({INPUTS: batch[0], SAMPLE_INDEX: index}, *batch[1:])


def _index_tf_data(data, batched):
    import tensorflow as tf

    reordered = sorted(reordering_steps(data))
    if takes_any_order(data):
        reordered.append("Options(deterministic=False)")
    if reordered:
        raise ValueError(
            "Number the samples before they are shuffled, repeated or taken in "
            "whichever order they come: "
            "`kc.add_sample_index(dataset).shuffle(...)`. Received: a "
            f"`tf.data` pipeline with {reordered} in it."
        )
    if batched is None:
        first = {
            "scalar" if spec.shape.rank == 0 else spec.shape[0]
            for spec in tf.nest.flatten(data.element_spec)
        }
        batched = len(first) == 1 and first != {"scalar"}
    # These have nothing that AutoGraph would have to convert.
    as_it_is = tf.autograph.experimental.do_not_convert
    if not batched:
        return data.enumerate().map(
            as_it_is(
                lambda i, *element: with_index(
                    _joined(element), tf.cast(i, "int32")
                )
            )
        )

    @as_it_is
    def number(start, *element):
        element = _joined(element)
        end = start + tf.shape(tf.nest.flatten(element)[0])[0]
        return end, with_index(element, tf.range(start, end))

    return data.scan(tf.constant(0, "int32"), number)


def _joined(element):
    """`tf.data` unpacks tuples into arguments, and nothing else."""
    if len(element) == 1 and isinstance(element[0], tuple):
        return element[0]
    return element


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
        return with_index(
            batch, np.arange(start, start + length, dtype="int32")
        )


def _batch_length(batch):
    return int(keras.tree.flatten(batch)[0].shape[0])


class _Collate:
    """The loader's collation with the numbers beside it; can be pickled."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, items):
        import torch

        index, items = zip(*items, strict=True)
        return with_index(
            self.collate(list(items)), torch.tensor(index, dtype=torch.int32)
        )


def _index_loader(loader):
    from torch.utils.data import DataLoader
    from torch.utils.data import IterableDataset
    from torch.utils.data import StackDataset

    streams = isinstance(loader.dataset, IterableDataset)
    if streams or loader.batch_sampler is None:
        raise ValueError(
            "A `DataLoader` can be numbered if its dataset has random access "
            "and the loader makes the batches. Received: a dataset of type "
            f"{type(loader.dataset).__name__}, batch_size={loader.batch_size}."
            " Let it give `{'inputs': x, 'sample_index': i}` itself."
        )
    kept = (
        "batch_sampler", "num_workers", "pin_memory", "timeout",
        "worker_init_fn", "multiprocessing_context", "generator",
        "prefetch_factor", "persistent_workers",
    )  # fmt: skip
    dataset = loader.dataset
    return DataLoader(
        StackDataset(range(len(dataset)), dataset),
        collate_fn=_Collate(loader.collate_fn),
        **{name: getattr(loader, name) for name in kept},
    )
