"""What is stored with a row to see later whether its code has changed.

A probe is a few numbers: of the method's loss on fixed predictions and of its
gradient there, of the table's networks on made inputs, of a short training on
made samples.
"""

import contextlib
import dataclasses
import functools
import io
import json
import pathlib
import tempfile

import condition_losses
import data_sets
import keras
import kinds
import methods
import numpy as np
import protocols
import training
import work
from keras import ops

import keras_calib as kc
from keras_calib.losses._batch_history import BatchHistory
from keras_calib.losses._batch_history import batch_history
from keras_calib.ops.gradients import value_and_gradient

ACLS_SETTINGS = ("margin", "positive_weight", "negative_weight", "reference")
# How a method trains that is no more than a loss, or several networks with one.
PLAIN = ("single", "as_it_is", "ensemble")


def loss_probe(method):
    """Values of a method's loss on fixed predictions: a changed loss shows."""
    loss = work.build_loss(method["loss"])
    generator = np.random.default_rng(0)
    values = []
    for scale in (0.5, 2.0, 8.0):
        logits = scale * generator.normal(size=(32, 10)).astype("float32")
        labels = generator.integers(0, 10, 32).astype("int32")
        if isinstance(loss, kc.losses.CRL):
            # Its history is a model's, so what it is made of is called.
            value = probe_of_history(loss, labels, logits, generator)
        else:
            value = loss(labels, logits)
        values.append(float(value))
    return values


def gradient_probe(method):
    """Sums of a loss's gradient: a change that leaves its values shows.

        32 sum_nk s_nk dL/dz_nk

    with logits z of 32 samples and random signs s, two sums for each of three
    scales. Of a loss that reads a history, the history is made.
    """
    return list(_sums_of_gradient(json.dumps(method["loss"])))


@functools.cache
def _sums_of_gradient(loss):
    loss = work.build_loss(json.loads(loss))
    generator = np.random.default_rng(0)
    values = []
    for scale in (0.5, 2.0, 8.0):
        logits = scale * generator.normal(size=(32, 10)).astype("float32")
        labels = generator.integers(0, 10, 32).astype("int32")
        signs = generator.choice((-1.0, 1.0), size=(2, 32, 10))
        correct = generator.integers(0, 5, 32).astype("float32")
        counts = correct, np.full(32, 5, "float32"), np.float32(0)
        history = BatchHistory(*map(ops.convert_to_tensor, counts))
        with batch_history(history):
            _, gradient = value_and_gradient(
                functools.partial(loss, labels), logits
            )
        values += (32 * (signs * gradient).sum(axis=(1, 2))).tolist()
    return values


@functools.cache
def network_probe(table):
    """Logits of a table's networks on made inputs: a changed network shows.

    The weights are made, too. `None` for networks that read a stream, and for a
    published one whose file is not there.
    """
    protocol = protocols.PROTOCOLS[table]
    if protocol.streamed or not _has_published(protocol):
        return None
    names = dict.fromkeys([protocol.network, protocol.auxiliary])
    if protocol.kind == "fine_tuning":  # the same for any name
        names = [protocol.network]
    with _in_float32():
        return [value for name in names for value in _logits_of(protocol, name)]


@contextlib.contextmanager
def _in_float32():
    """The policy for a while, whatever that of the table is."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


def _has_published(protocol):
    """Whether a network can be built, of which a file may be needed."""
    if protocol.kind != "fine_tuning":
        return True
    try:
        return (data_sets.data_folder() / protocol.weights).exists()
    except FileNotFoundError:  # no folder is named
        return False


def _logits_of(protocol, name):
    """Four numbers of a network: its size, and three of its logits."""
    side, classes = (48, 11) if protocol.kind == "segmentation" else (32, 10)
    images = _made((2, side, side, 3), 127, 127).astype("uint8")
    data = {"test": (images, np.arange(classes))}
    network = work.Task({}, protocol, data, seed=0).network(name)
    if protocol.kind == "text":
        words = protocol.words - 1
        shape = (2, protocol.length)
        data["test"] = (_made(shape, words / 2, words / 2).astype("int32"), 0)
    _make_weights(network)
    logits = keras.ops.convert_to_numpy(network(data["test"][0]))
    logits = logits.reshape(-1)[:3].astype(float)
    return [float(network.count_params()), *logits.tolist()]


def _make_weights(network, first=0):
    """Weights of the usual size, the same everywhere."""
    for variable in network.weights:
        if "float" not in variable.dtype:  # the state of a generator
            continue
        shape = tuple(variable.shape)
        if len(shape) == 1:  # shifts, and scales and variances above 0
            middle = "gamma" in variable.name or "var" in variable.name
            value = _made(shape, 0.1, middle, first)
        else:
            value = _made(shape, np.sqrt(6 / np.prod(shape[:-1])), 0, first)
        variable.assign(value)


def _made(shape, size, middle, first=0):
    """Numbers around `middle` without a pattern, the same everywhere."""
    index = first + np.arange(np.prod(shape, dtype=int))
    return (middle + size * np.sin(index**1.5)).reshape(shape)


def probe_of_history(loss, labels, logits, generator):
    """A value of a loss that reads a history; the history is drawn."""
    correctness = generator.random(len(labels)).astype("float32")
    if not isinstance(loss, condition_losses.RankedACLS):
        return kc.losses.crl(labels, logits, correctness)
    confidence = ops.max(ops.softmax(logits), axis=-1)
    active = condition_losses.ranking_condition(
        ops.convert_to_tensor(correctness), confidence
    )
    settings = {name: getattr(loss, name) for name in ACLS_SETTINGS}
    value = kc.losses.acls(labels, logits, conditional=False, **settings)
    return ops.mean(active * value)


def procedure_probe(table, method):
    """Losses and logits of a short training: a changed procedure shows.

    A linear network learns made images, for as many epochs as it takes until
    pruning begins. `None` for methods that are no more than a loss. Random
    draws differ between backends: only numbers of one can be compared.
    """
    kind = protocols.PROTOCOLS[table].kind
    # The rest is settings, which are compared as they are.
    return trained_values(kind == "fine_tuning", method)


@functools.cache
def trained_values(has_held_back, method):
    """See `procedure_probe`."""
    spec = methods.method(method)
    if spec["train"] in PLAIN:
        return None
    parts = {"train": 64, "validation": 32, "calibration": 16, "test": 16}
    if has_held_back:
        parts["held_back"] = 32
    generator = np.random.default_rng(0)
    data = {
        part: (
            generator.integers(0, 256, (count, 8, 8, 3)).astype("uint8"),
            np.arange(count) % 10,
        )
        for part, count in parts.items()
    }
    protocol = kinds.Protocol(
        epochs=6, batch_size=16, learning_rate=0.01, auxiliary_rate=0.01
    )
    with (
        _in_float32(),
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        task = _SmallTask(spec, protocol, data, seed=0)
        path = pathlib.Path(folder) / "probe"
        logits, found = work.train_task(task, path)
    return [*found["history"]["loss"], *logits["test"][0].tolist()]


@dataclasses.dataclass
class _SmallTask(work.Task):
    """A task with linear networks, of different weights each."""

    built: int = 0

    def network(self, name):
        inputs = keras.Input((8, 8, 3), dtype="uint8")
        x = training.Augment(0, mirror=False)(inputs)
        x = keras.layers.Flatten()(x)
        found = keras.Model(inputs, keras.layers.Dense(self.num_classes)(x))
        self.built += 1
        _make_weights(found, first=100 * self.built)
        return found
