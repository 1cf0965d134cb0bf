"""The mean of the probabilities of several maps."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import softmax

LAYERS = kc.layers


def test_a_mean_of_probabilities():
    logits, labels = generated()
    maps = [LAYERS.TemperatureScaling(), LAYERS.VectorScaling()]
    mixture = LAYERS.CalibrationMixture(maps=maps, weights=[1.0, 3.0])
    mixture.adapt(logits, labels)
    alone = [LAYERS.TemperatureScaling(), LAYERS.VectorScaling()]
    parts = [
        softmax(to_numpy(layer.adapt(logits, labels)(logits)))
        for layer in alone
    ]
    np.testing.assert_allclose(
        np.exp(to_numpy(mixture(logits))),
        0.25 * parts[0] + 0.75 * parts[1],
        atol=1e-6,
    )
    assert [*mixture.record["mixture_weights"].values()] == [0.25, 0.75]


def test_maps_that_are_built_stay_as_they_are():
    logits, labels = generated()
    fitted = LAYERS.TemperatureScaling().adapt(logits, labels)
    before = fitted.temperature
    fresh = LAYERS.VectorScaling()
    maps = [fitted, fresh]
    mixture = LAYERS.CalibrationMixture(maps=maps, weights=[1.0, 0.0])
    found = softmax(to_numpy(mixture(logits)))
    assert fresh.built and fitted.temperature == before
    expected = softmax(to_numpy(fitted(logits)))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_file(tmp_path):
    logits, labels = generated()
    mixture = LAYERS.CalibrationMixture(
        maps=[LAYERS.SplineCalibration(), LAYERS.MatrixScaling()],
        weights=[0.5, 0.5],
    ).adapt(logits, labels)
    model = keras.Sequential([keras.Input((5,)), mixture])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    x = logits.astype("float32")
    np.testing.assert_array_equal(
        again.predict(x, verbose=0), model.predict(x, verbose=0)
    )
    assert again.layers[-1].record == mixture.record


def test_all_maps_are_fitted_or_none():
    logits, labels = generated()
    good = LAYERS.TemperatureScaling()
    good.build((None, 5))
    mixture = LAYERS.CalibrationMixture(
        maps=[good, LAYERS.BetaCalibration()], weights=[1, 1]
    )
    with pytest.raises(ValueError, match="two classes"):
        mixture.adapt(logits, labels)
    assert good.temperature == 1.0 and mixture.record is None


def test_predictions_stay_where_all_maps_keep_them():
    keeps = [LAYERS.TemperatureScaling(), LAYERS.SplineCalibration()]
    assert LAYERS.CalibrationMixture(
        maps=keeps, weights=[1, 1]
    ).preserves_accuracy
    both = [LAYERS.TemperatureScaling(), LAYERS.VectorScaling()]
    assert not LAYERS.CalibrationMixture(
        maps=both, weights=[1, 1]
    ).preserves_accuracy


@pytest.mark.parametrize("weights", [[], [1.0], [1.0, -1.0], [0.0, 0.0]])
def test_weights_that_do_not_fit(weights):
    maps = [LAYERS.TemperatureScaling(), LAYERS.VectorScaling()]
    with pytest.raises(ValueError, match="a weight >= 0 for each"):
        LAYERS.CalibrationMixture(maps=maps, weights=weights)


def test_layers_have_names_of_their_own():
    same = kc.layers.TemperatureScaling()
    equal = [kc.layers.TemperatureScaling(name="t") for _ in range(2)]
    for maps in ([same, same], equal):
        with pytest.raises(ValueError, match="names of their own"):
            kc.layers.CalibrationMixture(maps=maps, weights=[1, 3])


def test_a_mixture_promises_what_all_its_maps_do():
    plain = kc.layers.VectorScaling(regularization=None)
    mixture = kc.layers.CalibrationMixture(maps=[plain], weights=[1])
    assert not mixture.shift_invariant and not mixture.averages
    mean = kc.layers.BayesianTemperatureScaling()
    mixture = kc.layers.CalibrationMixture(maps=[mean], weights=[1])
    assert mixture.shift_invariant and mixture.averages


def test_a_mixture_is_fitted_by_likelihood():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60, 3))
    mixture = kc.layers.CalibrationMixture(
        maps=[kc.layers.TemperatureScaling()], weights=[1]
    )
    with pytest.raises(ValueError, match="objective"):
        mixture.adapt(logits, np.arange(60) % 3, objective="focal")
    assert mixture.record is None


def test_maps_of_other_classes_leave_the_mixture_as_it_is():
    maps = [kc.layers.TemperatureScaling(), kc.layers.VectorScaling()]
    mixture = kc.layers.CalibrationMixture(maps=maps, weights=[1.0, 2.0])
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(80, 3)).astype("float32")
    mixture.adapt(z, (z + rng.gumbel(size=z.shape)).argmax(1))
    before, record = to_numpy(mixture(z)), mixture.record
    with pytest.raises(ValueError, match="built for other logits"):
        mixture.adapt(rng.normal(size=(90, 5)), rng.integers(0, 5, 90))
    np.testing.assert_array_equal(to_numpy(mixture(z)), before)
    assert mixture.record is record
