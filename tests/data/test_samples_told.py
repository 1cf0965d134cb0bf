"""An error about a row of a batch says which samples the batch has."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_calib as kc

X = np.random.default_rng(0).normal(size=(200, 4)).astype("float32")
Y = np.arange(200) % 3
BAD = {
    "label": ((np.where(np.arange(200) == 100, 9, Y),), "first in row 4"),
    "weight": ((Y, np.where(np.arange(200) == 100, -1.0, 1.0)), "in row 4"),
}


def monitored(model, *data):
    monitor = kc.callbacks.CalibrationMonitor(data)
    monitor.set_params({"epochs": 1})
    monitor.set_model(model)
    return monitor.arrays()


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "read",
    [
        lambda *data: kc.calibrate(*data, verbose=0),
        lambda *data: kc.calibrate(*data, stream=True, verbose=0),
        lambda model, x, y, sample_weight=None: kc.report(
            model, x, y, sample_weight=sample_weight, verbose=0
        ),
        monitored,
    ],
    ids=["calibrate", "stream", "report", "monitor"],
)
def test_which_samples(read, bad):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, "softmax")])
    data, row = BAD[bad]
    with pytest.raises(ValueError) as told:
        read(model, X, *data)
    assert row in str(told.value)
    assert "batch of samples 96 to 127" in str(told.value)
    # In the first batch rows are samples.
    with pytest.raises(ValueError) as told:
        read(model, X[100:], *(part[100:] for part in data))
    assert "batch of samples" not in str(told.value)
