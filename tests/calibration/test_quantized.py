"""Quantized networks, and networks with LoRA weights."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_calib as kc
from keras_calib.solvers.temperature import fit_temperature
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.serving import check_served
from tests.calibration.serving import require_packages

RNG = np.random.default_rng(0)
KINDS = ("int8", "int4", "float8", "lora")


def changed(kind, activation=None):
    """A network of two layers, both quantized or with LoRA weights."""
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, "relu"),
            layers.Dense(3, activation),
        ]
    )
    for layer in model.layers:
        kernel = RNG.normal(size=layer.kernel.shape)
        layer.set_weights([kernel, layer.bias.numpy()])
    if kind != "lora":
        model.quantize(kind)
        return model
    for layer in model.layers:
        layer.enable_lora(2)
        shape = layer.lora_kernel_b.shape
        layer.lora_kernel_b.assign(RNG.normal(size=shape))
    return model


def log_softmax(z):
    z = z.astype("float64")
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", [None, "softmax"])
def test_calibrated_saved_and_loaded(kind, activation, tmp_path):
    model = changed(kind, activation)
    before = model.predict(X, verbose=0)
    log_p = np.log(before) if activation else log_softmax(before)
    expected = fit_temperature(log_p.astype("float64"), Y).temperature
    calibrated = kc.calibrate(model, X, Y, guard=False, verbose=0)
    record = kc.calibration_record(calibrated)
    assert expected > 2
    assert record["temperature"] == pytest.approx(expected, rel=1e-3)
    found = calibrated.predict(X, verbose=0)
    np.testing.assert_allclose(
        np.log(found), log_softmax(log_p / expected), rtol=1e-2, atol=1e-3
    )
    calibrated.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), found)
    assert kc.calibration_record(loaded) == record
    # The network itself is as it was.
    np.testing.assert_array_equal(model.predict(X, verbose=0), before)


def test_fuse_is_refused():
    # Of quantized weights in `test_fuse.py`.
    with pytest.raises(ValueError, match=r"LoRA weights.*Leave out `fuse`"):
        kc.calibrate(changed("lora"), X, Y, fuse=True, verbose=0)


@pytest.mark.slow
def test_a_calibrated_model_can_be_quantized():
    model = changed("lora")
    merged = keras.Sequential([keras.Input((8,)), layers.Dense(3)])
    merged.layers[0].set_weights([RNG.normal(size=(8, 3)), np.zeros(3)])
    for network, fuse in ((merged, True), (merged, False), (model, False)):
        calibrated = kc.calibrate(
            network, X, Y, fuse=fuse, guard=False, verbose=0
        )
        before = calibrated.predict(X, verbose=0)
        calibrated.quantize("int8")
        after = calibrated.predict(X, verbose=0)
        assert not np.array_equal(after, before)
        assert np.abs(after - before).max() < 0.05


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", reason="Keras cannot export it")
@pytest.mark.parametrize("format", ["tf_saved_model", "onnx"])
def test_files_in_int8_are_served_without_keras(format, tmp_path):
    require_packages(format)
    model = changed("int8", "softmax")
    calibrated = kc.calibrate(model, X, Y, guard=False, verbose=0)
    files = [("int8", calibrated, X, None)]
    assert check_served(files, format, tmp_path) == 1
