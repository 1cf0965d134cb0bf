"""`shrinkage="auto"`: few samples leave a map near temperature scaling."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.calibration._methods import samples_needed
from keras_calib.layers._shrunk import Folds
from keras_calib.solvers.shrinkage import fold_of_rows
from keras_calib.solvers.shrinkage import mixture_weight
from keras_calib.solvers.shrinkage import ratio_by_fold
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import nll
from tests.layers.generated import softmax
from tests.layers.test_weights import BINARY
from tests.layers.test_weights import MAPS as EVERY_MAP
from tests.layers.test_weights import data

layers = kc.layers

MAPS = {
    name.removesuffix(" plain"): EVERY_MAP[name.removesuffix(" plain")]
    for name in EVERY_MAP
    if name.endswith(" plain") and hasattr(EVERY_MAP[name](), "shrinkage")
}
EACH_MAP = pytest.mark.parametrize("name", MAPS)


def plain(name):
    return EVERY_MAP[f"{name} plain"]()


def exact(name, count, seed=0):
    """Samples for which temperature scaling with T = 2 is the truth."""
    num_classes = 2 if name in BINARY else 5
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(count, num_classes)) * 2
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits.astype("float32"), labels


def excess(layer, logits, labels, test, test_labels):
    """Test NLL, minus that of temperature scaling."""
    temperature = layers.TemperatureScaling().adapt(logits, labels)
    layer.adapt(logits, labels)
    return nll(to_numpy(layer(test)), test_labels) - nll(
        to_numpy(temperature(test)), test_labels
    )


@EACH_MAP
@pytest.mark.one_backend
@pytest.mark.parametrize(("count", "limit"), [(50, 0.01), (200, 0.002)])
def test_no_harm_where_temperature_scaling_is_right(name, count, limit):
    test = exact(name, 4000, seed=100)
    found = [
        excess(MAPS[name](), *exact(name, count, seed=seed), *test)
        for seed in range(5)
    ]
    assert np.mean(found) <= limit


def test_the_paper_maps_do_harm_there():
    # Otherwise the test above would show nothing.
    for name in ("isotonic", "isotonic per class", "spline"):
        test = exact(name, 4000, seed=100)
        found = [
            excess(plain(name), *exact(name, 50, seed=seed), *test)
            for seed in range(5)
        ]
        assert np.mean(found) > 0.01


def bent(name, count, seed):
    """Samples of which a map is the truth, far from temperature scaling."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(count, 2 if name in BINARY else 5)) * 2
    if name in BINARY:
        truth = logits / 2 + [0.0, 1.0]
    elif name == "parameterized":
        loud = np.arange(count)[:, None] % 2 == 1
        truth = logits / 2 * np.where(loud, 2.0, 1.0)
        logits = truth * np.where(loud, 4.0, 1.0)
    elif name == "order invariant":
        truth = np.where(logits < logits.max(1, keepdims=True), -3.0, 0.0)
        truth += 0.01 * logits
    elif name in ("isotonic per class", "histogram"):
        truth = logits * [0.2, 0.5, 1.0, 1.5, 2.0]
    elif name == "spline":
        p = softmax(logits)
        best = p == p.max(axis=1, keepdims=True)
        rest = np.where(best, 0.0, p)
        rest *= 0.4 / rest.sum(axis=1, keepdims=True)
        truth = np.log(np.where(best, 0.6, rest))
    else:
        truth = np.log(softmax(logits) ** 3 + 0.05)
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    return logits.astype("float32"), labels


@EACH_MAP
@pytest.mark.one_backend
def test_gains_where_the_map_is_right(name):
    if name == "parameterized":
        shrunk = layers.ParameterizedTemperatureScaling()
        alone = layers.ParameterizedTemperatureScaling(shrinkage=None)
    else:
        shrunk, alone = MAPS[name](), plain(name)
    sets = *bent(name, 2000, 0), *bent(name, 4000, 1)
    found, whole = excess(shrunk, *sets), excess(alone, *sets)
    assert found < -0.005
    # The larger part of what the map alone gains, if not more.
    assert found < 0.5 * whole


@pytest.mark.parametrize("name", [name for name in MAPS if name != "histogram"])
def test_the_layer_returns_the_mixture(name):
    logits, labels = bent(name, 500, 0)
    layer, alone = MAPS[name](), plain(name)
    layer.adapt(logits, labels)
    alone.adapt(logits, labels)
    c = float(to_numpy(layer.mixture))
    t = float(to_numpy(layer.temperature))
    assert layer.record["mixture_weight"] == pytest.approx(c)
    assert layer.record["temperature"] == pytest.approx(t)
    expected = layers.TemperatureScaling().adapt(logits, labels).temperature
    assert t == pytest.approx(expected)
    p = (1 - c) * softmax(logits / t) + c * softmax(to_numpy(alone(logits)))
    assert 0 < c < 1
    found = to_numpy(layer(logits))
    np.testing.assert_allclose(np.exp(found), p, atol=1e-6)
    assert layer.record["nll_before"] == pytest.approx(nll(logits, labels))
    assert layer.record["nll_after"] == pytest.approx(nll(found, labels))


@EACH_MAP
def test_the_argument_is_saved(name, tmp_path):
    logits, labels = data(name, 100)[:2]
    for layer in (MAPS[name](), plain(name)):
        layer.adapt(logits, labels)
        inputs = keras.Input(logits.shape[1:])
        model = keras.Model(inputs, layer(inputs))
        model.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        loaded = again.get_layer(layer.name)
        assert loaded.shrinkage == layer.shrinkage
        assert len(loaded.weights) == len(layer.weights)
        for one, other in zip(loaded.weights, layer.weights, strict=True):
            np.testing.assert_array_equal(to_numpy(one), to_numpy(other))
        np.testing.assert_array_equal(
            to_numpy(again(logits)), to_numpy(layer(logits))
        )


def test_a_map_that_fails_in_a_fold_is_temperature_scaling():
    logits, labels = generated(7)
    # Six knots need six samples; four folds hold five or six.
    layer = layers.SplineCalibration().adapt(logits, labels)
    assert layer.record["mixture_weight"] == 0.0
    assert layer.record["stop_reason"] == "too few samples"
    temperature = layers.TemperatureScaling().adapt(logits, labels)
    np.testing.assert_allclose(
        softmax(to_numpy(layer(logits))),
        softmax(to_numpy(temperature(logits))),
        atol=1e-6,
    )
    assert layer.record["nll_after"] == pytest.approx(
        temperature.record["nll_after"]
    )


class Failing(layers.IsotonicCalibration):
    """A map whose fit ends in NaN, except with every sample."""

    def _solve_seen(self, p, *arguments):
        found, record = super()._solve_seen(p, *arguments)
        if len(p) < 100:
            found["heights"] = np.full_like(found["heights"], np.nan)
        return found, record


class Reversed(layers.SplineCalibration):
    """The contrary of the map that it comes from."""

    def call(self, logits):
        return -super().call(logits)


class TheSame(layers.SplineCalibration):
    def call(self, logits):
        return super().call(logits)


def test_folds_see_a_call_that_a_subclass_changes():
    logits, labels = bent("spline", 500, 0)
    expected = layers.SplineCalibration().adapt(logits, labels)
    same = TheSame().adapt(logits, labels)
    for key in ("mixture_weight", "nll_after"):
        assert same.record[key] == pytest.approx(expected.record[key], rel=1e-4)
    turned = Reversed().adapt(logits, labels)
    assert turned.record["mixture_weight"] < 0.01
    assert expected.record["mixture_weight"] > 0.5
    for layer in (expected, same, turned):
        found = nll(to_numpy(layer(logits)), labels)
        assert layer.record["nll_after"] == pytest.approx(found, rel=1e-5)


def test_samples_of_unequal_weight_are_fewer():
    rng = np.random.default_rng(0)
    fold, plain = rng.integers(5, size=200), np.log(rng.uniform(size=200))
    folds = Folds(fold, plain, plain + 0.3 * rng.normal(size=200) + 0.05)
    weights = np.where(np.arange(200) % 2, 0.4, 1.6)
    curve = ratio_by_fold(folds.plain, folds.rich, weights, fold).sum(axis=0)
    # (sum w)^2 / sum w^2 of 200
    expected = mixture_weight(curve / 1.36, 4.0)
    assert folds.mixture_weight(weights, 4.0) == pytest.approx(expected)
    assert abs(mixture_weight(curve, 4.0) - expected) > 0.01


def test_folds_of_a_changed_call_by_hand():
    logits, labels = bent("spline", 200, 0)

    class Flatter(layers.SplineCalibration):
        def call(self, logits):
            return 0.7 * super().call(logits)

    layer = Flatter().adapt(logits, labels)
    fold, _ = fold_of_rows(logits, np.ones(200))
    tempered, rich = np.empty((2, 200))
    for number in range(5):
        inside, outside = fold != number, fold == number
        alone = layers.SplineCalibration(shrinkage=None)
        alone.adapt(logits[inside], labels[inside])
        temperature = layers.TemperatureScaling()
        temperature.adapt(logits[inside], labels[inside])
        rest, y = logits[outside], labels[outside]
        each = np.arange(len(y))
        z = 0.7 * to_numpy(alone(rest))
        rich[outside] = np.log(softmax(z))[each, y]
        z = to_numpy(temperature(rest))
        tempered[outside] = np.log(softmax(z))[each, y]
    expected = Folds(fold, tempered, rich).mixture_weight(np.ones(200), 4.0)
    assert 0.01 < expected < 0.99
    found = layer.record["mixture_weight"]
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_map_without_numbers_in_a_fold_is_temperature_scaling():
    layer = Failing().adapt(*generated(100))
    assert layer.record["mixture_weight"] == 0.0
    assert layer.record["stop_reason"] == "too few samples"


def test_folds_with_one_class_are_temperature_scaling():
    logits, labels = exact("platt", 50)
    labels = (np.arange(50) == 3).astype(int)
    layer = layers.PlattScaling().adapt(logits, labels)
    assert layer.record["mixture_weight"] == 0.0


def test_one_sigmoid_unit():
    logits, labels = bent("platt", 500, 0)
    single = logits[:, 1:] - logits[:, :1]
    layer = layers.PlattScaling().adapt(single, labels)
    pair = layers.PlattScaling().adapt(logits, labels)
    found, expected = to_numpy(layer(single)), to_numpy(pair(logits))
    np.testing.assert_allclose(
        found[:, 0], expected[:, 1] - expected[:, 0], rtol=1e-4, atol=1e-4
    )
    # Its log-odds stay exact far from 0, and in order.
    far = np.linspace(-300, 300, 601, dtype="float32")[:, None]
    assert (np.diff(to_numpy(layer(far))[:, 0]) > 0).all()


def test_fewer_samples_than_folds():
    logits, labels = generated(4)
    layer = layers.IsotonicCalibration().adapt(logits, labels)
    assert layer.record["mixture_weight"] == 0.0


# Keras' `get_weights` on PyTorch is NumPy's matter.
@pytest.mark.filterwarnings("error", "ignore:__array__ implementation")
def test_folds_do_not_warn():
    # In a fold every prediction is right; not in all of them.
    for name in MAPS:
        logits, _ = exact(name, 20)
        labels = logits.argmax(axis=1)
        labels[3] = logits[3].argmin()
        MAPS[name]().adapt(logits, labels)


@pytest.mark.parametrize("name", ["diagonal", "parameterized"])
@pytest.mark.parametrize("objective", ["focal", "label_smoothing"])
def test_other_objectives_set_the_temperature(name, objective):
    logits, labels = bent(name, 300, 0)
    layer = MAPS[name]().adapt(logits, labels, objective=objective)
    expected = layers.TemperatureScaling().adapt(
        logits, labels, objective=objective
    )
    assert layer.record["temperature"] == pytest.approx(expected.temperature)
    assert 0 < layer.record["mixture_weight"] < 1
    assert "nll_after" not in layer.record


def test_class_loss_scaling_reaches_the_temperature():
    logits, labels = generated(300)
    layer = layers.IntraOrderPreserving()
    layer.adapt(logits, labels, class_loss_scaling="normal")
    alone = layers.IntraOrderPreserving().adapt(logits, labels)
    assert layer.record["temperature"] != alone.record["temperature"]
    assert 0 < layer.record["mixture_weight"] < 1
    assert layer.record["nll_after"] == pytest.approx(
        nll(to_numpy(layer(logits)), labels), abs=1e-5
    )


@EACH_MAP
def test_no_number_of_samples_is_wanted(name):
    assert samples_needed(MAPS[name](), 5) == 0
    assert samples_needed(plain(name), 5) > 0


@EACH_MAP
def test_bad_shrinkage(name):
    with pytest.raises(ValueError, match="shrinkage='none'"):
        type(MAPS[name]())(shrinkage="none")
