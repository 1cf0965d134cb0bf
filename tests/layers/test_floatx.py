"""Maps where numbers have other digits by default, float64 in a process."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.helpers import fitted_layers
from tests.helpers import to_numpy

SCRIPT = """
import keras
keras.backend.set_floatx("float64")
import numpy as np
import keras_calib as kc

rng = np.random.default_rng(0)
z = 4 * rng.normal(size=(64, 3))
y = z.argmax(axis=1)
layer = kc.layers.BayesianTemperatureScaling().adapt(z, y)
q = keras.ops.convert_to_numpy(keras.ops.softmax(layer(z)))
np.testing.assert_allclose(q.sum(axis=1), 1, rtol=1e-5)
threshold = kc.layers.RiskThreshold(target_risk=0.2).adapt(z, y)
accepted = keras.ops.convert_to_numpy(threshold(z))
assert set(accepted) <= {-1, 0, 1, 2} and (accepted >= 0).any()
inputs = keras.Input((3,))
model = keras.Model(inputs, keras.layers.Identity()(inputs))
settings = {"method": "auto", "from_logits": True, "verbose": 0}
calibrated = kc.calibrate(model, z, y, **settings)
total = calibrated.predict(z, verbose=0).sum(axis=1)
np.testing.assert_allclose(total, 1, rtol=1e-5)
"""


@pytest.mark.slow
def test_float64_by_default():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "KERAS_BACKEND": keras.backend.backend()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("floatx", ["float16", "bfloat16"])
def test_half_precision_by_default_changes_no_map(floatx):
    rng = np.random.default_rng(0)
    logits = (3 * rng.normal(size=(200, 3))).astype("float32")
    labels = rng.integers(0, 3, 200)
    for name, layer, classes in fitted_layers(logits, labels):
        expected = keras.tree.flatten(layer(logits[:, :classes]))
        keras.config.set_floatx(floatx)
        try:
            found = keras.tree.flatten(layer(logits[:, :classes]))
        finally:
            keras.config.set_floatx("float32")
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(
                to_numpy(one), to_numpy(other), err_msg=name
            )
