import warnings

import keras
import numpy as np
import pytest
from keras import layers

import keras_calib as kc
from tests.calibration.networks import LOGITS
from tests.calibration.networks import Affine
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional

OTHER = -np.eye(3)  # a map that turns every prediction around


def network():
    return built(functional(dense("softmax")))


def test_the_same_data_twice_is_refused():
    calibrated = kc.calibrate(network(), X[:200], Y[:200], verbose=0)
    order = np.random.default_rng(0).permutation(200)
    with pytest.raises(ValueError, match="very samples"):
        kc.calibrate(calibrated, X[order], Y[order], verbose=0)
    with pytest.raises(ValueError, match="very samples"):
        kc.calibrate(calibrated, X[:200].astype("float64"), Y[:200], verbose=0)


def test_a_calibrated_model_may_be_calibrated_on_other_data(tmp_path):
    calibrated = kc.calibrate(network(), X[:200], Y[:200], verbose=0)
    again = kc.calibrate(calibrated, X[200:], Y[200:], verbose=0)
    first = kc.calibration_record(calibrated)["temperature"]
    second = kc.calibration_record(again)["temperature"]
    direct = kc.calibrate(network(), X[200:], Y[200:], verbose=0)
    expected = kc.calibration_record(direct)["temperature"]
    assert first * second == pytest.approx(expected, rel=1e-4)
    again.save(tmp_path / "again.keras")
    loaded = keras.saving.load_model(tmp_path / "again.keras")
    np.testing.assert_array_equal(
        loaded.predict(X, verbose=0), again.predict(X, verbose=0)
    )


def test_few_samples_are_warned_of_with_the_rule():
    with pytest.warns(UserWarning, match="12 parameters.* each: 120.*: 119 "):
        kc.calibrate(network(), X[:119], Y[:119], method=Affine(), verbose=0)


def history(trained, held_out, name="accuracy"):
    model = network()
    model.history = keras.callbacks.History()
    model.history.history = {
        name: [0.5, trained],
        f"val_{name}": [0.5, held_out],
    }
    return model


@pytest.mark.parametrize(
    "name",
    [
        "accuracy",
        keras.metrics.SparseCategoricalAccuracy().name,
        keras.metrics.CategoricalAccuracy().name,
        keras.metrics.BinaryAccuracy().name,
    ],
)
def test_data_the_network_knows_is_warned_of(name):
    # All labels as predicted: accuracy is 1, as it was in training.
    y = LOGITS.argmax(-1)
    y[:3] = (y[:3] + 1) % 3
    with pytest.warns(UserWarning, match="seems to have been trained"):
        kc.calibrate(history(1.0, 0.6, name), X, y, verbose=0)


@pytest.mark.filterwarnings("error::UserWarning")
def test_held_out_data_is_not_warned_of():
    accuracy = (LOGITS.argmax(-1) == Y).mean()
    kc.calibrate(history(1.0, accuracy), X, Y, verbose=0)
    # Nor where training and validation do not differ.
    kc.calibrate(history(accuracy, accuracy), X, Y, verbose=0)


def test_a_harmful_map_is_rejected(tmp_path):
    model = network()
    layer = Affine(OTHER.tolist())
    with pytest.warns(UserWarning, match="made the model worse"):
        calibrated = kc.calibrate(
            model, X, Y, method=layer, guard=False, verbose=0
        )
    np.testing.assert_allclose(
        calibrated.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5
    )
    record = kc.calibration_record(calibrated)
    assert record["rejected"] and record["nll_after"] > record["nll_before"]
    # The layer is as it was: the identity, without a record.
    assert layer.record is None
    np.testing.assert_array_equal(layer.get_weights()[0], np.eye(3))
    calibrated.save(tmp_path / "rejected.keras")
    again = keras.saving.load_model(tmp_path / "rejected.keras", safe_mode=True)
    assert kc.calibration_record(again) == record


def test_a_failed_fit_leaves_the_layer_as_it_was(monkeypatch):
    layer = kc.layers.TemperatureScaling().adapt(LOGITS, Y)
    before, record = layer.temperature, layer.record

    def fail(*_):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr("keras_calib.calibration._fit.before_and_after", fail)
    with pytest.raises(RuntimeError, match="disk"):
        kc.calibrate(network(), X, (Y + 1) % 3, method=layer, verbose=0)
    assert layer.temperature == before
    assert layer.record == record


def test_a_layer_of_another_model_is_refused():
    layer = kc.layers.TemperatureScaling()
    kc.calibrate(network(), X, Y, method=layer, verbose=0)
    with pytest.raises(ValueError, match="part of another model"):
        kc.calibrate(network(), X, Y, method=layer, verbose=0)


def test_a_name_that_is_taken_is_refused():
    model = functional(layers.Dense(8, name="mine"), dense())
    layer = kc.layers.TemperatureScaling(name="mine")
    with pytest.raises(ValueError, match="Give it another `name`"):
        kc.calibrate(model, X, Y, method=layer, verbose=0)


def test_a_network_with_layers_of_our_names():
    model = functional(
        layers.Dense(8, name="temperature"),
        dense(),
        layers.Softmax(name="probabilities"),
    )
    calibrated = kc.calibrate(model, X, Y, verbose=0)
    assert calibrated.predict(X, verbose=0).shape == (300, 3)


def test_a_preprocessor_is_refused():
    model = network()
    model.preprocessor = layers.Rescaling(1 / 255)
    with pytest.raises(ValueError, match=r"model\.preprocessor = None"):
        kc.calibrate(model, X, Y, verbose=0)


def of_halves(join):
    """Two softmax outputs, joined."""
    inputs = keras.Input((8,))
    halves = [dense("softmax")(inputs), dense("softmax")(inputs)]
    return built(keras.Model(inputs, join(halves)))


def test_log_of_probabilities_is_said():
    # That these are probabilities, only their values show.
    model = of_halves(lambda halves: 0.5 * halves[0] + 0.5 * halves[1])
    with pytest.warns(UserWarning, match="logarithm of its probabilities"):
        calibrated = kc.calibrate(model, X, Y, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["logits_source"] == "log of probabilities"


def test_an_average_has_no_logits_and_no_warning():
    model = of_halves(layers.Average())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        calibrated = kc.calibrate(model, X, Y, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["logits_source"] == "log of probabilities"


def test_auto_chooses_by_likelihood_only():
    with pytest.raises(ValueError, match="cross-validated NLL"):
        kc.calibrate(network(), X, Y, method="auto", objective="ece")


def test_soft_labels_are_counted_by_samples():
    hard, soft = Y[:30], 0.9 * np.eye(3)[Y[:30]] + 0.1 / 3
    messages, records = [], []
    for labels in (hard, soft):
        layer = kc.layers.MatrixScaling(regularization=None)
        with pytest.warns(UserWarning) as found:
            calibrated = kc.calibrate(
                network(), X[:30], labels, method=layer, guard=False, verbose=0
            )
        messages.append([str(each.message) for each in found])
        records.append(kc.calibration_record(calibrated))
    for each in messages:
        assert any("Received: 30 calibration samples" in one for one in each)
    before = network().predict(X[:30], verbose=0).argmax(axis=1)
    after = calibrated.predict(X[:30], verbose=0).argmax(axis=1)
    changed = (before != after).sum()
    assert changed
    assert any(f"changes {changed} of 30 " in one for one in messages[1])


def test_the_errors_of_soft_labels_are_those_of_samples():
    soft = 0.8 * np.eye(3)[Y] + 0.2 / 3
    weight = np.linspace(0.5, 1.5, len(Y))
    for given in (None, weight):
        calibrated = kc.calibrate(
            network(), X, soft, given, guard=False, verbose=0
        )
        p = calibrated.predict(X, verbose=0).astype("float64")
        share = np.ones(len(Y)) if given is None else given
        share = share / share.sum()
        away = np.abs(share @ (p - soft))
        error = np.sqrt(share**2 @ (p * (1 - p)))
        record = kc.calibration_record(calibrated)
        assert record["class_bias"] == pytest.approx(
            (away / error).max(), rel=1e-4
        )


@pytest.mark.parametrize("fitted", [False, True])
def test_a_layer_is_as_it_was_when_a_warning_becomes_an_error(fitted):
    model, layer = network(), kc.layers.VectorScaling(regularization=None)
    if fitted:
        layer.adapt(2 * LOGITS, Y)
    old, record = layer.get_weights(), layer.record
    y = (Y + 1) % 3
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match="predict"):
            kc.calibrate(*(model, X, y), method=layer, guard=False, verbose=0)
    assert layer.record == record and layer.trainable
    if fitted:
        np.testing.assert_array_equal(layer.get_weights(), old)
    # Nothing of a failed call is in the way of the next one.
    kc.calibrate(model, X, Y, method=layer, guard=False, verbose=0)
    assert layer.record["num_samples"] == len(X)


def sigmoid_unit(slope, intercept):
    inputs = keras.Input((1,))
    unit = layers.Dense(1, activation="sigmoid")
    model = keras.Model(inputs, unit(inputs))
    unit.set_weights([np.array([[slope]]), np.array([intercept])])
    return model


def rare_events(num_samples=1500):
    """One input, and events of the risk `sigmoid(1.5 x - 3.2)`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_samples, 1))
    risk = 1 / (1 + np.exp(3.2 - 1.5 * x[:, 0]))
    return x, (rng.uniform(size=num_samples) < risk).astype(int)


BIAS = "the mean probability of class 1 is 0.1.*its frequency.*0.0"


def test_a_class_that_a_temperature_leaves_too_likely_is_told_of():
    x, y = rare_events()
    # As class weights in training make it: too likely, whatever the scale.
    model = sigmoid_unit(1.5, -2.0)
    with pytest.warns(UserWarning, match=BIAS + ".*platt"):
        kc.calibrate(model, x, y, verbose=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", BIAS)
        warnings.filterwarnings("ignore", "PlattScaling changes")
        kc.calibrate(model, x, y, method="platt", verbose=0)
        # Here nothing is wrong, and so few samples tell nothing.
        kc.calibrate(sigmoid_unit(1.5, -3.2), x, y, verbose=0)
        kc.calibrate(model, x[:60], y[:60], verbose=0)


@pytest.mark.parametrize("seed", range(3))
def test_many_classes_with_few_samples_are_not_told_of(seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(1500, 300))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    inputs = keras.Input((300,))
    model = keras.Model(inputs, layers.Softmax()(inputs))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*mean probability of class")
        kc.calibrate(model, z, y, verbose=0)


@pytest.mark.parametrize("units", [1, 3])
def test_labels_of_probability_zero_are_told_of(units):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(max(2, units), 0.5), 300)
    y = (p.cumsum(axis=1) > rng.uniform(size=(300, 1))).argmax(axis=1)
    p[:5] = np.eye(max(2, units))[(y[:5] + 1) % max(2, units)]
    p = p if units > 1 else p[:, 1:]
    inputs = keras.Input((units,))
    model = keras.Model(inputs, layers.Identity()(inputs))
    calibrate = {"from_logits": False, "verbose": 0}
    with pytest.warns(UserWarning, match="5 of 300 .* probability of 0"):
        kc.calibrate(model, p, y, **calibrate)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*probability of 0")
        warnings.filterwarnings("ignore", "No final softmax")
        kc.calibrate(model, p[5:], y[5:], **calibrate)


@pytest.mark.parametrize("loss", ["mse", keras.losses.Huber()])
def test_outputs_of_a_regression_are_no_logits(loss):
    x, y = rare_events()
    inputs = keras.Input((1,))
    model = keras.Model(inputs, layers.Dense(1)(inputs))
    model.compile("sgd", loss)
    with pytest.warns(UserWarning, match="a loss of regression, "):
        kc.calibrate(model, x, y, verbose=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*loss of regression")
        kc.calibrate(model, x, y, from_logits=True, verbose=0)
        model.compile("sgd", keras.losses.BinaryCrossentropy(True))
        kc.calibrate(model, x, y, verbose=0)


def test_arrays_are_pointed_to_the_layers():
    x, y = rare_events(20)
    with pytest.raises(ValueError, match="Scores in arrays take a layer"):
        kc.calibrate(x, y)
