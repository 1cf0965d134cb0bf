"""Every map by its name, from network to file and back."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_calib as kc
from keras_calib.calibration._methods import METHODS
from keras_calib.calibration._methods import as_map
from tests.calibration.networks import KERNEL
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional
from tests.helpers import to_numpy

BINARY = ("beta", "platt", "quadratic")
AFFINE = (
    "temperature",
    "bias_corrected_temperature",
    "class_temperature",
    "vector",
    "matrix",
)


def binary_network():
    model = functional(layers.Dense(1, "sigmoid", use_bias=False))
    model.layers[-1].set_weights([KERNEL[:, :1] * 2])
    return model


def network_and_labels(method):
    if method in BINARY:
        return binary_network(), (Y == 0).astype("int32")
    return built(functional(dense("softmax"))), Y


@pytest.mark.filterwarnings("ignore:.*(made the model worse|ten samples)")
@pytest.mark.parametrize("method", METHODS)
def test_from_network_to_file(method, tmp_path):
    model, labels = network_and_labels(method)
    calibrated = kc.calibrate(
        model, X, labels, method=method, guard=False, verbose=0
    )
    record = kc.calibration_record(calibrated)
    assert record["method"] == method
    assert record["ece_num_bins"] == 15
    assert record["keras_calib_version"] == kc.__version__
    assert record["nll_after"] < record["nll_before"] or record["rejected"]
    probabilities = calibrated.predict(X, verbose=0)
    assert np.isfinite(probabilities).all()
    # The last batch of a stream can be empty.
    empty = calibrated.predict_on_batch(X[:0])
    assert empty.shape == (0, *probabilities.shape[1:])
    if method not in BINARY:
        np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-5)
    loss, _ = calibrated.evaluate(X, labels, verbose=0)
    expected = record["nll_before" if record["rejected"] else "nll_after"]
    assert loss == pytest.approx(expected, rel=1e-3)
    if as_map(method).preserves_accuracy:
        np.testing.assert_array_equal(
            probabilities.argmax(-1), model.predict(X, verbose=0).argmax(-1)
        )
    calibrated.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(again.predict(X, verbose=0), probabilities)
    assert kc.calibration_record(again) == record


@pytest.mark.filterwarnings("ignore:.*(made the model worse|ten samples)")
@pytest.mark.parametrize("method", [m for m in METHODS if m not in BINARY])
@pytest.mark.slow
def test_per_pixel(method):
    inputs = keras.Input((5, 2, 8))
    head = layers.Conv2D(3, 1, use_bias=False)
    model = keras.Model(inputs, head(inputs))
    head.set_weights([KERNEL[None, None]])
    labels = Y.reshape(30, 5, 2).copy()
    labels[:, 0, 0] = 255
    calibrated = kc.calibrate(
        model,
        X.reshape(30, 5, 2, 8),
        labels,
        method=method,
        ignore_class=255,
        verbose=0,
    )
    keep = labels.reshape(-1) != 255
    flat = kc.calibrate(
        built(functional(dense())),
        X[keep],
        Y[keep],
        method=method,
        groups=np.repeat(np.arange(30), 10)[keep],
        verbose=0,
    )
    np.testing.assert_allclose(
        calibrated.predict(X.reshape(30, 5, 2, 8), verbose=0).reshape(-1, 3),
        flat.predict(X, verbose=0),
        atol=1e-5,
    )


@pytest.mark.parametrize("method", AFFINE)
def test_affine_maps_fuse(method):
    model, labels = network_and_labels(method)
    layer = as_map(method, affine=True)
    whole = kc.calibrate(model, X, labels, method=layer, verbose=0)
    fused = kc.calibrate(model, X, labels, method=method, fuse=True, verbose=0)
    np.testing.assert_allclose(
        fused.predict(X, verbose=0), whole.predict(X, verbose=0), atol=1e-6
    )


@pytest.mark.parametrize("method", ["temperature", "platt"])
def test_maps_of_one_unit_fuse(method):
    model, labels = binary_network(), (Y == 0).astype("int32")
    layer = as_map(method, affine=True)
    whole = kc.calibrate(model, X, labels, method=layer, verbose=0)
    fused = kc.calibrate(model, X, labels, method=method, fuse=True, verbose=0)
    np.testing.assert_allclose(
        fused.predict(X, verbose=0), whole.predict(X, verbose=0), atol=1e-6
    )


@pytest.mark.parametrize(
    "objective", ["soft_binned_ece", "ece", "label_smoothing", "focal"]
)
def test_objectives(objective):
    model, labels = network_and_labels("temperature")
    calibrated = kc.calibrate(model, X, labels, objective=objective, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["objective"] == objective
    plain = kc.calibration_record(kc.calibrate(model, X, labels, verbose=0))
    if objective == "ece":
        assert record["ece_after"] <= plain["ece_after"]
    else:
        assert record["temperature"] != plain["temperature"]


@pytest.mark.parametrize("scaling", ["normal", "min_max", "centered"])
@pytest.mark.parametrize("method", ["temperature", "vector"])
def test_class_loss_scaling(method, scaling):
    # Not the default vector map, which makes all class losses equal here: the
    # weights then jump, and amplify how the backend rounds the logits.
    plain = {"regularization": None} if method == "vector" else {}

    def layer():
        return type(as_map(method))(**plain)

    model, labels = network_and_labels(method)
    calibrated = kc.calibrate(
        model, X, labels, method=layer(), class_loss_scaling=scaling, verbose=0
    )
    record = kc.calibration_record(calibrated)
    assert record["class_loss_scaling"] == scaling
    direct = layer().adapt(X @ KERNEL, labels, class_loss_scaling=scaling)
    np.testing.assert_allclose(
        calibrated.predict(X, verbose=0),
        to_numpy(keras.ops.softmax(direct(X @ KERNEL))),
        atol=1e-4,
    )
