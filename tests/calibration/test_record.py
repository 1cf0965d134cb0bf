"""One record: every key is documented, and none replaces another."""

import json
import re

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.calibration._methods import METHODS
from keras_calib.calibration._record import CalibrationRecord
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional
from tests.calibration.test_methods import network_and_labels

ALWAYS = {
    "method",
    "objective",
    "objective_arguments",
    "class_loss_scaling",
    "num_samples",
    "num_classes",
    "rejected",
    "logits_source",
    "nll_before",
    "nll_after",
    "ece_before",
    "ece_after",
    "ece_num_bins",
    "fingerprint",
    "keras_calib_version",
}


def documented():
    return set(re.findall(r"`?(\w+)`?[:,]", CalibrationRecord.__doc__))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", METHODS)
def test_keys_are_documented(method):
    model, labels = network_and_labels(method)
    calibrated = kc.calibrate(model, X, labels, method=method, verbose=0)
    record = kc.calibration_record(calibrated)
    assert ALWAYS <= set(record) <= documented()
    assert json.loads(json.dumps(record)) == record


@pytest.mark.filterwarnings("ignore")
def test_class_loss_scaling_keys_are_documented():
    model, labels = network_and_labels("vector")
    calibrated = kc.calibrate(
        model,
        X,
        labels,
        method="vector",
        class_loss_scaling="normal",
        verbose=0,
    )
    record = kc.calibration_record(calibrated)
    assert ALWAYS <= set(record) <= documented()
    assert record["class_loss_scaling"] == "normal"


@pytest.mark.filterwarnings("ignore")
def test_settings_of_the_map_are_kept(tmp_path):
    model = built(functional(dense("softmax")))
    layer = kc.layers.HistogramBinning(num_bins=7)
    calibrated = kc.calibrate(model, X, Y, method=layer, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["num_bins"] == 7
    assert record["ece_num_bins"] == 15
    assert record["method"] == "HistogramBinning"
    calibrated.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert kc.calibration_record(loaded) == record


def test_nll_is_that_of_the_outputs():
    model = built(functional(dense("softmax")))
    calibrated = kc.calibrate(model, X, Y, verbose=0)
    record = kc.calibration_record(calibrated)
    p = calibrated.predict(X, verbose=0)[np.arange(len(Y)), Y]
    assert record["nll_after"] == pytest.approx(-np.log(p).mean(), rel=1e-5)


def test_record_prints_a_key_per_line():
    model = built(functional(dense("softmax")))
    record = kc.calibration_record(kc.calibrate(model, X, Y, verbose=0))
    assert isinstance(record, dict)
    lines = str(record).splitlines()
    for key in record:
        assert sum(f"'{key}': " in line for line in lines) == 1


def test_what_a_map_tells_never_replaces_a_key():
    known = dict.fromkeys(ALWAYS, 1)
    record = CalibrationRecord(**known, fitted={"nll_after": 2, "slope": 3})
    assert record.to_dict() == {**known, "slope": 3}
    assert "trials" in CalibrationRecord(**known, trials={}).to_dict()
