"""One pass of a network over calibration data -> rows of outputs and labels.

Rows that are void or have no weight are left out of each batch. Outputs above a
limit go to a temporary file, because those of a segmentation network may not
fit in memory.
"""

import contextlib
import dataclasses
import hashlib
import tempfile

import keras
import numpy as np

from keras_calib._progress import ProgressBar
from keras_calib.data.batches import for_model
from keras_calib.data.join import concatenate
from keras_calib.data.join import join_labels
from keras_calib.data.predict import outputs_and_mask
from keras_calib.inputs import rules
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.calibration_rows import group_of_rows
from keras_calib.inputs.label_arrays import as_label_samples
from keras_calib.inputs.large import full_disk_is_told
from keras_calib.inputs.predictions import as_samples
from keras_calib.inputs.predictions import relative_weights

# Bytes of network outputs above which they go to a temporary file.
SPILL = 1 << 28


@dataclasses.dataclass(frozen=True)
class Samples:
    """Outputs of the network and labels, one row per sample that counts.

    Attributes:
        scores: outputs, float32 or float64, `(n, num_classes)`; an array, or a
            memory map that is deleted when `collect` ends.
        labels: int32 class ids, `(n,)`; or soft labels, `(n, num_classes)`.
        weights: float64, `(n,)`, as they were passed in; ones without weights.
        one_hot: whether the labels were passed in as one-hot rows.
        fingerprint: a hash of the inputs that does not depend on their order.
        group: see `CalibrationRows`.
        of_pixels: whether a sample has rows along several axes, as an image.
    """

    scores: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    one_hot: bool
    fingerprint: str
    group: np.ndarray | None
    of_pixels: bool = False


@contextlib.contextmanager
def collect(
    network, data, ignore_class=None, verbose=0, *, groups=None, spill=None
):
    """Run a network once over batches, and keep the rows that are used.

    Elements that Keras masks are ignored.

    Args:
        network: a `keras.Model` with one output.
        data: `Batches`.
        ignore_class: samples with this label are ignored.
        verbose: see `ProgressBar`.
        groups: `None`, or the id of the group of each sample, in the order of
            the data.
        spill: bytes of outputs above which they go to a temporary file;
            defaults to 256 MiB.

    Yields:
        `Samples`, valid inside the `with` block.

    Raises:
        ValueError: if there is no batch, no sample that counts, or a batch
            does not fit; see `as_samples`.
    """
    labels, weights = [], []
    walk = Walk(outputs_by_batch(network, data, ignore_class, verbose))
    with Store(SPILL if spill is None else spill) as store:
        for part in walk:
            store.append(part.scores)
            labels.append(part.labels)
            weights.append(part.weights)
        yield walk.samples(
            store.rows(),
            join_labels(labels, store.width),
            np.concatenate(weights),
            groups,
        )


@contextlib.contextmanager
def collect_labels(network, data, ignore_class=None, verbose=0, *, groups=None):
    """`collect` of several sigmoid units, with a label for each.

    Yields:
        `Samples`, whose labels, 0 or 1, and weights, 0 where a label does not
        count, have the shape of the scores.
    """
    walk = Walk(
        outputs_by_batch(network, data, ignore_class, verbose, as_label_samples)
    )
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(Store(SPILL)) for _ in range(3)]
        for part in walk:
            arrays = part.scores, part.labels, part.weights
            for store, rows in zip(stores, arrays, strict=True):
                store.append(rows)
        yield walk.samples(*(store.rows() for store in stores), groups)


class Walk:
    """The batches with rows that count, and what is known of all samples."""

    def __init__(self, batches):
        self.batches = batches
        self.hashes, self.unit = [], []
        self.num_samples, self.one_hot, self.of_pixels = 0, False, False

    def __iter__(self):
        for part in self.batches:
            self.unit.append(self.num_samples + part.unit)
            self.num_samples += len(part.hashes)
            self.hashes.append(part.hashes)
            self.one_hot, self.of_pixels = part.one_hot, part.of_pixels
            if len(part.labels):
                yield part
        if not sum(map(len, self.unit)):
            raise ValueError(
                "There is no calibration sample to fit to. Received: "
                f"{len(self.hashes)} batches without a sample that has a "
                "weight above 0 and a label that counts."
            )

    def samples(self, scores, labels, weights, groups):
        """`Samples` of the rows of all batches."""
        return Samples(
            scores,
            labels,
            weights,
            self.one_hot,
            fingerprint_of(self.hashes),
            group_of_rows(np.concatenate(self.unit), self.num_samples, groups),
            self.of_pixels,
        )


@contextlib.contextmanager
def collect_outputs(network, data, verbose=0):
    """Run a network once over data without labels.

    Args:
        network: a `keras.Model` with one output.
        data: `Batches` of `(x, None, sample_weight)`.
        verbose: see `ProgressBar`.

    Yields:
        scores: outputs of the rows that count, `(n, num_classes)`.
        weights: `None`, or float64 with sum `n`, `(n,)`.
        by_sample: whether each sample has one row, not one per pixel or token.

    Raises:
        ValueError: if no row counts; see `collect`.
    """
    found, rank = [], 2
    with Store(SPILL) as store:
        for _, scores, mask, _, weights in run_by_batch(network, data, verbose):
            rank = max(rank, scores.ndim)
            labels = np.zeros(scores.shape[:-1], "int32")
            scores, labels, weights, *_ = as_samples(
                scores, labels, weights, None, mask
            )
            if len(labels):
                store.append(scores)
                ones = np.ones(len(labels))
                found.append(ones if weights is None else weights)
        if not found:
            raise ValueError(
                "There is no sample. Received: batches without a sample that "
                "has a weight above 0."
            )
        weights = relative_weights(np.concatenate(found))
        yield store.rows(), weights, rank == 2


@dataclasses.dataclass(frozen=True)
class BatchOutputs:
    """`Samples` of one batch; it may have none.

    Attributes:
        scores, labels, weights: see `Samples`.
        unit: the entry of the batch that each row came from, `(n,)`.
        one_hot: see `Samples`.
        hashes: a hash of each input, uint64, `(batch,)`.
        of_pixels: see `Samples`.
        group: `None`, as rows of a fit have it.
    """

    scores: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    unit: np.ndarray
    one_hot: bool
    hashes: np.ndarray
    of_pixels: bool = False
    group = None


def outputs_by_batch(
    network, data, ignore_class=None, verbose=0, read=as_samples
):
    """Run a network once over batches; see `collect`.

    Each batch is read by `read`, which returns what `as_samples` returns.

    Yields:
        `BatchOutputs`.

    Raises:
        ValueError: if a batch does not fit; see `as_samples`.
    """
    start = 0
    for x, scores, mask, y, weights in run_by_batch(network, data, verbose):
        hashes = hashes_of(x, len(y))
        one_hot = scores.ndim == y.ndim and y.shape[-1] > 1
        of_pixels = scores.ndim > 3
        with samples_told(start, len(y)):
            scores, y, weights, unit, units = read(
                scores, y, weights, ignore_class, mask
            )
        start += len(hashes)
        if unit is None:
            unit = np.arange(units)
        if weights is None:
            weights = np.ones(len(y))
        yield BatchOutputs(scores, y, weights, unit, one_hot, hashes, of_pixels)


@contextlib.contextmanager
def samples_told(start, length):
    """Say which samples a batch has in an error about one of its rows."""
    try:
        yield
    except ValueError as error:
        if not start:
            raise
        raise ValueError(
            f"{error} (This is in the batch of samples {start} to "
            f"{start + length - 1}, whose rows are counted from 0.)"
        ) from error


def run_by_batch(network, data, verbose=0):
    """Run a network once over batches.

    Args:
        network: a `keras.Model` with one output.
        data: `Batches`.
        verbose: see `ProgressBar`.

    Yields:
        `(x, scores, mask, y, sample_weight)`; see `outputs_and_mask`.
    """
    bar = ProgressBar(data.total, verbose, unit_name="batch predicted")
    for x, y, weights in data:
        x = for_model(x)
        scores, mask = outputs_and_mask(network, x)
        if scores.ndim < 2:
            raise ValueError(rules.no_class_axis(scores.shape))
        yield x, scores, mask, None if y is None else as_array(y), weights
        bar.step()
    bar.finish()


def fingerprint_of(hashes):
    """The hashes of all samples as one, whatever their order."""
    return f"{int(np.concatenate(hashes).sum()):016x}"


def hashes_of(x, length):
    """A hash of each sample, uint64; their sum does not depend on the order."""
    leaves = [as_array(leaf) for leaf in keras.tree.flatten(x)]
    leaves = [leaf for leaf in leaves if leaf.ndim and len(leaf) == length]
    # As a model casts them: the same samples in float64 are the same.
    with np.errstate(over="ignore"):
        leaves = [
            leaf.astype("float32") if leaf.dtype == "float64" else leaf
            for leaf in leaves
        ]
    hashes = np.empty(length, "uint64")
    for i in range(length):
        digest = hashlib.blake2b(digest_size=8)
        for leaf in leaves:
            digest.update(np.ascontiguousarray(leaf[i]))
        hashes[i] = int.from_bytes(digest.digest(), "little")
    return hashes


class Store(contextlib.AbstractContextManager):
    """Blocks of rows, in memory up to a limit and in a file above it.

    The file has no name, so the system frees it whatever ends the process.
    """

    def __init__(self, limit):
        self.limit = limit
        self.blocks, self.size, self.length = [], 0, 0
        self.file = self.map = self.dtype = None

    def append(self, block):
        block = np.ascontiguousarray(block)
        if self.dtype not in (None, block.dtype):
            raise ValueError(
                "Arrays of all batches must have one dtype: they are kept "
                "together, and numbers of another one would be cut. Received: "
                f"dtypes {sorted(map(str, (self.dtype, block.dtype)))}. Cast "
                "them."
            )
        self.length += len(block)
        self.width, self.dtype = block.shape[1], block.dtype
        self.size += block.nbytes
        if self.file is None:
            self.blocks.append(block)
            if self.size > self.limit:
                self._spill()
        else:
            self._write(block)

    def _spill(self):
        self.file = tempfile.TemporaryFile(prefix="keras_calib_")
        while self.blocks:
            self._write(self.blocks.pop(0))

    def _write(self, block):
        received = f"{self.size:,} bytes so far"
        try:
            with full_disk_is_told("Outputs of the network", received):
                self.file.write(block)
                self.file.flush()
        except OSError:
            with contextlib.suppress(OSError):
                self.file.close()  # tries to write once more
            raise

    def rows(self):
        shape = (self.length, self.width)
        if self.file is not None:
            self.map = np.memmap(self.file, self.dtype, "r+", shape=shape)
            return self.map
        return concatenate(self.blocks)

    def __exit__(self, *exception):
        self.blocks.clear()
        if self.file is not None:
            self.map = None
            self.file.close()
