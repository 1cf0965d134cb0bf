"""Maps where numbers are float64 by default, in a process of its own."""

import os
import subprocess
import sys

import keras
import pytest

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
