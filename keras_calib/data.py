"""Whatever `fit` accepts as data -> batches -> one pass of a network."""

import keras
import numpy as np

from keras_calib.inputs.arrays import as_array
from keras_calib.ops.replicas import num_replicas


def batches(x, y=None, sample_weight=None, batch_size=None, steps=None):
    """Iterate over calibration data once.

    Args:
        x: arrays (or a list or dict of them) when `y` is given; otherwise a
            `tf.data.Dataset`, a `keras.utils.PyDataset`, a torch `DataLoader`
            or any iterable of `(x, y)` or `(x, y, sample_weight)`.
        y: labels, or `None`.
        sample_weight: weights for arrays, or `None`.
        batch_size: for arrays; 32 by default, as in Keras.
        steps: how many batches to take; needed for endless data.

    Returns:
        An iterator of `(x, y, sample_weight)` and the number of batches, or
        `None` where it cannot be known.

    Raises:
        ValueError: if arrays differ in length, data has no labels, or the
            data is endless and `steps` is not given.
    """
    if y is not None:
        if isinstance(y, list | tuple):
            y = np.asarray(y)
        source, total = _array_batches(x, y, sample_weight, batch_size or 32)
    else:
        source, total = _dataset_batches(x, sample_weight, batch_size)
        if steps is None and total == float("inf"):
            raise ValueError(
                "The calibration data is endless. Pass `steps=`, the number "
                "of batches to take."
            )
    if steps is not None:
        total = steps if total is None else min(steps, total)
    return _take(source, steps), total


def _take(source, steps):
    for step, batch in enumerate(source):
        if steps is not None and step >= steps:
            return
        yield batch


def _array_batches(x, y, sample_weight, batch_size):
    lengths = {
        len(leaf)
        for leaf in keras.tree.flatten((x, y, sample_weight))
        if leaf is not None
    }
    if len(lengths) != 1:
        raise ValueError(
            "Inputs, labels and weights must have the same length. "
            f"Received: lengths {sorted(lengths)}."
        )
    length = lengths.pop()

    def cut(part):
        return keras.tree.map_structure(
            lambda leaf: leaf if leaf is None else leaf[part],
            (x, y, sample_weight),
        )

    starts = range(0, length, batch_size)
    return (cut(slice(i, i + batch_size)) for i in starts), len(starts)


def _dataset_batches(data, sample_weight, batch_size):
    if isinstance(data, np.ndarray) or keras.ops.is_tensor(data):
        raise ValueError(
            "Labels are missing: pass `kc.calibrate(model, x, y)`, or a "
            "dataset of `(x, y)`."
        )
    if sample_weight is not None or batch_size is not None:
        raise ValueError(
            "A dataset brings its own weights and batches: leave out "
            "`sample_weight` and `batch_size`."
        )
    if isinstance(data, keras.utils.PyDataset):
        total = data.num_batches
        if total is None:
            total = float("inf")
            return (_unpack(data[i]) for i in _count()), total
        return (_unpack(data[i]) for i in range(total)), total
    total = _length(data)
    return (_unpack(batch) for batch in data), total


def _count():
    i = 0
    while True:
        yield i
        i += 1


def _length(data):
    if hasattr(data, "cardinality"):  # tf.data; -1 endless, -2 unknown
        total = int(data.cardinality())
        return {-1: float("inf"), -2: None}.get(total, total)
    try:
        return len(data)
    except TypeError:
        return None


def _unpack(batch):
    if not isinstance(batch, list | tuple):
        batch = (batch,)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(tuple(batch))
    if y is None:
        raise ValueError(
            "Calibration needs labels: a dataset must give `(x, y)` or "
            f"`(x, y, sample_weight)`. Received: {len(batch)} element per "
            "batch."
        )
    return x, y, sample_weight


def for_model(x):
    """Inputs as the backend takes them: foreign tensors become arrays."""
    return keras.tree.map_structure(
        lambda leaf: leaf if keras.ops.is_tensor(leaf) else as_array(leaf), x
    )


def outputs_of(network, x):
    """What a network with one output gives for one batch, as an array."""
    outputs = as_array(network.predict_on_batch(x))
    # Each replica of a strategy is given the whole batch.
    return outputs[: len(outputs) // num_replicas(network)]


def predict_once(network, source, total, verbose=0):
    """Run a network once over batches, and keep the labels that went with it.

    Args:
        network: a `keras.Model` with one output.
        source: an iterator of `(x, y, sample_weight)`; see `batches`.
        total: how many batches there are, or `None`.
        verbose: 0 for silence, else a progress bar.

    Returns:
        scores: what the network gave, float32 or float64.
        labels: as they came, one array.
        weight: an array, or `None`.

    Raises:
        ValueError: if there is no batch.
    """
    bar = None
    if verbose:
        bar = keras.utils.Progbar(total, unit_name="batch")
    scores, labels, weights = [], [], []
    for step, (x, y, weight) in enumerate(source, start=1):
        out = outputs_of(network, for_model(x))
        # Half precision has no digits left for a softmax.
        scores.append(out if out.dtype == "float64" else out.astype("float32"))
        labels.append(as_array(y))
        weights.append(None if weight is None else as_array(weight))
        if bar is not None:
            bar.update(step)
    if not scores:
        raise ValueError("The calibration data is empty: 0 batches.")
    if bar is not None:
        bar.update(len(scores), finalize=True)
    weighted = weights[0] is not None
    return (
        concatenate(scores),
        concatenate(labels),
        concatenate(weights) if weighted else None,
    )


def concatenate(parts):
    """Join arrays and free each once it is copied: one copy at a time."""
    length = sum(len(part) for part in parts)
    whole = np.empty((length, *parts[0].shape[1:]), parts[0].dtype)
    start = 0
    while parts:
        part = parts.pop(0)
        whole[start : start + len(part)] = part
        start += len(part)
    return whole
