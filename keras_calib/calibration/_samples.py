"""One pass of a network over calibration data -> rows of logits and labels.

Rows that do not count are left out at once, and what is larger than a limit
goes to a temporary file: the logits of a segmentation network are never all in
memory.
"""

import contextlib
import dataclasses
import hashlib
import os
import tempfile

import keras
import numpy as np

from keras_calib.calibration._checks import one_number
from keras_calib.data import batches as data
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.predictions import as_samples
from keras_calib.inputs.predictions import relative_weights

# Bytes of network outputs above which they go to a temporary file.
SPILL = 1 << 30


@dataclasses.dataclass(frozen=True)
class Samples:
    """What the network made of the calibration data.

    Attributes:
        scores: the network's outputs, one row per sample that counts, float32
            or float64, `(n, num_classes)`; an array, or a memory map that is
            gone when `collect` ends.
        labels: int32 class ids, `(n,)`; or soft labels, `(n, num_classes)`.
        weight: `None`, or float64, `(n,)`.
        one_hot: whether the labels came as one-hot rows.
        fingerprint: a hash of the inputs that does not depend on their order.
    """

    scores: object
    labels: object
    weight: object
    one_hot: bool
    fingerprint: str


@contextlib.contextmanager
def collect(network, source, total, ignore_class=None, verbose=0, spill=None):
    """Run a network once over batches, and keep the rows that count.

    Elements that Keras masks do not count.

    Args:
        network: a `keras.Model` with one output.
        source: an iterator of `(x, y, sample_weight)`; see `data.batches`.
        total: how many batches there are, or `None`.
        ignore_class: samples with this label do not count.
        verbose: 0 for silence, else a progress bar.
        spill: bytes of outputs above which they go to a temporary file; 1 GiB
            by default.

    Yields:
        `Samples`, valid inside the `with` block.

    Raises:
        ValueError: if there is no batch, no sample that counts, or a batch
            does not fit; see `as_samples`.
    """
    bar = keras.utils.Progbar(total, unit_name="batch") if verbose else None
    labels, weights, prints = [], [], []
    one_hot, step = False, 0
    with _Store(SPILL if spill is None else spill) as store:
        for step, (x, y, weight) in enumerate(source, start=1):
            x = data.for_model(x)
            scores, mask = data.outputs_and_mask(network, x)
            y = as_array(y)
            if scores.ndim < 2:
                raise ValueError(one_number(scores.shape))
            weight = data.masked_weights(weight, mask, scores.shape[:-1])
            prints.append(_hashes(x, len(y)))
            one_hot = scores.ndim == y.ndim and y.shape[-1] > 1
            if _counts(y, weight, ignore_class):
                rows = as_samples(scores, y, weight, ignore_class)
                store.append(rows[0])
                labels.append(rows[1])
                weights.append(
                    np.ones(len(rows[1])) if rows[2] is None else rows[2]
                )
            if bar is not None:
                bar.update(step)
        if not step:
            raise ValueError("The calibration data is empty: 0 batches.")
        if bar is not None:
            bar.update(step, finalize=True)
        if not labels:
            raise ValueError(
                "There is no calibration sample to fit to. Received: "
                f"{step} batches without a sample that has a weight above 0 "
                "and a label that counts."
            )
        weight = np.concatenate(weights)
        yield Samples(
            store.rows(),
            _join(labels, scores.shape[-1]),
            relative_weights(weight),
            one_hot,
            f"{int(np.concatenate(prints).sum()):016x}",
        )


def _join(labels, num_classes):
    """Labels of all batches; as rows where one batch has soft labels."""
    if any(part.ndim == 2 for part in labels):
        identity = np.eye(max(2, num_classes), dtype="float32")
        labels = [part if part.ndim == 2 else identity[part] for part in labels]
    return np.concatenate(labels)


def _counts(labels, weight, ignore_class):
    """Whether any row of a batch counts."""
    counts = labels.size > 0
    if ignore_class is not None and counts:
        counts = bool((labels != ignore_class).any())
    if weight is not None and counts:
        counts = bool((as_array(weight) != 0).any())
    return counts


def _hashes(x, length):
    """A hash of each sample of a batch of inputs, uint64: they add up."""
    leaves = [as_array(leaf) for leaf in keras.tree.flatten(x)]
    leaves = [leaf for leaf in leaves if leaf.ndim and len(leaf) == length]
    hashes = np.empty(length, "uint64")
    for i in range(length):
        digest = hashlib.blake2b(digest_size=8)
        for leaf in leaves:
            digest.update(np.ascontiguousarray(leaf[i]))
        hashes[i] = int.from_bytes(digest.digest(), "little")
    return hashes


class _Store(contextlib.AbstractContextManager):
    """Blocks of rows, in memory up to a limit and in a file beyond it."""

    def __init__(self, limit):
        self.limit = limit
        self.blocks, self.size, self.length = [], 0, 0
        self.folder = self.file = self.map = None

    def append(self, block):
        block = np.ascontiguousarray(block)
        self.length += len(block)
        self.width, self.dtype = block.shape[1], block.dtype
        self.size += block.nbytes
        if self.file is None:
            self.blocks.append(block)
            if self.size > self.limit:
                self._spill()
        else:
            self.file.write(block)

    def _spill(self):
        self.folder = tempfile.TemporaryDirectory(prefix="keras_calib_")
        path = os.path.join(self.folder.name, "scores")
        self.file = open(path, "w+b")
        while self.blocks:
            self.file.write(self.blocks.pop(0))

    def rows(self):
        shape = (self.length, self.width)
        if self.file is not None:
            self.file.flush()
            self.map = np.memmap(self.file, self.dtype, "r+", shape=shape)
            return self.map
        return data.concatenate(self.blocks)

    def __exit__(self, *exception):
        self.blocks.clear()
        if self.file is not None:
            self.map = None
            self.file.close()
            self.folder.cleanup()
