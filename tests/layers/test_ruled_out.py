"""Classes that the network rules out, by minus infinity or a mask of -1e9."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.solvers import deviations
from keras_calib.solvers import multinomial_regression
from tests.helpers import to_numpy
from tests.layers.generated import nll

MASKS = [-1e9, np.finfo("float32").min, -np.inf]


def drawn(num_samples, num_classes=4, seed=0):
    """Logits twice too large, and labels."""
    rng = np.random.default_rng(seed)
    z = 4 * rng.normal(size=(num_samples, num_classes)).astype("float32")
    return z, (z / 2 + rng.gumbel(size=z.shape)).argmax(axis=1)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    "layer",
    [
        kc.layers.PlattScaling(shrinkage=None),
        kc.layers.PlattScaling(smooth_targets=False, shrinkage=None),
        kc.layers.BetaCalibration(shrinkage=None),
        kc.layers.BetaCalibration(parameters="ab", shrinkage=None),
        kc.layers.QuadraticScaling(shrinkage=None),
    ],
    ids=["platt", "platt, hard", "beta", "beta ab", "quadratic"],
)
def test_rows_of_which_a_class_is_ruled_out_have_no_say(layer, mask):
    z, y = drawn(300, 2)
    more = np.array([[mask, 1.0], [0.5, mask]], "float32")
    found, expected = (
        type(layer).from_config(layer.get_config()).adapt(*data)
        for data in ((np.append(z, more, axis=0), [*y, 1, 0]), (z, y))
    )
    np.testing.assert_allclose(
        to_numpy(found(z)), to_numpy(expected(z)), rtol=1e-5, atol=1e-5
    )
    # What is ruled out stays so: those two rows have no loss.
    assert found.record["nll_after"] == pytest.approx(
        expected.record["nll_after"] * 300 / 302, rel=1e-6
    )


@pytest.mark.parametrize(
    "layer",
    [
        kc.layers.PlattScaling(shrinkage=None),
        kc.layers.BetaCalibration(shrinkage=None),
        kc.layers.QuadraticScaling(shrinkage=None),
    ],
    ids=["platt", "beta", "quadratic"],
)
def test_a_masked_label_has_a_say(layer):
    z, y = drawn(300, 2)
    z, y = np.append(z, [[-1e9, 1.0]], axis=0), [*y, 0]
    layer = type(layer).from_config(layer.get_config()).adapt(z, y)
    # The identity costs 1e9 / 301.
    assert layer.record["nll_before"] > 1e6
    assert layer.record["nll_after"] < 1


def test_default_platt_scaling_is_not_kept_from_its_map():
    z, y = drawn(300, 2)
    more = np.array([[-np.inf, 1.0], [0.5, -np.inf]], "float32")
    found, expected = (
        kc.layers.PlattScaling().adapt(*data)
        for data in ((np.append(z, more, axis=0), [*y, 1, 0]), (z, y))
    )
    found, expected = (nll(to_numpy(map_(z)), y) for map_ in (found, expected))
    assert found == pytest.approx(expected, abs=1e-3)


def test_two_classes_are_fitted_though_all_rows_rule_one_out():
    z = np.array([[0.0, -1e9], [-1e9, 0.0], [0.0, -1e9]], "float32")
    layer = kc.layers.PlattScaling(shrinkage=None).adapt(z, [0, 1, 0])
    assert np.isfinite(layer.record["nll_after"])


@pytest.mark.parametrize("mask", MASKS)
def test_all_samples_right_tell_a_temperature_whatever_is_ruled_out(mask):
    z, _ = drawn(100)
    y = z.argmax(axis=1)
    expected = kc.layers.TemperatureScaling().adapt(z, y).record
    z[3, (y[3] + 1) % 4] = mask
    found = kc.layers.TemperatureScaling().adapt(z, y).record
    assert found["stop_reason"] == expected["stop_reason"] == "all correct"
    assert found["temperature"] == pytest.approx(
        expected["temperature"], rel=0.02
    )


@pytest.mark.filterwarnings("ignore:.*worse than chance|.*temperature")
@pytest.mark.parametrize("mask", MASKS)
def test_predictions_worse_than_chance_are_said_to_be_so(mask):
    z, _ = drawn(100)
    y = z.argmin(axis=1)
    z[3, next(k for k in range(4) if k not in (y[3], z[3].argmax()))] = mask
    layer = kc.layers.TemperatureScaling().adapt(z, y)
    assert layer.record["stop_reason"] == "chance"


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.filterwarnings("error:overflow|invalid value")
def test_evidence_in_float32(mask, dense, monkeypatch):
    # Of large data inputs are float32, and the Hessian is by class.
    monkeypatch.setattr("keras_calib.layers._affine.SMALL", 0)
    if not dense:
        monkeypatch.setattr(deviations, "DENSE", 0)
    z, y = drawn(2000, 6)
    z[:, 2] += 3
    layer = kc.layers.BiasCorrectedTemperatureScaling
    expected = layer().adapt(z, y).record
    chosen = np.flatnonzero(y != 4)[:30]
    z[chosen, 4] = mask
    found = layer().adapt(z, y).record
    assert expected["temperature_scaling_probability"] < 1e-6
    assert found["temperature_scaling_probability"] < 1e-6
    assert found["nll_after"] == pytest.approx(expected["nll_after"], abs=0.01)


@pytest.mark.parametrize("mask", MASKS)
def test_most_classes_may_be_masked(mask):
    z, _ = drawn(100, 10)
    z[:, 3:] = -50
    y = z.argmax(axis=1)
    expected = kc.layers.TemperatureScaling().adapt(z[:, :3], y).record
    z[:, 3:] = mask
    found = kc.layers.TemperatureScaling().adapt(z, y).record
    assert found["temperature"] == pytest.approx(
        expected["temperature"], rel=1e-3
    )


def test_the_unit_of_inputs_is_not_that_of_a_mask():
    x = 2 * np.random.default_rng(0).normal(size=(1000, 300))
    expected = multinomial_regression.unit_of(x)
    assert 1.9 < expected < 2.1
    x[:50, 7] = -1e30
    found = multinomial_regression.unit_of(x)
    assert found == pytest.approx(expected, rel=0.5)
    assert multinomial_regression.unit_of(1e6 * x) == pytest.approx(
        100, abs=0.1
    )


@pytest.mark.parametrize(
    "loss",
    [
        keras.losses.CategoricalCrossentropy(from_logits=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        keras.losses.CategoricalCrossentropy(),
    ],
    ids=["categorical", "sparse", "probabilities"],
)
def test_losses_of_keras_are_objectives_where_classes_are_ruled_out(loss):
    z, y = drawn(200)
    z[:80, 3] = -np.inf
    y[:80][y[:80] == 3] = 0
    expected = kc.layers.TemperatureScaling().adapt(z, y)
    found = kc.layers.TemperatureScaling().adapt(z, y, objective=loss)
    assert float(to_numpy(found.temperature)) == pytest.approx(
        float(to_numpy(expected.temperature)), rel=1e-3
    )


class NotANumber(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return float("nan") * keras.ops.sum(y_pred, axis=-1)


class Infinite(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return -keras.ops.log(0 * keras.ops.sum(y_pred, axis=-1))


@pytest.mark.parametrize("loss", [NotANumber, Infinite])
def test_an_objective_without_a_value_is_refused(loss):
    layer = kc.layers.TemperatureScaling()
    with pytest.raises(ValueError, match="finite number at some temperature"):
        layer.adapt(*drawn(50), objective=loss())
    assert layer.record is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["TemperatureScaling", "VectorScaling"])
def test_smoothed_labels_of_what_is_ruled_out_are_refused(name):
    z, y = drawn(200)
    z[:80, 3] = -np.inf
    y[:80][y[:80] == 3] = 0
    loss = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=0.1
    )
    layer = getattr(kc.layers, name)()
    with pytest.raises(ValueError, match="class that the network rules out"):
        layer.adapt(z, y, objective=loss)
    assert layer.record is None


def test_a_histogram_leaves_out_what_is_ruled_out():
    z, y = drawn(200)
    z[:80, 3] = -np.inf
    y[:80][y[:80] == 3] = 0
    layer = kc.layers.HistogramBinning(shrinkage=None).adapt(z, y)
    q = np.exp(to_numpy(layer(z)))
    assert q[:80, 3].max() == 0
    assert q[80:, 3].min() > 0


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"regularization": None},
        {"normalize_logits": "mean"},
        {"regularization": "structured", "normalize_logits": "log_softmax"},
    ],
    ids=str,
)
def test_a_matrix_is_that_of_the_other_classes(options, mask):
    # No row of the fit rules a class out, and one that is predicted may.
    z, y = drawn(500)
    layer = kc.layers.MatrixScaling(**options).adapt(z, y)
    z[:, 2] = mask
    q = to_numpy(keras.ops.softmax(layer(z)))
    assert np.isfinite(q).all() and q[:, 2].max() == 0
    # The others have what is theirs of a product without this class.
    rest = [0, 1, 3]
    x = z[:, rest].astype("float64")
    how = layer.normalize_logits
    if how == "mean":
        x -= x.mean(axis=1, keepdims=True)
    if how == "log_softmax":
        x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    w, b = to_numpy(layer.kernel), to_numpy(layer.bias)
    expected = np.exp(x @ w[np.ix_(rest, rest)] + b[rest])
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(q[:, rest], expected, atol=2e-5)


def test_large_logits_of_a_matrix_are_no_masks():
    z, y = drawn(500)
    layer = kc.layers.MatrixScaling(regularization="structured")
    q = to_numpy(keras.ops.softmax(layer.adapt(1e9 * z, y)(1e9 * z)))
    # Also the least likely class of a row keeps a probability.
    assert np.median(q.min(axis=1)) > 1e-6


@pytest.mark.parametrize("mask", MASKS[1:])
def test_a_mixture_has_no_row_without_numbers(mask):
    z, y = drawn(300)
    maps = [kc.layers.TemperatureScaling(), kc.layers.MatrixScaling()]
    layer = kc.layers.CalibrationMixture(maps=maps, weights=[1.0, 1.0])
    layer.adapt(z, y)
    z[:3, 1] = mask
    q = to_numpy(keras.ops.softmax(layer(z)))
    assert np.isfinite(q).all() and q[:3, 1].max() < 1e-30
