"""What an installed package must do: calibrate, save, load, a command."""

import pathlib
import subprocess
import sys
import tempfile

import keras
import numpy as np

import keras_calib as kc

assert "site-packages" in kc.__file__, kc.__file__
rng = np.random.default_rng(0)
x = rng.normal(size=(400, 8)).astype("float32")
y = (3 * x[:, :3] + rng.gumbel(size=(400, 3))).argmax(axis=1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
model.compile(keras.optimizers.Adam(0.05), kc.losses.ACLS(from_logits=True))
model.fit(x[:200], y[:200], epochs=40, verbose=0)
calibrated = kc.calibrate(model, x[200:], y[200:], verbose=0)
expected = calibrated.predict(x, verbose=0)
with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / "model.keras"
    calibrated.save(file)
    loaded = keras.saving.load_model(file)
np.testing.assert_array_equal(loaded.predict(x, verbose=0), expected)
command = pathlib.Path(sys.executable).with_name("keras-calib")
printed = subprocess.run(
    [command, "--help"], check=True, capture_output=True, text=True
).stdout
assert "calibrate" in printed
print(f"keras-calib {kc.__version__}, Keras {keras.__version__}")
