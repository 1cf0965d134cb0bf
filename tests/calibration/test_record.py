"""One record: every key is documented, and none replaces another."""

import json
import re

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.calibration._methods import METHODS
from keras_calib.calibration._record import CalibrationRecord
from keras_calib.calibration._record import name_of_map
from keras_calib.calibration._record import summary
from tests.calibration.networks import Subclassed
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
    "guard",
    "logits_source",
    "nll_before",
    "nll_after",
    "ece_before",
    "ece_after",
    "ece_num_bins",
    "source_prior",
    "source_num_samples",
    "class_bias",
    "fingerprint",
    "keras_calib_version",
}


def documented():
    return set(re.findall(r"`?(\w+)`?[:,]", CalibrationRecord.__doc__))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", METHODS)
def test_keys_are_documented(method):
    model, labels = network_and_labels(method)
    calibrated = kc.calibrate(
        model, X, labels, method=method, guard=False, verbose=0
    )
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
    calibrated = kc.calibrate(model, X, Y, method=layer, guard=False, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["num_bins"] == 7
    assert record["ece_num_bins"] == 15
    assert record["method"] == "HistogramBinning"
    calibrated.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert kc.calibration_record(loaded) == record


def test_the_record_of_a_file(tmp_path):
    model = built(functional(dense("softmax")))
    calibrated = kc.calibrate(model, X, Y, verbose=0)
    calibrated.save(tmp_path / "a.keras")
    expected = kc.calibration_record(calibrated)
    for path in (tmp_path / "a.keras", str(tmp_path / "a.keras")):
        assert kc.calibration_record(path) == expected


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
    assert "np." not in str(record)


def test_what_a_map_tells_never_replaces_a_key():
    known = dict.fromkeys(ALWAYS, 1)
    record = CalibrationRecord(**known, fitted={"nll_after": 2, "slope": 3})
    assert record.to_dict() == {**known, "slope": 3}
    assert "trials" in CalibrationRecord(**known, trials={}).to_dict()


def test_one_line_says_what_was_found(capsys):
    model, labels = network_and_labels("temperature")
    calibrated = kc.calibrate(model, X, labels, verbose=1)
    record = kc.calibration_record(calibrated)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == (
        f"temperature {record['temperature']:.3g}: "
        f"ECE {record['ece_before']:.3f} -> {record['ece_after']:.3f}, "
        f"NLL {record['nll_before']:.3f} -> {record['nll_after']:.3f} "
        f"on {len(X)} samples"
    )


def test_a_line_names_the_parts_of_a_mixture_and_what_was_rejected():
    record = {"method": "mixture", "rejected": True, "num_samples": 7}
    record["mixture_weights"] = {"temperature": 0.75, "vector": 0.25}
    for error in ("ece", "nll"):
        record |= {f"{error}_before": 0.5, f"{error}_after": 0.25}
    assert summary(record) == (
        "mixture of 0.75 temperature + 0.25 vector rejected, the model is "
        "unchanged; with the map: "
        "ECE 0.500 -> 0.250, NLL 0.500 -> 0.250 on 7 samples"
    )


def test_a_line_tells_a_temperature_from_a_weight():
    record = {"method": "order_preserving", "temperature": 1.3579}
    assert name_of_map(record) == "order preserving (temperature 1.36)"
    assert name_of_map({**record, "method": "temperature"}) == (
        "temperature 1.36"
    )
    one = {"method": "local_temperature", "kept": "temperature"}
    assert name_of_map({**record, **one, "reason": "fewer than 5 images"}) == (
        "temperature 1.36 for all pixels (fewer than 5 images)"
    )


def test_a_line_tells_both_parts_of_a_shrunk_map():
    # The temperature is not that of the map, but of what it is mixed with.
    record = {"method": "beta", "temperature": 4.3579, "mixture_weight": 0.886}
    assert name_of_map(record) == "0.89 beta + 0.11 temperature 4.36"
    by_label = {"temperature": [1.5, 2.5, 2.0], "mixture": [0.25, 0.0, 1.0]}
    assert name_of_map({"method": "platt", **by_label}) == (
        "0.00 to 1.00 platt + temperature 1.5 to 2.5 for 3 labels"
    )


def two_kinds(num_samples, seed=0):
    """Easy samples that are underconfident, a few sure ones that are wrong."""
    rng = np.random.default_rng(seed)
    margin = np.where(rng.random(num_samples) < 0.9, 2.0, 12.0)
    right = np.where(margin == 2.0, 0.97, 0.75)
    labels = (rng.random(num_samples) > right).astype("int32")
    return np.stack([margin, 0 * margin], axis=1).astype("float32"), labels


def test_a_higher_ece_is_not_passed_over():
    z, labels = two_kinds(4000)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Identity()])
    with pytest.warns(UserWarning, match='`objective="ece"` lowers the ECE'):
        calibrated = kc.calibrate(model, z, labels, from_logits=True, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["ece_after"] > record["ece_before"] + 0.01
    assert record["nll_after"] < record["nll_before"]


@pytest.mark.filterwarnings("error:.*the ECE on the calibration data rose")
@pytest.mark.parametrize("seed", range(5))
def test_chance_is_not_a_higher_ece(seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(60, 3)).astype("float32")
    labels = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Identity()])
    kc.calibrate(model, z, labels, from_logits=True, verbose=0)


def test_the_record_of_a_fused_map_is_not_that_of_a_map_inside():
    inner = kc.calibrate(built(functional(dense("softmax"))), X, Y, verbose=0)
    head = keras.layers.Dense(3, "softmax")
    model = keras.Model(inner.inputs, head(inner.output))
    half = X[::2], Y[::2]
    fused = kc.calibrate(model, *half, fuse=True, verbose=0)
    assert kc.calibration_record(fused)["num_samples"] == len(half[0])
    plain = kc.calibrate(model, *half, verbose=0)
    prior = {"prior": [0.5, 0.3, 0.2], "verbose": 0}
    found = [
        kc.calibration_record(kc.adjust_prior(each, **prior))
        for each in (fused, plain)
    ]
    np.testing.assert_allclose(
        *(each["prior_correction"]["source_prior"] for each in found), rtol=1e-5
    )


@pytest.mark.parametrize("mixture", [False, True])
@pytest.mark.parametrize("kind", ["functional", "subclassed"])
def test_a_corrected_prior_stands_beside_the_record(kind, mixture):
    model = built(functional(dense()) if kind == "functional" else Subclassed())
    options = {"method": "auto", "mixture": True} if mixture else {}
    calibrated = kc.calibrate(
        model, X, Y, from_logits=True, verbose=0, **options
    )
    expected = kc.calibration_record(calibrated)
    if mixture:
        assert expected["method"] == "CalibrationMixture"
    corrected = kc.adjust_prior(calibrated, X[:100], verbose=0)
    found = dict(kc.calibration_record(corrected))
    assert found.pop("prior_correction")
    assert found == expected


def test_a_record_is_of_the_end_of_a_model():
    calibrated = kc.calibrate(built(functional(dense())), X, Y, verbose=0)
    expected = kc.calibration_record(calibrated)
    logits = keras.ops.log(calibrated.output)
    sets = kc.layers.ConformalSets()
    sets.adapt(np.log(calibrated.predict(X, verbose=0)), Y)
    for behind in (keras.layers.Reshape((3, 1)), keras.layers.Dropout(0.1)):
        model = keras.Model(calibrated.inputs, behind(calibrated.output))
        assert kc.calibration_record(model) == expected
    model = keras.Model(calibrated.inputs, sets(logits))
    assert kc.calibration_record(model) == expected
    for output in (
        keras.layers.Dense(5, "softmax")(calibrated.output),
        keras.layers.BatchNormalization()(calibrated(calibrated.inputs[0])),
    ):
        model = keras.Model(calibrated.inputs, output)
        with pytest.raises(ValueError, match="no calibration layer at its end"):
            kc.calibration_record(model)
        with pytest.raises(ValueError, match="no calibration layer at its end"):
            kc.model_card(model)


@pytest.mark.filterwarnings("error:.*loaded, set or trained")
def test_a_record_of_another_temperature_is_told(tmp_path):
    first, second = (
        kc.calibrate(built(functional(dense())), scale * X, Y, verbose=0)
        for scale in (1.0, 5.0)
    )
    first.save_weights(tmp_path / "first.weights.h5")
    assert kc.calibration_record(second)["temperature"] > 0
    second.load_weights(tmp_path / "first.weights.h5")
    with pytest.warns(UserWarning, match="were loaded, set or trained"):
        kc.calibration_record(second)
    with pytest.warns(UserWarning, match="were loaded, set or trained"):
        kc.model_card(second)
    # And of the data of its record it knows nothing any more.
    kc.calibrate(second, 5.0 * X, Y, verbose=0)
    with pytest.raises(ValueError, match="very samples"):
        kc.calibrate(first, X, Y, verbose=0)
    first.save(tmp_path / "first.keras")
    again = keras.saving.load_model(tmp_path / "first.keras")
    assert kc.calibration_record(again) == kc.calibration_record(first)


def test_records_of_members_are_not_that_of_their_average():
    members = [
        kc.calibrate(built(functional(dense("softmax"))), X, Y, verbose=0)
        for _ in range(2)
    ]
    inputs = keras.Input((8,))
    outputs = keras.layers.Average()([each(inputs) for each in members])
    ensemble = kc.models.DeepEnsemble(members)
    for average in (outputs, ensemble(inputs)):
        with pytest.raises(ValueError, match="holds no calibration layer"):
            kc.calibration_record(keras.Model(inputs, average))
