"""Padding does not count, whichever way the predictions came."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.callbacks import _adafocal_schedule as adafocal_schedule
from tests.helpers import to_numpy

LENGTH, CLASSES = 7, 3


def tokens(network, size=21):
    """Texts of different length, padded with 0, and a label per token.

    The network is overconfident, by a temperature of 2, and wrong at padding.
    """
    rng = np.random.default_rng(0)
    x = rng.integers(1, 9, (size, LENGTH))
    x[np.arange(LENGTH) >= rng.integers(1, LENGTH + 1, size)[:, None]] = 0
    scores = network.predict(x, verbose=0)
    y = (scores / 2 + rng.gumbel(size=scores.shape)).argmax(axis=-1)
    return x, np.where(x > 0, y, scores.argmin(axis=-1))


def tagger():
    """A confident network of tokens, whose output has a mask."""
    network = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(9, 4, mask_zero=True),
            keras.layers.Dense(CLASSES),
        ]
    )
    rng = np.random.default_rng(2)
    network.set_weights(
        [rng.normal(size=w.shape) for w in network.get_weights()]
    )
    loss = kc.losses.AdaFocalLoss(num_bins=4, from_logits=True)
    network.compile(
        keras.optimizers.SGD(0.0), loss, metrics=loss.component_metrics()
    )
    return network


@pytest.mark.parametrize("own", [False, True], ids=["validation", "own"])
@pytest.mark.parametrize("weights", [None, "samples", "tokens"])
def test_padding_does_not_count(own, weights, tmp_path, monkeypatch):
    network = tagger()
    x, y = tokens(network)
    rng = np.random.default_rng(1)
    shape = {None: None, "samples": (21,), "tokens": (21, LENGTH)}[weights]
    weight = None
    if shape:
        weight = rng.uniform(0.5, 2.0, shape).astype("float32")
    validation = (x, y) if weight is None else (x, y, weight)
    data = validation if own else None
    drawn = []
    original = kc.plots.reliability_diagram
    monkeypatch.setattr(
        kc.plots,
        "reliability_diagram",
        lambda *args, **kwargs: drawn.append(args) or original(*args, **kwargs),
    )
    schedule = kc.callbacks.AdaFocalSchedule(data, batch_size=8)
    arguments = {"from_logits": True, "batch_size": 8}
    logs = network.fit(
        x,
        y,
        batch_size=8,
        validation_data=validation,
        callbacks=[
            kc.callbacks.CalibrationMonitor(data, metrics="all", **arguments),
            kc.callbacks.TemperatureTracker(data, **arguments),
            kc.callbacks.ReliabilityDiagram(
                tmp_path / "one.png", validation_data=data, **arguments
            ),
            schedule,
        ],
        verbose=0,
    ).history

    keep = x > 0
    logits, labels = network.predict(x, verbose=0)[keep], y[keep]
    if weight is not None:
        shape = weight if weight.ndim == 2 else weight[:, None]
        weight = np.broadcast_to(shape, x.shape)[keep]
    expected = kc.metrics.calibration_errors(
        labels, logits, weight, from_logits=True
    )
    for name, value in expected.items():
        assert logs[f"val_{name}"][0] == pytest.approx(value, abs=1e-5), name
    layer = kc.layers.TemperatureScaling().adapt(logits, labels, weight)
    assert logs["val_temperature"][0] == pytest.approx(
        float(layer.temperature), rel=1e-4
    )
    p = to_numpy(keras.ops.softmax(logits))
    assert len(drawn) == 1
    np.testing.assert_allclose(drawn[0][1], p, atol=1e-6)
    confidence = p.max(axis=-1)
    edges = adafocal_schedule.interpolated_edges(confidence, 4)
    gaps = adafocal_schedule.bin_gaps(
        confidence, p.argmax(axis=-1) == labels, edges, weight
    )
    np.testing.assert_allclose(schedule.gaps[0], gaps, atol=1e-5)


def check_monitor(weight=None, **options):
    """A monitor beside a loss of Keras, against the errors of real tokens."""
    network = tagger()
    x, y = tokens(network)
    network.compile(
        keras.optimizers.SGD(0.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **options,
    )
    # A step may change what it is given.
    weights = () if weight is None else (weight.copy(),)
    logs = network.fit(
        x,
        y,
        batch_size=8,
        validation_data=(x, y, *weights),
        callbacks=[
            kc.callbacks.CalibrationMonitor(from_logits=True, metrics="all")
        ],
        verbose=0,
    ).history
    keep = x > 0
    expected = kc.metrics.calibration_errors(
        y[keep],
        network.predict(x, verbose=0)[keep],
        None if weight is None else weight[keep],
        from_logits=True,
    )
    for name, value in expected.items():
        assert logs[f"val_{name}"][0] == pytest.approx(value, abs=1e-5), name


def test_weights_are_those_before_the_loss():
    # On PyTorch, Keras' losses multiply them by the mask, rescaled, in place.
    weight = np.random.default_rng(1).uniform(0.5, 2.0, (21, LENGTH))
    check_monitor(weight.astype("float32"))


@pytest.mark.backends("tensorflow", "jax", reason="torch: one batch a step")
def test_steps_of_several_batches_lose_no_mask():
    check_monitor(steps_per_execution=2)


@pytest.mark.backends("tensorflow", "jax", reason="torch: one batch a step")
def test_validation_steps_that_executions_do_not_divide():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)).astype("float32"), np.arange(60) % 3
    network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.SGD(0.0), loss, steps_per_execution=2)
    logs = network.fit(
        x,
        y,
        validation_data=(x, y),
        validation_batch_size=10,
        validation_steps=3,
        callbacks=[kc.callbacks.CalibrationMonitor(from_logits=True)],
        verbose=0,
    ).history
    # Keras ends with a whole execution, so with four batches.
    found = logs["val_negative_log_likelihood"][0]
    assert found == pytest.approx(logs["val_loss"][0], rel=1e-5)


@pytest.mark.parametrize("own", [False, True], ids=["validation", "own"])
def test_texts_of_another_length_in_each_batch(own):
    tags = tagger()
    x, y = tokens(tags)
    batches = [
        (x[start : start + 8, :length], y[start : start + 8, :length])
        for start, length in ((0, LENGTH), (8, 1), (16, 4))
    ]

    class Texts(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return batches[i]

    network = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            *tags.layers,
        ]
    )
    network.compile(
        keras.optimizers.SGD(0.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    logs = network.fit(
        Texts(),
        validation_data=Texts(),
        callbacks=[
            kc.callbacks.CalibrationMonitor(
                Texts() if own else None, from_logits=True, metrics="all"
            )
        ],
        verbose=0,
    ).history
    logits = [network.predict_on_batch(part)[part > 0] for part, _ in batches]
    labels = [part[x > 0] for x, part in batches]
    expected = kc.metrics.calibration_errors(
        np.concatenate(labels), np.concatenate(logits), from_logits=True
    )
    for name, value in expected.items():
        assert logs[f"val_{name}"][0] == pytest.approx(value, abs=1e-5), name
