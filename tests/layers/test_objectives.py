import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib import layers
from keras_calib.evaluation.confidence_error import expected_calibration_error
from keras_calib.layers import _objectives as objectives
from keras_calib.layers._objectives import confidences
from tests.helpers import read_predictions
from tests.layers.test_temperature_scaling import generated

# Objective: the temperature of the generated set and the value there.
GENERATED = {
    "ece": ("ece", 2.10485488838, 0.0333248038801),
    "soft_binned_ece": ("soft_binned_ece", 1.98374373, 0.0217727874),
    "soft_binned_ece-label": (
        layers.SoftBinnedECEObjective(form="label"),
        1.97535592,
        0.0683776850,
    ),
    "label_smoothing": ("label_smoothing", 2.46170640832, None),
    "focal": ("focal", 3.54904428944, None),
    "brier": (keras.losses.MeanSquaredError(), 2.02843583093, None),
    "sparse": (
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        1.97593901124,
        None,
    ),
    "categorical": (
        keras.losses.CategoricalCrossentropy(reduction="sum"),
        1.97593901124,
        None,
    ),
    "ours": (
        kc.losses.FocalLoss(gamma=3.0, from_logits=True),
        3.54904428944,
        None,
    ),
}
# Rows 0 to 4999 of real predictions: T-HB, T-SB.
REAL = {
    "wideresnet-16-4-cifar-10": (2.12648, 2.04134),
    "lenet-5-cifar-100": (1.07549, 1.04283),
    "wideresnet-16-4-cifar-100": (1.15765, 1.15034),
}
SMOOTH = {
    "nll": layers.NegativeLogLikelihoodObjective(),
    "label_smoothing": layers.LabelSmoothingObjective(smoothing=0.1),
    "focal": layers.FocalObjective(gamma=2.0),
    "keras": layers.LossObjective(keras.losses.CategoricalCrossentropy()),
}


@pytest.mark.parametrize("case", GENERATED)
def test_generated_set(case):
    objective, temperature, value = GENERATED[case]
    logits, labels = generated()
    layer = kc.layers.TemperatureScaling()
    record = layer.adapt(logits, labels, objective=objective).record
    # A loss object computes in float32.
    loss = isinstance(objective, keras.losses.Loss)
    assert record["objective"] == (
        type(objective).__name__ if loss else case.split("-")[0]
    )
    tolerance = 5e-5 if loss else 1e-8
    assert record["temperature"] == pytest.approx(temperature, rel=tolerance)
    assert layer.temperature == pytest.approx(record["temperature"], rel=1e-6)
    if value is not None:
        assert record["objective_value"] == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize("name", REAL)
def test_real_predictions(name, data_folder):
    probabilities, labels = read_predictions(data_folder, name)
    logits = np.log(np.maximum(probabilities[:5000].astype("float64"), 1e-38))
    hard, soft = REAL[name]
    layer = kc.layers.TemperatureScaling()
    layer.adapt(logits, labels[:5000], objective="ece")
    assert layer.temperature == pytest.approx(hard, abs=1e-5)
    layer.adapt(logits, labels[:5000], objective="soft_binned_ece")
    assert layer.temperature == pytest.approx(soft, abs=1e-5)


def test_hard_bins_beat_every_temperature_of_a_fine_grid():
    logits, labels = generated()
    layer = kc.layers.TemperatureScaling()
    layer.adapt(logits, labels, objective="ece")

    def error(temperature):
        return expected_calibration_error(
            *confidences(logits / temperature, labels)
        )

    best = min(error(t) for t in np.arange(1, 101) / 10)
    assert (
        layer.record["objective_value"] < best == pytest.approx(0.0344032982914)
    )


@pytest.mark.parametrize("name", SMOOTH)
def test_gradient(name):
    logits, labels = generated(6)
    weight = np.array([1.0, 2, 0.5, 1, 3, 1])
    objective = SMOOTH[name]
    value, gradient = objective.value_and_gradient(logits, labels, weight)
    assert value == pytest.approx(
        objective.value(logits, labels, weight), rel=1e-6
    )
    direction = np.random.default_rng(0).normal(size=logits.shape)
    h = 1e-3 if name == "keras" else 1e-5
    up, down = (
        objective.value(logits + sign * h * direction, labels, weight)
        for sign in (1, -1)
    )
    expected = (up - down) / (2 * h)
    tolerance = 5e-3 if name == "keras" else 1e-7
    assert (gradient * direction).sum() == pytest.approx(
        expected, rel=tolerance
    )


@pytest.mark.parametrize("norm", [1, 1.5, 2, 3])
@pytest.mark.parametrize("form", ["bin", "label"])
def test_soft_binned_objective_is_the_formula_of_the_loss(form, norm):
    logits, labels = generated(200)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, 200)
    arguments = {"num_bins": 7, "temperature": 0.02, "norm": norm, "form": form}
    expected = kc.losses.soft_binned_ece(
        labels, logits.astype("float32"), sample_weight=weight, **arguments
    )
    found = layers.SoftBinnedECEObjective(**arguments)
    assert found.value(logits, labels, weight) == pytest.approx(
        float(expected), rel=1e-5
    )
    assert found.arguments() == arguments


def test_names_of_objectives_are_public_and_do_not_collide():
    public = set(layers.__all__)
    assert not public & ({*kc.losses.__all__} | {*kc.metrics.__all__})
    for objective in objectives.NAMES.values():
        assert objective.__name__ in public
        assert objective.__name__.endswith("Objective")


@pytest.mark.parametrize("name", SMOOTH)
def test_losses_and_their_gradients_are_those_of_each_alone(name):
    logits, labels = generated()
    scores, labels = logits[:6], labels[:6]
    losses, gradients = SMOOTH[name].losses_and_gradients(scores, labels)
    # Keras computes in float32.
    close = {"rtol": 1e-5, "atol": 1e-6} if name == "keras" else {"rtol": 1e-9}
    np.testing.assert_allclose(
        losses, SMOOTH[name].losses(scores, labels), **close
    )
    for i in range(6):
        one = slice(i, i + 1)
        value, gradient = SMOOTH[name].value_and_gradient(
            scores[one], labels[one]
        )
        np.testing.assert_allclose(losses[i], value, **close)
        np.testing.assert_allclose(gradients[one], gradient, **close)


def test_losses_average_to_the_value():
    logits, labels = generated(50)
    for objective in SMOOTH.values():
        assert objective.losses(logits, labels).mean() == pytest.approx(
            objective.value(logits, labels), rel=1e-6
        )


def test_weights_are_repeated_samples():
    logits, labels = generated(60)
    times = np.random.default_rng(0).integers(0, 3, 60)
    repeated = np.repeat(np.arange(60), times)
    for objective in (
        *SMOOTH.values(),
        layers.SoftBinnedECEObjective(),
        layers.SoftBinnedECEObjective(form="label"),
        layers.ExpectedCalibrationErrorObjective(),
    ):
        assert objective.value(
            logits, labels, times.astype(float)
        ) == pytest.approx(
            objective.value(logits[repeated], labels[repeated]), rel=1e-5
        )


def test_the_statistic_of_a_batch_has_no_loss_per_sample():
    logits, labels = generated(100)
    layer = kc.layers.TemperatureScaling()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert layers.LossObjective(loss).per_sample
    loss.batch_statistic = True
    with pytest.raises(ValueError, match="one loss per sample"):
        layer.adapt(logits, labels, objective=loss, class_loss_scaling="normal")


def test_a_loss_without_a_value_for_each_sample_has_no_class_weights():
    class Total(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return keras.ops.mean(y_pred)

    logits, labels = generated(100)
    layer = kc.layers.TemperatureScaling()
    with pytest.raises(ValueError, match=r"values of shape \(\) from Total"):
        layer.adapt(
            logits, labels, objective=Total(), class_loss_scaling="normal"
        )
    assert not layer.built


def test_unknown_objective():
    logits, labels = generated(20)
    with pytest.raises(ValueError, match="Received: objective='ecce'"):
        kc.layers.TemperatureScaling().adapt(logits, labels, objective="ecce")


def test_objectives_a_map_cannot_minimize():
    class Map(kc.layers.TemperatureScaling):
        objectives = ("nll", "loss")

    with pytest.raises(ValueError, match='minimize: "nll", a loss'):
        Map().adapt(*generated(20), objective="ece")


def test_bad_arguments():
    with pytest.raises(ValueError, match="smoothing=1"):
        layers.LabelSmoothingObjective(smoothing=1)
    with pytest.raises(ValueError, match="gamma=-1"):
        layers.FocalObjective(gamma=-1)
    with pytest.raises(ValueError, match="form='top'"):
        layers.SoftBinnedECEObjective(form="top")
