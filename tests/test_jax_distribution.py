"""Two or four devices of `keras.distribution` give what one gives, on JAX."""

import pytest

from tests.helpers import run_in_fresh_process

START = """
import os

flags = os.environ.get("XLA_FLAGS", "")  # those of `conftest.py`
os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=4"

import keras
import numpy as np
import keras_calib as kc
from tests.walks import every_loss
from tests.walks import every_metric

DEVICES = [f"cpu:{i}" for i in range(NUM_DEVICES)]
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 8)).astype("float32")
y = (3 * x[:, :4] + rng.gumbel(size=(64, 4))).argmax(axis=1)

def network():
    return keras.Sequential([
        keras.Input((8,)),
        keras.layers.Dense(16, "relu", name="hidden"),
        keras.layers.Dense(4, name="scores"),
    ])

def data_parallel():
    return keras.distribution.DataParallel(devices=DEVICES)

def model_parallel(name="hidden", shape=(1, NUM_DEVICES)):
    mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), DEVICES)
    layout = keras.distribution.LayoutMap(mesh)
    layout[f".*{name}.*kernel"] = (None, "model")
    layout[f".*{name}.*bias"] = ("model",)
    return keras.distribution.ModelParallel(
        layout_map=layout, batch_dim_name="batch"
    )

def classes_parallel():
    # Each device has the weights, and the logits, of some classes only.
    return model_parallel("scores")

def classes_and_data_parallel():
    return model_parallel("scores", (NUM_DEVICES // 2, 2))

WAYS = [data_parallel, model_parallel]
if NUM_DEVICES > 2:
    WAYS += [classes_parallel, classes_and_data_parallel]
"""

END = """
def under(make):
    keras.distribution.set_distribution(make and make())
    keras.utils.set_random_seed(0)
    try:
        return found()
    finally:
        keras.distribution.set_distribution(None)

one = under(None)
for make in WAYS:
    two = under(make)
    assert set(one) == set(two), set(one) ^ set(two)
    for name in one:
        np.testing.assert_allclose(
            np.asarray(one[name], float), np.asarray(two[name], float),
            rtol=1e-5, atol=2e-6, err_msg=f"{name}, {make.__name__}",
        )
print("equal", len(one))
"""

SHARDED = """
def found():
    kernels = [layer.kernel.value for layer in network().layers]
    if keras.distribution.distribution() is not None:
        for kernel in kernels:
            assert len(kernel.sharding.device_set) == NUM_DEVICES
        whole = [kernel.sharding.is_fully_replicated for kernel in kernels]
        split = isinstance(
            keras.distribution.distribution(), keras.distribution.ModelParallel
        )
        assert whole.count(False) == split, whole
    return {"kernel": kernels[0], "of_classes": kernels[1]}
"""

# 63 rows: the last batch cannot be divided among the devices, which Keras'
# `predict` refuses.
MONITORED = """
def found():
    model = network()
    logits = {"from_logits": True}
    model.compile(
        keras.optimizers.SGD(0.1),
        kc.losses.MarginLabelSmoothing(margin=1.0, **logits),
        metrics=[
            kc.metrics.ExpectedCalibrationError(**logits),
            kc.metrics.AdaptiveCalibrationError(**logits),
            kc.metrics.ClasswiseCalibrationError(num_classes=4, **logits),
        ],
    )
    monitors = [
        kc.callbacks.CalibrationMonitor(data, every=2, **logits)
        for data in (None, (x[:63], y[:63]))
    ]
    history = model.fit(
        x, y, batch_size=16, epochs=2, verbose=0, validation_data=(x, y),
        callbacks=monitors,
    ).history
    calibrated = kc.calibrate(model, x[:63], y[:63], guard=False, verbose=0)
    errors = kc.metrics.calibration_errors(
        y, calibrated.predict(x, verbose=0), metrics=["brier_score"]
    )
    temperature = kc.calibration_record(calibrated)["temperature"]
    return {**history, **errors, "temperature": temperature}
"""

MUTUAL = """
def found():
    pair = kc.models.DiffDML(network(), network(), label_warmup=3)
    pair.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    history = pair.fit(
        x, y, batch_size=16, epochs=2, verbose=0, shuffle=False,
        validation_data=(x, y),
    ).history
    return {**history, "weights": pair.get_weights()[0],
            "auxiliary": pair.auxiliaries[0].get_weights()[0]}
"""

HISTORY = """
def found():
    model = kc.models.SampleHistoryModel(network(), num_samples=64)
    model.compile(keras.optimizers.SGD(0.1), kc.losses.CRL(from_logits=True))
    model.fit(kc.add_sample_index(x), y, batch_size=16, epochs=3, verbose=0)
    history = model.sample_history()
    np.testing.assert_array_equal(history["seen"], 3.0)
    return history
"""

# Also those that are one statistic of the batch: it is the whole batch's.
LOSSES = """
def found():
    weights = {}
    for name, loss in every_loss():
        keras.utils.set_random_seed(0)
        model = network()
        model.compile(keras.optimizers.SGD(0.1), loss)
        model.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=0)
        weights[name] = model.get_weights()[2]
    return weights
"""

METRICS = """
def found():
    model = network()
    metrics = [metric for _, metric in every_metric(num_classes=4)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=metrics)
    return model.evaluate(3 * x, y, 16, verbose=0, return_dict=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [SHARDED, MONITORED, MUTUAL, HISTORY, LOSSES, METRICS],
    ids=["sharded", "monitored", "mutual", "history", "losses", "metrics"],
)
@pytest.mark.parametrize(
    "num_devices", [2, pytest.param(4, marks=pytest.mark.weekly)]
)
@pytest.mark.backends("jax", reason="its devices")
def test_several_devices_are_as_good_as_one(script, num_devices):
    # In a process of its own: devices are set before JAX starts.
    start = f"NUM_DEVICES = {num_devices}\n{START}"
    printed = run_in_fresh_process(start + script + END)
    assert printed.strip().splitlines()[-1].startswith("equal")
