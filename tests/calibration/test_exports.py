"""What each kind of file carries: map, threshold, sets, record."""

import json

import keras
import numpy as np
import pytest
from keras import layers

import keras_calib as kc
from keras_calib.keras_private import flatten_layers
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional
from tests.helpers import run_in_fresh_process
from tests.helpers import run_python

BACKEND = keras.backend.backend()
LOAD = """
import json
import keras, numpy
import keras_calib as kc
model = keras.saving.load_model("model.keras", safe_mode=True)
numpy.savez("loaded.npz", **model.predict(numpy.load("x.npy"), verbose=0))
records = {name: model.get_layer(name).record for name in ("sets", "accepted")}
records["map"] = dict(kc.calibration_record(model))
print(json.dumps(records))
"""


def heads(logits, sets, threshold):
    """A model that gives probabilities, sets, and classes or -1."""
    tensor = logits.output
    outputs = {
        "probabilities": layers.Softmax()(tensor),
        "sets": sets(tensor),
        "accepted": threshold(tensor),
    }
    return keras.Model(logits.input, outputs)


def fitted():
    """One model with a map, a threshold, sets and three records."""
    half = slice(150)
    network = built(functional(dense()))
    logits = kc.calibrate(network, X[half], Y[half], output="logits", verbose=0)
    rest = logits.predict(X[150:], verbose=0), Y[150:]
    sets = kc.layers.ConformalSets(coverage=0.9, name="sets").adapt(*rest)
    threshold = kc.layers.RiskThreshold(target_risk=0.15, name="accepted")
    model = heads(logits, sets, threshold.adapt(*rest))
    found = model.predict(X, verbose=0)
    # Otherwise a file that lost one of them would give the same.
    assert 0 < (found["accepted"] == -1).mean() < 1
    assert 0.4 < found["sets"].mean() < 0.9
    return model


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name in ("sets", "accepted"):
        np.testing.assert_array_equal(np.asarray(found[name]), expected[name])
    np.testing.assert_allclose(
        np.asarray(found["probabilities"]), expected["probabilities"], atol=1e-6
    )


@pytest.mark.slow
def test_keras_file_in_a_fresh_process_has_all_four(tmp_path):
    model = fitted()
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    printed = run_in_fresh_process(LOAD, tmp_path)
    assert_same(np.load(tmp_path / "loaded.npz"), model.predict(X, verbose=0))
    assert json.loads(printed.splitlines()[-1]) == {
        "map": kc.calibration_record(model),
        "sets": model.get_layer("sets").record,
        "accepted": model.get_layer("accepted").record,
    }


def test_weights_alone_have_no_record(tmp_path):
    model = fitted()
    model.save_weights(tmp_path / "model.weights.h5")
    map_layer = kc.layers.TemperatureScaling(name="temperature")
    logits = functional(dense(), map_layer)
    new = heads(
        logits,
        kc.layers.ConformalSets(coverage=0.9, name="sets"),
        kc.layers.RiskThreshold(target_risk=0.15, name="accepted"),
    )
    new.load_weights(tmp_path / "model.weights.h5")
    assert_same(new.predict(X, verbose=0), model.predict(X, verbose=0))
    with pytest.raises(ValueError, match="no calibration layer"):
        kc.calibration_record(new)


def test_fused_file_has_the_map_without_the_record(tmp_path):
    network = built(functional(dense("softmax")))
    calibrated = kc.calibrate(network, X, Y, fuse=True, verbose=0)
    calibrated.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    ours = [
        layer
        for layer in flatten_layers(loaded)
        if type(layer).__module__.startswith("keras_calib")
    ]
    assert not ours
    np.testing.assert_array_equal(
        loaded.predict(X, verbose=0), calibrated.predict(X, verbose=0)
    )
    with pytest.raises(ValueError, match="no calibration layer"):
        kc.calibration_record(loaded)


WITHOUT_US = """
import sys

sys.modules["keras_calib"] = None
import keras
import numpy as np

model = keras.saving.load_model("model.keras")
np.save("found.npy", model.predict(np.load("x.npy"), verbose=0))
"""


@pytest.mark.slow
def test_fused_file_needs_keras_alone(tmp_path):
    network = built(functional(dense("softmax")))
    calibrated = kc.calibrate(network, X, Y, fuse=True, verbose=0)
    calibrated.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    run_python(["-c", WITHOUT_US], tmp_path)
    found = np.load(tmp_path / "found.npy")
    np.testing.assert_allclose(
        found, calibrated.predict(X, verbose=0), atol=1e-6
    )
    # A model that is not fused cannot be loaded there.
    kc.calibrate(network, X, Y, verbose=0).save(tmp_path / "model.keras")
    with pytest.raises(AssertionError, match="keras_calib"):
        run_python(["-c", WITHOUT_US], tmp_path)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", reason="no SavedModel on torch")
def test_saved_model_computes_all_three(tmp_path):
    tf = pytest.importorskip("tensorflow")
    model = fitted()
    model.export(tmp_path / "export", verbose=False)
    served = tf.saved_model.load(tmp_path / "export")
    assert_same(served.serve(X), model.predict(X, verbose=0))


@pytest.mark.slow
@pytest.mark.backends("torch", reason="an export of torch")
def test_torch_program_computes_all_three(tmp_path):
    torch = pytest.importorskip("torch")
    model = fitted()
    model.export(tmp_path / "model.pt2", format="torch", verbose=False)
    program = torch.export.load(tmp_path / "model.pt2").module()
    expected = model.predict(X[:20], verbose=0)
    # As Keras 3.15 exports it, for one sample at a time.
    batches = [keras.ops.convert_to_tensor(X[i : i + 1]) for i in range(20)]
    found = [program(batch) for batch in batches]
    joined = {
        name: torch.cat([row[name] for row in found]).numpy(force=True)
        for name in expected
    }
    assert_same(joined, expected)
