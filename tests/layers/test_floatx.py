"""Maps in float64, and where numbers have other digits by default."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from tests.helpers import fitted_layers
from tests.helpers import to_numpy
from tests.layers.test_maps import BINARY
from tests.layers.test_maps import MAPS
from tests.layers.test_maps import adapted
from tests.layers.test_maps import binary
from tests.layers.test_maps import generated

layers = kc.layers
OTHERS = {
    "temperature": layers.TemperatureScaling,
    "class temperature": layers.ClassTemperatureScaling,
    "bias corrected": layers.BiasCorrectedTemperatureScaling,
    "vector": layers.VectorScaling,
    "matrix": layers.MatrixScaling,
    "dirichlet": layers.DirichletScaling,
    "multi-label": layers.MultiLabelScaling,
    "log p": layers.LogProbabilities,
    "sets": layers.ConformalSets,
    "risk": layers.RiskThreshold,
    "meta": lambda: layers.MetaCal(max_miscoverage=0.1),
    "local": layers.LocalTemperatureScaling,
}
HALF = ("float16", "bfloat16", "mixed_float16", "mixed_bfloat16")


def of_dtype(layer, dtype):
    return type(layer).from_config({**layer.get_config(), "dtype": dtype})


@pytest.mark.parametrize("name", [*MAPS, *BINARY, *OTHERS])
def test_half_precision_is_refused(name):
    layer = {**MAPS, **BINARY, **OTHERS}[name]()
    for dtype in HALF:
        # Keras wraps the errors of some layers.
        with pytest.raises(
            (ValueError, TypeError), match="in float32 or float"
        ):
            of_dtype(layer, dtype)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        for dtype in (None, "float32"):
            assert of_dtype(layer, dtype).compute_dtype == "float32"
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize(
    "name", [name for name in (*MAPS, *BINARY) if name != "mixture"]
)
def test_float64_keeps_its_digits(name):
    fitted = adapted(name)
    logits = np.float64((generated() if name in MAPS else binary())[0][:50])
    layer = of_dtype(fitted, "float64")
    layer.build(logits.shape)
    layer.set_weights(fitted.get_weights())
    found = layer(logits)
    # Unless JAX is told to, it has no float64.
    jax = keras.backend.backend() == "jax"
    assert keras.backend.standardize_dtype(found.dtype) == (
        "float32" if jax else "float64"
    )
    found = ops.convert_to_numpy(found)
    if not jax:
        assert (found != found.astype("float32")).any()
    expected = ops.convert_to_numpy(fitted(logits))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


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
