import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.calibration._choose import choose
from keras_calib.calibration._choose import losses_and_probabilities
from keras_calib.calibration._methods import as_map
from keras_calib.inputs import predictions
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.calibration_rows import read_rows
from tests.calibration.networks import KERNEL
from tests.calibration.networks import X
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional
from tests.helpers import read_predictions


def generated(shift, num_samples=2000, seed=0):
    """Logits that are twice as large as they should be, and shifted."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_samples, 3)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    return (2 * logits + shift).astype("float32"), labels


def test_temperature_unless_another_is_better():
    name, trials = choose(read_rows(*generated(0.0)))
    assert name == "temperature"
    assert set(trials) >= {"vector", "dirichlet", "isotonic"}
    gain = trials["temperature"]["nll"] - trials["vector"]["nll"]
    assert gain < 2 * trials["vector"]["standard_error"]


def test_a_bias_is_found():
    logits, labels = generated([3.0, 0.0, -3.0])
    name, trials = choose(read_rows(logits, labels))
    gain = trials["temperature"]["nll"] - trials[name]["nll"]
    assert gain > 2 * trials[name]["standard_error"] > 0
    assert trials["bias_corrected_temperature"]["nll"] == pytest.approx(
        trials["vector"]["nll"], abs=0.01
    )
    assert trials[name]["nll"] == min(
        trial["nll"] for trial in trials.values() if "nll" in trial
    )


def test_choice_is_deterministic():
    logits, labels = generated([1.0, 0.0, -1.0], 300)
    rows = read_rows(logits, labels)
    assert choose(rows) == choose(rows)


def test_choice_with_weights_of_zero_is_that_without_these_samples():
    logits, labels = generated([1.0, 0.0, -1.0], 300)
    weight = np.ones(300)
    weight[200:] = 0
    found = choose(read_rows(logits, labels, weight))
    assert found == choose(read_rows(logits[:200], labels[:200]))
    assert found != choose(read_rows(logits, labels))


def test_choice_does_not_depend_on_the_scale_of_weights():
    logits, labels = generated([1.0, 0.0, -1.0], 300)
    weight = np.random.default_rng(1).uniform(0.1, 2, 300)
    name, trials = choose(read_rows(logits, labels, weight))
    again, scaled = choose(read_rows(logits, labels, 1000 * weight))
    assert name == again
    assert set(scaled) == set(trials)
    for method, trial in trials.items():
        if "skipped" in trial:
            assert scaled[method] == trial
        else:
            assert scaled[method] == pytest.approx(trial, rel=1e-6)


@pytest.mark.parametrize("method", ["temperature", "auto"])
def test_data_is_read_once(method, monkeypatch):
    lengths = []
    read = predictions._read

    def counting(labels, *arguments):
        lengths.append(len(labels))
        return read(labels, *arguments)

    monkeypatch.setattr(predictions, "_read", counting)
    labels = (X @ KERNEL).argmax(-1)
    labels[::3] = 0
    model = built(functional(dense("softmax")))
    kc.calibrate(model, X, labels, method=method, verbose=0)
    assert sum(lengths) == len(X)


def test_rich_maps_are_tried_with_few_samples():
    # Few samples leave their defaults near temperature scaling.
    _, trials = choose(read_rows(*generated(0.0, 60)))
    assert not any("skipped" in trial for trial in trials.values())
    for name in ("vector", "matrix", "dirichlet", "isotonic"):
        harm = trials[name]["nll"] - trials["temperature"]["nll"]
        assert harm < 0.02, name


def test_only_affine_maps_fuse():
    name, trials = choose(read_rows(*generated([3.0, 0.0, -3.0])), affine=True)
    assert name in ("bias_corrected_temperature", "vector", "matrix")
    assert "isotonic" not in trials


def test_the_record_tells_what_was_tried():
    logits = X @ KERNEL
    rng = np.random.default_rng(0)
    labels = (logits / 3 + rng.gumbel(size=logits.shape)).argmax(-1)
    model = built(functional(dense("softmax")))
    for fuse in (False, True):
        calibrated = kc.calibrate(
            model, X, labels, method="auto", fuse=fuse, verbose=0
        )
        record = kc.calibration_record(calibrated)
        trial = record["trials"][record["method"]]
        assert trial["nll"] == pytest.approx(record["nll_after"], rel=0.02)


def test_two_classes_from_one_unit():
    rng = np.random.default_rng(0)
    logit = rng.normal(size=(1000, 1)).astype("float32") * 4 + 2
    labels = (logit[:, 0] / 4 - 0.5 + rng.logistic(size=1000) > 0).astype(int)
    name, trials = choose(read_rows(logit, labels))
    assert name in ("platt", "beta")
    assert set(trials) == {"temperature", "platt", "beta"}


FILES = (
    "lenet-5-cifar-100",
    "wideresnet-16-4-cifar-10",
    "wideresnet-16-4-cifar-100",
)


@pytest.mark.slow
@pytest.mark.skipif(
    keras.backend.backend() != "torch",
    reason="minutes of NumPy, the same on each backend: once is enough",
)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_samples", [50, 200, 1000])
@pytest.mark.parametrize("name", FILES)
def test_never_worse_than_temperature(name, num_samples, data_folder):
    probabilities, labels = read_predictions(data_folder, name)
    logits = np.log(np.maximum(probabilities, 1.2e-38))
    order = np.random.default_rng(0).permutation(len(labels))
    fit, test = order[:num_samples], order[5000:]

    def losses(method):
        layer = as_map(method).adapt(logits[fit], labels[fit])
        out = as_array(layer(logits[test])).astype("float64")
        return losses_and_probabilities(out, labels[test])[0]

    chosen, _ = choose(read_rows(logits[fit], labels[fit]))
    plain = losses("temperature")
    error = plain.std() / np.sqrt(len(plain))
    assert losses(chosen).mean() <= plain.mean() + error
