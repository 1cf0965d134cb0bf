"""Averages of networks are calibrated like any model, without a warning."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.calibration.networks import KERNEL
from tests.calibration.networks import X
from tests.calibration.networks import Y


def network(seed, activation, units=3):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(units, activation, use_bias=False),
        ]
    )
    noise = np.random.default_rng(seed).normal(size=KERNEL.shape)
    model.set_weights([(2 * KERNEL + noise / 5)[:, :units]])
    return model


def ensemble(activation, units=3):
    return kc.models.DeepEnsemble(
        [network(seed, activation, units) for seed in range(2)]
    )


def dropout(activation, units=3):
    return kc.models.MonteCarloDropout(
        network(0, activation, units), num_masks=4
    )


@pytest.mark.compiled
@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("activation", [None, "softmax", "sigmoid"])
@pytest.mark.parametrize("make", [ensemble, dropout])
def test_no_warning(make, activation, tmp_path):
    units = 1 if activation == "sigmoid" else 3
    y = (Y == 0).astype("int32") if units == 1 else Y
    average = make(activation, units)
    name = "binary" if units == 1 else "sparse_categorical"
    average.compile(loss=f"{name}_crossentropy", metrics=["accuracy"])
    before, _ = average.evaluate(X, y, verbose=0)
    calibrated = kc.calibrate(average, X, y, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["logits_source"] == "log of probabilities"
    assert record["temperature"] > 1.5
    after, _ = calibrated.evaluate(X, y, verbose=0)
    assert after < before - 0.02
    calibrated.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert again.predict(X, verbose=0).shape == (300, units)


def test_the_average_is_what_is_calibrated():
    average = ensemble("softmax")
    p = average.predict(X, verbose=0)
    expected = kc.layers.TemperatureScaling().adapt(np.log(p), Y)
    calibrated = kc.calibrate(average, X, Y, verbose=0)
    found = kc.calibration_record(calibrated)["temperature"]
    assert found == pytest.approx(expected.temperature, rel=1e-5)
