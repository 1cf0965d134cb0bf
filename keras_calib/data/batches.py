"""Whatever `fit` accepts as data -> an iterator of batches.

A batch is `(x, y, sample_weight)`.
"""

import dataclasses
import itertools
import sys
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_calib.inputs.arguments import require_integer
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.arrays import is_sparse
from keras_calib.inputs.arrays import with_fast_rows

ENDLESS = float("inf")


@dataclasses.dataclass
class Batches:
    """An iterator of `(x, y, sample_weight)`.

    Attributes:
        source: the iterator.
        total: number of batches, or `None` if it is unknown.
    """

    source: Iterator
    total: int | None

    def __iter__(self):
        return self.source

    def mapped(self, function):
        """The same batches, each as `function(x, y, sample_weight)` has it."""
        return Batches(itertools.starmap(function, self.source), self.total)

    def first_weights(self):
        """Sample weights of the first batch, or `None`; see `first_inputs`."""
        first = next(self.source)
        self.source = itertools.chain([first], self.source)
        return first[2]

    def first_inputs(self):
        """Inputs of the first batch, which stays in the iterator.

        Raises:
            ValueError: if there is no batch, or no batch of arrays.
        """
        first = next(self.source, None)
        if first is None:
            raise ValueError("The data is empty. Received: 0 batches.")
        self.source = itertools.chain([first], self.source)
        inputs = for_model(first[0])
        for leaf in keras.tree.flatten(inputs):
            if not _has_axis(leaf):
                raise ValueError(
                    "Inputs must be arrays with an axis of samples (a list is "
                    f"several inputs). Received: {leaf!r}."
                )
        return inputs


def as_batches(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    labeled: bool | None = True,
) -> Batches:
    """Iterate over data once.

    Args:
        x: arrays (or a list or dict of them) if `y` is given; otherwise a
            `tf.data.Dataset`, a `keras.utils.PyDataset`, a torch `DataLoader`
            or any iterable of `(x, y)` or `(x, y, sample_weight)`.
        y: labels, or `None`.
        sample_weight: weights for arrays, or `None`.
        batch_size: for arrays; defaults to 32, as in Keras.
        steps: number of batches to take; required for endless data.
        labeled: `False` for data without labels, or whose labels do not
            matter. `x` may then be arrays alone, or a dataset of inputs or
            `(x,)`, too, and the batches are `(x, None, sample_weight)`; with
            `None` they keep the labels that there are.

    Returns:
        `Batches`.

    Raises:
        ValueError: if arrays differ in length, data has no labels, or the
            data is endless and `steps` is not given.
    """
    if batch_size is not None:
        require_integer(1, batch_size=batch_size)
    if steps is not None:
        require_integer(0, steps=steps)
    if y is not None:
        _refuse_other_labels(x)
    alone = not labeled and _are_arrays(x)
    if y is not None or (alone and (labeled is False or not _is_pair(x))):
        # A list of numbers would be taken for a structure of arrays.
        y, sample_weight = lists_as_arrays(y, sample_weight)
        source, total = _array_batches(x, y, sample_weight, batch_size or 32)
    else:
        check_dataset(x, sample_weight, batch_size)
        source, total = _dataset_batches(x, steps)
        source = (_unpack(batch, labeled) for batch in source)
    if steps is not None:
        total = steps if total is None else min(steps, total)
    return Batches(itertools.islice(source, steps), total)


def _are_arrays(x):
    """Whether it is an array, or a list or dict of arrays, not of batches."""
    if isinstance(x, list | tuple):
        return not any(isinstance(part, list | tuple | dict) for part in x)
    return isinstance(x, dict) or hasattr(x, "shape")


def _dataset_batches(data, steps):
    """The batches of a dataset, and their number."""
    total = num_batches(data)
    if steps is None and total == ENDLESS:
        raise ValueError(
            "The data is endless. Pass a finite part of it, such as "
            "`dataset.take(n)`; or `steps=`, where it is an argument."
        )
    if isinstance(data, keras.utils.PyDataset):
        numbers = itertools.count() if total == ENDLESS else range(total)
        data = map(data.__getitem__, numbers)
    return data, total


@dataclasses.dataclass
class Source:
    """Data that `as_batches` can open again and again.

    Attributes:
        x: see `as_batches`; or a function without arguments that returns an
            iterable of batches.
        y, sample_weight, batch_size, steps: see `as_batches`.
        part_of: `None`, or a function that picks the labels, and the weights,
            of one output.
        preprocess: `None`, or a function of a batch that returns a batch with
            labels.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None
    batch_size: int | None = None
    steps: int | None = None
    part_of: Callable | None = None
    preprocess: Callable | None = None

    def refuse_iterators(self):
        """Raise for a generator, which can be read once."""
        if self.y is None and isinstance(self.x, Iterator):
            raise ValueError(
                "The data is read several times, and a generator can be read "
                f"once. Received: x of type {type(self.x).__name__}. Pass a "
                "dataset or arrays, or, to `kc.calibrate`, the function that "
                "returns it."
            )

    def open(self, *, call=False):
        """`Batches` from the start.

        Args:
            call: whether `x` may be a function.
        """
        x = self.x
        if call and self.y is None and not hasattr(x, "__iter__"):
            x = x() if callable(x) else x
        part_of = self.part_of or (lambda values: values)
        batches = as_batches(
            x,
            part_of(self.y),
            part_of(self.sample_weight),
            batch_size=self.batch_size,
            steps=self.steps,
            labeled=True if self.preprocess is None else None,
        )
        if self.preprocess is not None:
            batches = batches.mapped(self.preprocess)
        if self.part_of is not None:
            batches = batches.mapped(
                lambda x, y, weight: (x, part_of(y), part_of(weight))
            )
        return batches


def num_batches(data):
    """Number of batches of a dataset; `ENDLESS`, or `None` if unknown."""
    if isinstance(data, keras.utils.PyDataset):
        return ENDLESS if data.num_batches is None else data.num_batches
    if hasattr(data, "cardinality"):  # tf.data; -1 endless, -2 unknown
        total = int(data.cardinality())
        return {-1: ENDLESS, -2: None}.get(total, total)
    try:
        return len(data)
    except TypeError:
        return None


def lists_as_arrays(*parts):
    """Lists and tuples of numbers as arrays; anything else as it is."""
    return tuple(
        as_array(part) if isinstance(part, list | tuple) else part
        for part in parts
    )


def check_same_length(arrays, where=""):
    """Number of entries of all arrays in a structure.

    Args:
        arrays: a structure of arrays; `None` is ignored.
        where: how the message ends.

    Raises:
        ValueError: if they differ.
    """
    leaves = [leaf for leaf in keras.tree.flatten(arrays) if leaf is not None]
    for leaf in leaves:
        if not _has_axis(leaf):
            remedy = ""
            if isinstance(leaf, str):
                remedy = (
                    ' Pass options by name, such as `method="vector"`, and a '
                    "list of texts as `np.array(texts)`."
                )
            raise ValueError(
                "Inputs, labels and weights must be arrays with an axis of "
                f"samples. Received: {type(leaf).__name__}{where}.{remedy}"
            )
    lengths = list(dict.fromkeys(map(_length, leaves)))
    if len(lengths) != 1:
        raise ValueError(
            "Inputs, labels and weights must have the same length. "
            f"Received: lengths {lengths}{where}."
        )
    return lengths[0]


def _has_axis(leaf):
    """Whether it is an array, or an object like one, with an axis."""
    shape = getattr(leaf, "shape", None)
    if shape is not None:
        return len(shape) > 0
    return hasattr(leaf, "__len__") and not isinstance(leaf, str | bytes)


def _length(leaf):
    """Entries along the first axis, of variables too, which have no `len`."""
    return leaf.shape[0] if hasattr(leaf, "shape") else len(leaf)


def take(arrays, index):
    """Some of the samples of a structure of arrays, where `None` stays.

    By their place: pandas may understand an index as its labels.
    """
    return keras.tree.map_structure(
        lambda leaf: leaf if leaf is None else _by_place(leaf)[index], arrays
    )


def _by_place(leaf):
    leaf = with_fast_rows(leaf)
    return getattr(leaf, "iloc", leaf)


def as_batch(arrays, index):
    """`take` for a batch: the rows of a sparse matrix become an array."""
    return keras.tree.map_structure(
        lambda leaf: leaf.toarray() if is_sparse(leaf) else leaf,
        take(arrays, index),
    )


def is_tf_data(data: Any) -> bool:
    """Whether it is a `tf.data.Dataset`."""
    return _is_instance(data, "tensorflow", "data", "Dataset")


def is_loader(data: Any) -> bool:
    """Whether it is a torch `DataLoader`."""
    return _is_instance(data, "torch", "utils", "data", "DataLoader")


def _is_instance(data, module, *path):
    """`isinstance` for a class of a package that may not be imported."""
    found = sys.modules.get(module)
    for name in path:
        found = getattr(found, name, None)
    return found is not None and isinstance(data, found)


def _array_batches(x, y, sample_weight, batch_size):
    arrays = x, y, sample_weight
    starts = range(0, check_same_length(arrays), batch_size)
    # Once, and not for each batch.
    arrays = keras.tree.map_structure(with_fast_rows, arrays)
    source = (as_batch(arrays, slice(i, i + batch_size)) for i in starts)
    return source, len(starts)


def _refuse_other_labels(data):
    """Raise where labels are passed beside a dataset."""
    pythons = isinstance(data, keras.utils.PyDataset | Iterator)
    if pythons or is_tf_data(data) or is_loader(data):
        raise ValueError(
            "A dataset brings its own labels. Received: x of type "
            f"{type(data).__name__}, and `y`. Leave out `y`."
        )


def _is_pair(data):
    """Whether it is `(x, y)` or `(x, y, sample_weight)`, no list of batches."""
    if not isinstance(data, list | tuple) or len(data) not in (2, 3):
        return False
    return isinstance(data[1], np.ndarray) or keras.ops.is_tensor(data[1])


def check_dataset(data, sample_weight, batch_size):
    """Raise `ValueError` for what is no dataset, or has arguments of arrays."""
    if isinstance(data, np.ndarray) or keras.ops.is_tensor(data):
        raise ValueError(
            "The data has no labels: pass `x` and `y`, or a dataset of "
            f"`(x, y)`. Received: x of shape {tuple(data.shape)} alone."
        )
    if _is_pair(data):
        raise ValueError(
            "Arrays are arguments of their own: pass `x, y`, not `(x, y)`. "
            f"Received: a {type(data).__name__} of {len(data)}, whose second "
            "is an array."
        )
    if sample_weight is not None or batch_size is not None:
        raise ValueError(
            "A dataset brings its own weights and batches: leave out "
            "`sample_weight` and `batch_size`."
        )
    if not hasattr(data, "__iter__") and not isinstance(
        data, keras.utils.PyDataset
    ):
        remedy = ""
        if callable(data):
            remedy = (
                " Call it, if it makes a generator: pass `data()`; or, to "
                "`kc.calibrate`, `stream=True`."
            )
        elif hasattr(data, "__getitem__"):
            remedy = " Pass a torch `Dataset` in a `DataLoader`."
        raise ValueError(
            "Data must be arrays `x` and `y`, or a dataset, generator or list "
            "of `(x, y)` or `(x, y, sample_weight)`. Received: x of type "
            f"{type(data).__name__}.{remedy}"
        )


def _unpack(batch, labeled):
    if not isinstance(batch, list | tuple):
        batch = (batch,)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(tuple(batch))
    if labeled is False or (labeled is None and y is None):
        return x, None, sample_weight
    if y is None:
        raise ValueError(
            "The data has no labels: a dataset must give `(x, y)` or "
            f"`(x, y, sample_weight)`. Received: {len(batch)} element per "
            "batch."
        )
    if _has_axis(x) and not _has_axis(y):
        raise ValueError(
            "The labels of a batch must be an array with an axis of samples. "
            f"Received: {y!r}."
        )
    return x, y, sample_weight


def for_model(x):
    """Inputs as the backend takes them: foreign tensors become arrays.

    A mixture, which a call refuses, becomes tensors of the backend.
    """
    found = keras.tree.map_structure(
        lambda leaf: leaf if keras.ops.is_tensor(leaf) else as_array(leaf), x
    )
    tensors = [*map(keras.ops.is_tensor, keras.tree.flatten(found))]
    if any(tensors) and not all(tensors):
        return keras.tree.map_structure(keras.ops.convert_to_tensor, found)
    return found
