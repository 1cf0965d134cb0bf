"""`fit` on two devices: a strategy of TensorFlow, or `DataParallel` of Keras.

In the manner of the Keras guides on distributed training. The two devices are
virtual CPUs. Loss, metric and monitor are given as they are on one.

    KERAS_BACKEND=jax python examples/stories/data_parallel.py
"""

import contextlib
import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=2"
)

import keras
import made
from common import tell

import keras_calib as kc


def on_two_devices():
    """A scope in which a model is made that trains on two devices."""
    if keras.backend.backend() == "torch":
        raise SystemExit(
            "With PyTorch, Keras trains on one device. Several have a process "
            "each: examples/distributed.py."
        )
    if keras.backend.backend() == "jax":
        devices = keras.distribution.list_devices()
        keras.distribution.set_distribution(
            keras.distribution.DataParallel(devices=devices)
        )
        return contextlib.nullcontext(), len(devices)
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, 2 * [tf.config.LogicalDeviceConfiguration()]
    )
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    return strategy.scope(), strategy.num_replicas_in_sync


def main():
    scope, devices = on_two_devices()
    keras.utils.set_random_seed(0)
    train, calibration, test = made.table()
    with scope:
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(3),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.01),
            kc.losses.EntropyRegularization(weight=0.1, from_logits=True),
            metrics=[kc.metrics.ExpectedCalibrationError(from_logits=True)],
        )
    model.fit(
        *train,
        validation_data=calibration,
        epochs=15,
        batch_size=40,
        verbose=0,
        callbacks=[kc.callbacks.CalibrationMonitor(from_logits=True)],
    )
    calibrated = kc.calibrate(model, *calibration, verbose=0)
    tell(model, calibrated, *test, devices=devices)


if __name__ == "__main__":
    main()
