"""Two or four replicas of `tf.distribute` give what one gives."""

import pytest

from tests.helpers import run_in_fresh_process

START = """
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
one = tf.config.LogicalDeviceConfiguration()
tf.config.set_logical_device_configuration(cpu, [one] * NUM_REPLICAS)

import keras
import numpy as np
import keras_calib as kc
from tests.walks import every_loss
from tests.walks import every_metric

rng = np.random.default_rng(0)
x = rng.normal(size=(64, 8)).astype("float32")
y = (3 * x[:, :3] + rng.gumbel(size=(64, 3))).argmax(axis=1)

def network():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])

"""

END = """
one = found(tf.distribute.get_strategy())
devices = [f"/cpu:{i}" for i in range(NUM_REPLICAS)]
two = found(tf.distribute.MirroredStrategy(devices))
assert set(one) == set(two), set(one) ^ set(two)
for name in one:
    np.testing.assert_allclose(
        one[name], two[name], rtol=TOLERANCE, atol=1e-6, err_msg=name
    )
print("equal", len(one))
"""

MONITORED = """
def found(strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = network()
        model.compile(
            keras.optimizers.SGD(0.1),
            kc.losses.MarginLabelSmoothing(margin=1.0, from_logits=True),
            metrics=[kc.metrics.ExpectedCalibrationError(from_logits=True)],
        )
    monitors = [
        kc.callbacks.CalibrationMonitor(data, from_logits=True, every=2)
        for data in (None, (x, y))
    ]
    history = model.fit(
        x, y, batch_size=16, epochs=2, verbose=0, validation_data=(x, y),
        callbacks=monitors,
    ).history
    calibrated = kc.calibrate(model, x, y, guard=False, verbose=0)
    (scaling,) = (
        layer for layer in calibrated.layers
        if isinstance(layer, kc.layers.TemperatureScaling)
    )
    return {**history, "temperature": scaling.temperature}
"""

MUTUAL = """
def found(strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        pair = kc.models.DiffDML(network(), network(), label_warmup=3)
        pair.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    history = pair.fit(
        x, y, batch_size=16, epochs=2, verbose=0, shuffle=False,
        validation_data=(x, y),
    ).history
    assert pair._steps_done.numpy() == 8
    return {**history, "weights": pair.get_weights()[0],
            "auxiliary": pair.auxiliaries[0].get_weights()[0]}
"""

MUTUAL_SUMS = MUTUAL.replace("SGD(0.1)", "SGD(0.1 / 16)").replace(
    "from_logits=True", 'from_logits=True, reduction="sum"'
)
assert 'reduction="sum"' in MUTUAL_SUMS

INTERLEAVED = """
def found(strategy):
    found = {}
    for reduction, rate in (("sum_over_batch_size", 0.1), ("sum", 0.1 / 16)):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = kc.models.InterleavedTraining(network())
            loss = kc.losses.ACLS(
                from_logits=True, margin=0.1, reduction=reduction
            )
            model.compile(keras.optimizers.SGD(rate), loss)
        parts = [
            tf.data.Dataset.from_tensor_slices((x[rows], y[rows])).batch(16)
            for rows in (slice(32), slice(32, 64))
        ]
        history = model.fit(
            parts[0], penalty_data=parts[1], epochs=2, verbose=0
        ).history
        found |= {f"{reduction} {key}": of for key, of in history.items()}
        found[reduction] = model.get_weights()[0]
    return found
"""

HISTORY = """
def found(strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = kc.models.SampleHistoryModel(network(), num_samples=64)
        loss = kc.losses.CRL(from_logits=True)
        model.compile(keras.optimizers.SGD(0.0), loss)
    model.fit(kc.add_sample_index(x), y, batch_size=16, epochs=3, verbose=0)
    history = model.sample_history()
    np.testing.assert_array_equal(history["seen"], 3.0)
    return history
"""

# Also those that are one statistic of the batch.
LOSSES = """
def found(strategy):
    weights = {}
    with strategy.scope():
        losses = list(every_loss(across_replicas=True))
    for name, loss in losses:
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = network()
            model.compile(
                keras.optimizers.SGD(0.1), loss, metrics=components(loss)
            )
        history = model.fit(
            x, y, batch_size=16, epochs=1, shuffle=False, verbose=0
        ).history
        weights[name] = model.get_weights()[0]
        weights |= {f"{name} {key}": value for key, value in history.items()}
    return weights

def components(loss):
    found = getattr(loss, "component_metrics", list)
    return found()
"""

# A sum is 16 times a mean.
SUMS = LOSSES.replace(
    "across_replicas=True", 'across_replicas=True, reduction="sum"'
).replace("SGD(0.1)", "SGD(0.1 / 16)")

METRICS = """
def found(strategy):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = network()
        metrics = [metric for _, metric in every_metric(num_classes=3)]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss, metrics=metrics)
    return model.evaluate(3 * x, y, 16, verbose=0, return_dict=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "tolerance"),
    [
        (MONITORED, 1e-5),
        (MUTUAL, 1e-5),
        (MUTUAL_SUMS, 1e-5),
        (INTERLEAVED, 1e-5),
        (HISTORY, 1e-7),
        (LOSSES, 1e-5),
        (SUMS, 1e-5),
        (METRICS, 1e-5),
    ],
    ids=[
        *("monitored", "mutual", "mutual-sums", "interleaved", "history"),
        *("losses", "sums", "metrics"),
    ],
)
@pytest.mark.parametrize(
    "num_replicas", [2, pytest.param(4, marks=pytest.mark.weekly)]
)
@pytest.mark.backends("tensorflow", reason="its strategy")
def test_several_replicas_are_as_good_as_one(script, tolerance, num_replicas):
    end = END.replace("TOLERANCE", str(tolerance))
    start = f"NUM_REPLICAS = {num_replicas}\n{START}"
    # In a process of its own: devices are set before TensorFlow starts.
    printed = run_in_fresh_process(start + script + end)
    assert printed.startswith("equal"), printed
