import math
import warnings

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.layers import ClassLossScaling
from keras_calib.layers import _class_loss_scaling as scaling_module
from keras_calib.solvers import class_weights as class_weights_module
from keras_calib.solvers import deviations
from keras_calib.solvers.class_weights import class_weights
from keras_calib.solvers.class_weights import fit_slope_and_span
from keras_calib.solvers.class_weights import normalize
from keras_calib.solvers.dense_evidence import fit_paths
from tests.helpers import read_predictions
from tests.helpers import to_numpy
from tests.layers.generated import softmax
from tests.layers.test_temperature_scaling import generated

LOSSES = np.array([0.2, 0.4, 1.0, 0.1])
NORMALIZED = {
    "normal": [
        -0.558156305651,
        -0.0620173672946,
        1.42639944778,
        -0.80622577483,
    ],
    "min_max": [0.111111111111, 0.333333333333, 1, 0],
    "centered": [-0.25, -0.0277777777778, 0.638888888889, -0.361111111111],
}
# Normalization, reduction: the temperature of the generated set.
TEMPERATURES = {
    ("normal", "mean"): 2.04522238668,
    ("min_max", "mean"): 1.97353471784,
    ("centered", "mean"): 1.9850785677,
    ("normal", "sum"): 2.08561790062,
    ("min_max", "sum"): 2.01649878675,
    ("centered", "sum"): 2.02704608053,
}
# Rows 0 to 4999 of real predictions.
REAL = {
    ("wideresnet-16-4-cifar-10", "normal"): 2.13004747192,
    ("wideresnet-16-4-cifar-10", "min_max"): 2.08627345257,
    ("wideresnet-16-4-cifar-10", "centered"): 2.08997747116,
    ("wideresnet-16-4-cifar-100", "normal"): 1.1287905506,
    ("wideresnet-16-4-cifar-100", "min_max"): 1.11483388127,
    ("wideresnet-16-4-cifar-100", "centered"): 1.11518008106,
    ("lenet-5-cifar-100", "normal"): 1.22408243864,
}


def adapt(logits, labels, scaling="normal", **arguments):
    layer = kc.layers.TemperatureScaling()
    return layer.adapt(logits, labels, class_loss_scaling=scaling, **arguments)


@pytest.mark.parametrize("name", NORMALIZED)
def test_normalization(name):
    np.testing.assert_allclose(
        normalize(LOSSES, name), NORMALIZED[name], rtol=1e-11, atol=1e-12
    )


def test_class_weights_by_hand():
    found = class_weights(LOSSES, 1.0, 1.5, "normal")
    expected = [-0.204038756636, -0.0232490615908, 0.459509532041]
    np.testing.assert_allclose(found, [*expected, -0.286956985778], rtol=1e-11)


def test_slope_and_span():
    over = np.array([0.22, 0.41, 0.95, 0.12])
    slope, span = fit_slope_and_span(LOSSES, over, "normal", 4)
    assert (slope, span) == (pytest.approx(math.log(4) / 2), 1.5)
    under = np.array([0.19, 0.38, 1.05, 0.09])
    slope, span = fit_slope_and_span(LOSSES, under, "normal", 4)
    assert (slope, span) == (pytest.approx(0.31086, abs=3e-4), 2.0)


@pytest.mark.parametrize("case", TEMPERATURES, ids="-".join)
def test_generated_set(case):
    layer = adapt(
        *generated(), ClassLossScaling(normalization=case[0], reduction=case[1])
    )
    expected = TEMPERATURES[case]
    assert layer.record["temperature"] == pytest.approx(expected, rel=1e-7)
    assert layer.record["class_loss_scaling"] == case[0]


@pytest.mark.parametrize("case", REAL, ids="-".join)
def test_real_predictions(case, data_folder):
    probabilities, labels = read_predictions(data_folder, case[0])
    logits = np.log(np.maximum(probabilities[:5000], 1.18e-38))
    layer = adapt(logits, labels[:5000], case[1])
    assert layer.record["temperature"] == pytest.approx(REAL[case], rel=1e-6)


def test_the_record_tells_the_plain_nll():
    logits, labels = generated()
    record = adapt(logits, labels).record
    assert record["nll_before"] == pytest.approx(0.845336749895, rel=1e-6)
    # T is not the NLL's own, and so a little worse there.
    assert 0.692067035915 < record["nll_after"] < 0.6935
    assert len(record["class_weights"]) == 5
    total = adapt(logits, labels, ClassLossScaling(reduction="sum")).record
    assert total["nll_before"] == pytest.approx(0.845336749895, rel=1e-6)


def test_an_absent_class_is_left_out():
    logits, labels = generated()
    keep = labels != 3
    record = adapt(logits[keep], labels[keep]).record
    assert record["class_weights"][3] == 1.0
    assert 1.0 < record["temperature"] < 3.0


def test_two_classes_and_one_sigmoid_unit():
    logits, labels = generated(400, 2)
    assert 1.0 < adapt(logits, labels).temperature < 3.0
    single = logits[:, 1:] - logits[:, :1]
    np.testing.assert_allclose(
        adapt(single, labels).temperature,
        adapt(logits, labels).temperature,
        rtol=1e-5,
    )


def test_one_class_alone():
    logits, labels = generated()
    keep = labels == 2
    layer = adapt(logits[keep], labels[keep])
    plain = kc.layers.TemperatureScaling().adapt(logits[keep], labels[keep])
    assert layer.temperature == pytest.approx(plain.temperature, rel=1e-6)


def test_float_labels():
    logits, labels = generated()
    layer = adapt(logits, labels.astype("float32"))
    assert layer.temperature == pytest.approx(2.04522238668, rel=1e-6)
    with pytest.raises(ValueError, match="whole numbers"):
        adapt(logits, labels + 0.5)


def test_sample_weights_are_repeated_samples():
    logits, labels = generated(200)
    times = np.random.default_rng(0).integers(0, 3, 200)
    repeated = np.repeat(np.arange(200), times)
    weighted = adapt(logits, labels, sample_weight=times)
    expected = adapt(logits[repeated], labels[repeated])
    assert weighted.temperature == pytest.approx(expected.temperature, rel=1e-5)


@pytest.mark.parametrize("objective", ["label_smoothing", "focal"])
def test_other_objectives(objective):
    logits, labels = generated()
    plain = kc.layers.TemperatureScaling().adapt(
        logits, labels, objective=objective
    )
    scaled = adapt(logits, labels, objective=objective)
    assert abs(scaled.temperature / plain.temperature - 1) > 1e-3


def test_refused():
    logits, labels = generated(20)
    with pytest.raises(ValueError, match="class_loss_scaling='z_score'"):
        adapt(logits, labels, "z_score")
    with pytest.raises(ValueError, match="one loss per sample"):
        adapt(logits, labels, objective="ece")
    with pytest.raises(ValueError, match="reduction"):
        ClassLossScaling(reduction="none")


def test_a_failed_fit_leaves_the_layer_as_it_was(monkeypatch):
    logits, labels = generated()
    layer = kc.layers.TemperatureScaling().adapt(logits, labels)
    before = layer.temperature, layer.record

    def fail(*_):
        raise FloatingPointError

    monkeypatch.setattr(type(layer), "call", fail)
    with pytest.raises(FloatingPointError):
        layer.adapt(logits, labels, class_loss_scaling="normal")
    assert (layer.temperature, layer.record) == before


def test_a_span_above_that_of_accurate_networks_warns(monkeypatch):
    logits, labels = generated(200)
    module = "keras_calib.layers._class_loss_scaling"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = kc.layers.TemperatureScaling()
        layer.adapt(logits, labels, class_loss_scaling="normal")
    assert layer.record["scaling_span"] == 1.5
    monkeypatch.setattr(f"{module}.first_slope_and_span", lambda *_: (1.0, 2.0))
    with pytest.warns(UserWarning, match="found B = 2") as found:
        layer.adapt(logits, labels, class_loss_scaling="normal")
    files = [w.filename for w in found if "found B" in str(w.message)]
    assert files == [__file__]


@pytest.mark.one_backend
@pytest.mark.parametrize("name", NORMALIZED)
def test_vector_scaling_at_its_default_converges(name, monkeypatch):
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(600, 5))
    labels = (z / 2 + np.arange(5) / 4 + rng.gumbel(size=z.shape)).argmax(1)
    fits = []

    def spy(*arguments):
        found = fit_paths(*arguments)
        fits.append(found)
        return found

    monkeypatch.setattr(deviations, "fit_paths", spy)
    layer = kc.layers.VectorScaling().adapt(z, labels, class_loss_scaling=name)
    # `None` would be a fit that did not converge.
    assert fits and all(found is not None for found in fits)
    assert max(steps for found in fits for *_, steps in found) < 20
    # The map is the one of the class weights in the record.
    weights = np.array(layer.record["class_weights"]) / np.bincount(labels)
    alone = kc.layers.VectorScaling().adapt(z, labels, weights[labels])
    p = softmax(to_numpy(layer(z)))
    np.testing.assert_allclose(p, softmax(to_numpy(alone(z))), atol=1e-5)
    # Where no weights are a fixed point, more rounds change them little.
    for module in (class_weights_module, scaling_module):
        monkeypatch.setattr(module, "ROUNDS", (16, 100))
    more = kc.layers.VectorScaling().adapt(z, labels, class_loss_scaling=name)
    np.testing.assert_allclose(p, softmax(to_numpy(more(z))), atol=0.02)
