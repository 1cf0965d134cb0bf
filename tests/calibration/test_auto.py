import dataclasses
import functools
import time
import warnings

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.calibration import _choose
from keras_calib.calibration import _few_samples
from keras_calib.calibration._choose import bootstrap_weights
from keras_calib.calibration._choose import choose
from keras_calib.calibration._fit import Options
from keras_calib.calibration._guard import PRIOR_OF_EVIDENCE
from keras_calib.calibration._guard import evidence_of_temperature
from keras_calib.calibration._held_out import losses_and_probabilities
from keras_calib.calibration._held_out import standard_error
from keras_calib.calibration._methods import as_map
from keras_calib.inputs import predictions
from keras_calib.inputs.arrays import as_array
from keras_calib.inputs.calibration_rows import read_rows
from keras_calib.layers._base import CalibrationLayer
from tests.calibration.networks import KERNEL
from tests.calibration.networks import X
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional
from tests.calibration.test_guard import sampled
from tests.helpers import read_predictions
from tests.helpers import to_numpy
from tests.layers.generated import softmax


def generated(shift, num_samples=2000, seed=0):
    """Logits that are twice as large as they should be, and shifted."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_samples, 3)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    return (2 * logits + shift).astype("float32"), labels


@functools.cache
def few():
    """300 samples whose logits are shifted, and the choice for them."""
    logits, labels = generated([1.0, 0.0, -1.0], 300)
    return logits, labels, choose(read_rows(logits, labels), Options())


def test_temperature_is_enough():
    choice = choose(read_rows(*generated(0.0)), Options())
    assert choice.best == "temperature"
    assert set(choice.trials) >= {"no_calibration", "matrix", "spline"}
    assert sum(choice.weights.values()) == pytest.approx(1)
    trials = choice.trials
    gain = trials["temperature"]["nll"] - trials["matrix"]["nll"]
    assert gain < 2 * trials["matrix"]["standard_error"]


def test_a_model_that_is_calibrated():
    logits, labels = generated(0.0)
    choice = choose(read_rows(logits / 2, labels), Options())
    # All candidates learn that there is nothing to learn.
    nll = [trial["nll"] for trial in choice.trials.values() if "nll" in trial]
    assert max(nll) - min(nll) < 2e-3
    # The evidence decides between the model and temperature scaling.
    unchanged, tempered = (
        choice.trials[name] for name in ("no_calibration", "temperature")
    )
    nll_before, _ = losses_and_probabilities(logits / 2, labels)
    assert unchanged["nll"] == pytest.approx(nll_before.mean())
    ahead = -unchanged["temperature_log_evidence"]
    assert ahead > PRIOR_OF_EVIDENCE
    assert unchanged["weight"] / tempered["weight"] == pytest.approx(
        np.exp(ahead - PRIOR_OF_EVIDENCE)
    )


def test_a_bias_is_found():
    choice = choose(read_rows(*generated([3.0, 0.0, -3.0])), Options())
    trials, name = choice.trials, choice.best
    gain = trials["temperature"]["nll"] - trials[name]["nll"]
    assert gain > 2 * trials[name]["standard_error"] > 0
    assert name == "matrix"
    assert trials["matrix"]["nll"] == min(
        trial["nll"] for trial in trials.values() if "nll" in trial
    )


def scores(choice):
    """What was found, without the time that it took."""
    return choice.weights, {
        name: {key: trial[key] for key in trial if key != "seconds"}
        for name, trial in choice.trials.items()
    }


def test_choice_is_deterministic():
    logits, labels, found = few()
    again = choose(read_rows(logits, labels), Options())
    assert scores(again) == scores(found)


def test_choice_with_weights_of_zero_is_that_without_these_samples():
    logits, labels, unweighted = few()
    weight = np.ones(300)
    weight[200:] = 0
    found = choose(read_rows(logits, labels, weight), Options())
    fewer = choose(read_rows(logits[:200], labels[:200]), Options())
    assert scores(found) == scores(fewer)
    assert scores(found) != scores(unweighted)


def test_choice_does_not_depend_on_the_scale_of_weights():
    logits, labels = generated([1.0, 0.0, -1.0], 300)
    weight = np.random.default_rng(1).uniform(0.1, 2, 300)
    found = choose(read_rows(logits, labels, weight), Options())
    scaled = choose(read_rows(logits, labels, 1000 * weight), Options())
    assert found.best == scaled.best
    for name, weight in found.weights.items():
        assert scaled.weights[name] == pytest.approx(weight, abs=1e-5)
        again = scaled.trials[name]["nll"]
        assert again == pytest.approx(found.trials[name]["nll"], rel=1e-6)


def test_samples_of_unequal_weight_are_fewer():
    logits, labels, equal = few()
    weights = np.exp(1.2 * np.random.default_rng(0).normal(size=300))
    rows = read_rows(logits, labels, weights)
    assert rows.effective_num_samples == pytest.approx(
        weights.sum() ** 2 / np.square(weights).sum()
    )
    assert rows.effective_num_samples < _choose.FEW_SAMPLES < 300
    found = choose(rows, Options())
    assert "skipped" in equal.trials["bayesian_temperature"]
    assert "weight" in found.trials["bayesian_temperature"]
    assert found.expected and not equal.expected
    # Of equal weights the number of samples, also where the last digit is off.
    rows = read_rows(logits, labels, np.full(300, 0.1))
    assert rows.effective_num_samples == 300


def test_likelihoods_count_what_unequal_weights_are_worth(monkeypatch):
    logits, labels = generated([1.0, 0.0, -1.0], 1500)
    weights = np.where(np.arange(1500) % 2, 0.4, 1.6)
    rows = read_rows(logits, labels, weights)
    powers = []

    def kept(losses, rows, log_odds, seed, power):
        powers.append(power)
        return bootstrap_weights(losses, rows, log_odds, seed, power)

    monkeypatch.setattr(_choose, "bootstrap_weights", kept)
    choose(rows, Options())
    assert powers == [pytest.approx(1 / (1 + 0.6**2))]


def test_bootstrap_weights_by_hand():
    # Two candidates, of which one is better by d on each sample: every draw
    # of weights sums to n, so that the weight is 1 / (1 + exp(-n d)).
    rows = read_rows(*generated(0.0, 10))
    losses = {"a": np.full(10, 1.0), "b": np.full(10, 1.1)}
    found = bootstrap_weights(losses, rows, {})
    assert found["a"] == pytest.approx(1 / (1 + np.exp(-1.0)))
    losses["c"] = np.full(10, np.inf)
    assert bootstrap_weights(losses, rows, {}) == {**found, "c": 0.0}
    found = bootstrap_weights(losses, rows, {"b": -3.0})
    assert found["a"] == pytest.approx(1 / (1 + np.exp(-4.0)))


def test_tempered_bootstrap_weights_by_hand():
    rows = read_rows(*generated(0.0, 10))
    losses = {"a": np.full(10, 1.0), "b": np.full(10, 1.1)}
    found = bootstrap_weights(losses, rows, {"b": -3.0}, power=0.5)
    assert found["a"] == pytest.approx(1 / (1 + np.exp(-3.5)))


def test_the_model_as_it_is_stands_behind_by_evidence():
    # By folds, these samples would leave a model alone that needs T = 1.6.
    logits, labels = sampled(50, scale=1.6, num_classes=3, seed=62)
    for mixture in (False, True):
        rows = read_rows(logits, labels)
        choice = choose(rows, Options(), mixture=mixture)
        trials = choice.trials
        evidence = trials["no_calibration"]["temperature_log_evidence"]
        assert evidence > 0
        assert evidence == pytest.approx(evidence_of_temperature(rows))
        # More samples of less weight each tell as much.
        twice = read_rows(
            np.tile(logits, (2, 1)),
            np.tile(labels, 2),
            np.repeat([1.0, 1e-9], 50),
        )
        again = choose(twice, Options(), mixture=mixture).trials
        assert again["no_calibration"]["temperature_log_evidence"] == (
            pytest.approx(evidence, abs=1e-4)
        )
        assert choice.best != "no_calibration"


@pytest.mark.parametrize("number", [150, 300])
def test_the_structured_matrix_must_be_better_by_itself(number):
    logits, labels = generated([1.0, 0.0, -1.0], number)
    rows = read_rows(logits, labels)
    odds = [
        choose(rows, Options(), mixture=mixture).weights["structured_matrix"]
        for mixture in (False, True)
    ]
    assert 0 < odds[0] < odds[1]


def test_some_candidates_are_for_few_samples_alone():
    for number in (200, 201, 501):
        rows = read_rows(*generated([1.0, 0.0, -1.0], number))
        choice = choose(rows, Options())
        assert ("bayesian_temperature" in choice.weights) == (number <= 200)
        assert bool(choice.expected) == (number <= 200)
        assert ("structured_matrix" in choice.weights) == (number <= 500)


def test_standard_errors_draw_groups_as_a_whole():
    logits, labels = generated(0.0, 40)
    d = np.random.default_rng(0).normal(size=10)
    alone = standard_error(d, read_rows(logits[:10], labels[:10]))
    assert alone == pytest.approx(d.std() / np.sqrt(10))
    groups = np.arange(40) // 4
    rows = read_rows(logits, labels, groups=groups)
    assert standard_error(np.repeat(d, 4), rows) == pytest.approx(alone)
    # As if there were more samples, where groups are not known.
    rows = read_rows(logits, labels)
    assert standard_error(np.repeat(d, 4), rows) == pytest.approx(alone / 2)


def test_no_candidate_but_the_first_begins_when_the_time_is_over():
    late = Options(deadline=-np.inf)
    choice = choose(read_rows(*generated([3.0, 0.0, -3.0], 100)), late)
    assert {*choice.weights} == {"temperature", "no_calibration"}
    for name in ("matrix", "spline"):
        assert choice.trials[name] == {"skipped": "max_seconds"}


@pytest.mark.parametrize(
    "layer, fit, skipped",
    [
        (kc.layers.MatrixScaling, "solve", ["matrix", "order_preserving"]),
        # Its own folds; the first fit is that of all samples.
        (kc.layers.SplineCalibration, "_solve_seen", ["spline", "matrix"]),
    ],
)
def test_a_candidate_ends_between_folds_when_the_time_is_over(
    monkeypatch, layer, fit, skipped
):
    original, fits = getattr(layer, fit), []

    def counted(self, *given):
        fits.append(1)
        return original(self, *given)

    monkeypatch.setattr(layer, fit, counted)
    monkeypatch.setattr(time, "perf_counter", lambda: float(len(fits)))
    rows = read_rows(*generated([3.0, 0.0, -3.0], 100))
    choice = choose(rows, Options(deadline=1.5))
    assert len(fits) == 2
    for name in skipped:
        assert choice.trials[name] == {"skipped": "max_seconds"}
        assert name not in choice.weights
    # Without a deadline it counts.
    choice = choose(rows, Options())
    assert skipped[0] in choice.weights


def test_a_map_that_cannot_be_fitted_is_left_out(monkeypatch):
    losses = _choose._losses

    def fails(name, *given):
        if name == failing:
            raise ArithmeticError("no such fit")
        return losses(name, *given)

    rows = read_rows(*generated([3.0, 0.0, -3.0], 100))
    options = Options(affine=True)
    monkeypatch.setattr(_choose, "_losses", fails)
    failing = "matrix"
    choice = choose(rows, options)
    assert choice.trials["matrix"] == {"skipped": "no such fit"}
    assert {*choice.weights} == {"temperature", "no_calibration"}
    # All others are compared with it.
    failing = "temperature"
    with pytest.raises(ArithmeticError, match="no such fit"):
        choose(rows, options)


def test_maps_that_fail_on_all_samples_or_come_too_late(monkeypatch):
    rows = read_rows(*generated([1.0, 0.0, -1.0], 60))
    weights = {"temperature": 0.5, "matrix": 0.3, "spline": 0.2, "beta": 0.001}
    quiet_fit, reached = _few_samples.quiet_fit, []

    def fails(layer, *given):
        reached.append(layer.name)
        if layer.name == "matrix":
            raise ValueError("no optimum")
        return quiet_fit(layer, *given)

    monkeypatch.setattr(_few_samples, "quiet_fit", fails)
    trials = {name: {} for name in weights}
    given = weights, rows, Options(), {}, trials
    q = _few_samples.probabilities_of_maps(*given)
    assert [*q] == ["temperature", "spline"]
    assert trials["matrix"] == {"not_compared": "ValueError: no optimum"}
    assert "beta" not in reached
    # The first one is fitted whatever the time.
    trials = {name: {} for name in weights}
    late = weights, rows, Options(deadline=-np.inf), {}, trials
    assert [*_few_samples.probabilities_of_maps(*late)] == ["temperature"]
    assert trials["spline"] == {"not_compared": "max_seconds"}


def ended(num_samples=150):
    """Logits of 20 classes, for which one temperature is all that is found."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(num_samples, 20)).astype("float32")
    labels = (logits / 1.5 + rng.gumbel(size=logits.shape)).argmax(1)
    return logits, labels


def test_a_map_that_ends_at_temperature_scaling_is_called_so():
    rows = read_rows(*ended())
    mixed, one = (choose(rows, Options(), mixture=m) for m in (True, False))
    for choice in (mixed, one):
        trial = choice.trials["parameterized_temperature"]
        assert trial["same_as"] == "temperature" and trial["weight"] == 0
        assert trial["nll"] == pytest.approx(
            choice.trials["temperature"]["nll"], abs=1e-5
        )
        assert choice.weights["temperature"] > 0.1
        assert sum(choice.weights.values()) == pytest.approx(1)
    assert "expected_nll" in one.trials["temperature"]
    # A map that moves keeps its name.
    layers = {name: layer for name, (layer, _) in one.fitted.items()}
    assert "same_as" not in one.trials["spline"] and "spline" in layers


def test_what_was_compared_needs_no_warning_of_few_samples():
    logits, labels = ended()
    inputs = keras.Input((20,))
    model = keras.Model(inputs, keras.layers.Softmax()(inputs))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = kc.calibrate(
            *(model, logits, labels),
            method="auto",
            mixture=True,
            preserve_accuracy=False,
            verbose=0,
        )
    weights = kc.calibration_record(found)["mixture_weights"]
    assert weights["structured_matrix"] > 0.01
    with pytest.warns(UserWarning, match="420 parameters"):
        kc.calibrate(
            *(model, logits, labels),
            method="structured_matrix",
            preserve_accuracy=False,
            verbose=0,
        )


def test_slow_maps_need_fewer_classes(monkeypatch):
    monkeypatch.setattr(_choose, "MAX_CLASSES", 2)
    rows = read_rows(*generated(0.0, 60))
    for name in _choose.SLOW:
        reason = _choose._reason_to_skip(name, rows, Options())
        assert reason == "more than 2 classes"
    assert _choose._reason_to_skip("matrix", rows, Options()) is None


def test_groups_are_judged_by_folds(monkeypatch):
    logits, labels = generated([3.0, 0.0, -3.0], 200)
    rows = read_rows(logits, labels, groups=np.arange(200) // 2)
    monkeypatch.setattr(
        _choose,
        "evidence_of_temperature",
        lambda _: pytest.fail("rows of a group are no samples"),
    )
    choice = choose(rows, Options(affine=True))
    losses = _choose.losses_of_model(rows)
    assert choice.trials["no_calibration"]["nll"] == pytest.approx(
        losses.mean()
    )
    assert choice.best == "matrix"


def test_soft_labels_have_no_choice():
    model = built(functional(dense("softmax")))
    soft = np.full((len(X), 3), 1 / 3)
    soft[:, 0] += np.linspace(0, 0.3, len(X))
    soft /= soft.sum(axis=1, keepdims=True)
    with pytest.raises(ValueError, match="compares layers on samples of one"):
        kc.calibrate(model, X, soft, method="auto", verbose=0)


def test_a_map_without_folds_of_its_own_is_fitted_to_those_of_others(
    monkeypatch,
):
    rows = read_rows(*generated(0.0, 60))
    fold = _choose.folds(rows, 5, 0)
    name = "order_preserving"
    own = _choose._losses(name, rows, fold, Options(), {})
    monkeypatch.setattr(_choose, "losses_of_folds", lambda *_: None)
    found = _choose._losses(name, rows, fold, Options(), {})
    expected = _choose.held_out_losses(as_map(name), rows, fold)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.abs(found - own).max() > 1e-6


def test_the_deadline_begins_with_the_fit():
    assert Options().started().seconds_left() == np.inf
    assert 99 < Options(max_seconds=100.0).started().seconds_left() <= 100


def test_candidates_that_preserve_predictions():
    options = Options(preserve_accuracy=True)
    choice = choose(read_rows(*generated([3.0, 0.0, -3.0], 100)), options)
    assert {*choice.weights} == {
        *("no_calibration", "temperature", "bayesian_temperature", "spline"),
        *("order_preserving", "parameterized_temperature"),
    }
    # The record names the others, too.
    for name in ("matrix", "structured_matrix"):
        assert choice.trials[name] == {"skipped": "may change predictions"}


@pytest.mark.parametrize("affine", [False, True])
def test_a_vector_stands_for_the_matrix_of_many_classes(monkeypatch, affine):
    rows = read_rows(*generated([3.0, 0.0, -3.0], 300))
    assert "matrix" in choose(rows, Options(affine=affine)).trials
    monkeypatch.setattr(_choose.matrix_evidence, "MAX_CLASSES", 2)
    trials = choose(rows, Options(affine=affine)).trials
    assert "vector" in trials and "matrix" not in trials
    assert trials["vector"]["weight"] > 0.5


def segmented(images=30):
    """A network of pixels whose classes need biases, and its data."""
    logits, labels = generated([3.0, 0.0, -3.0], images * 24)
    model = keras.Sequential([keras.Input((4, 6, 3)), keras.layers.Identity()])
    shape = images, 4, 6
    return model, logits.reshape(*shape, 3), labels.reshape(shape)


def trials_of_pixels(**options):
    model, x, y = segmented()
    calibrated = kc.calibrate(
        model, x, y, method="auto", from_logits=True, verbose=0, **options
    )
    return kc.calibration_record(calibrated)


@pytest.mark.filterwarnings("ignore:MatrixScaling changes")
def test_pixels_have_a_temperature_unless_images_are_grouped():
    with pytest.warns(UserWarning, match=r"`np.arange\(len\(x\)\)`"):
        found = trials_of_pixels()
    assert found["method"] == "temperature"
    skipped = {n for n, trial in found["trials"].items() if "skipped" in trial}
    assert {"matrix", "spline", "order_preserving"} <= skipped
    reason = found["trials"]["matrix"]["skipped"]
    assert reason == "pixels of images without `groups`"
    # Whoever says what belongs together, or what may change, has all of them.
    for options in (
        {"groups": np.arange(30)},
        {"groups": np.arange(30) // 3},
        {"preserve_accuracy": False},
    ):
        found = trials_of_pixels(**options)
        assert found["method"] == "matrix"
    found = trials_of_pixels(preserve_accuracy=True)
    assert "skipped" not in found["trials"]["spline"]
    assert found["trials"]["matrix"] == {"skipped": "may change predictions"}


def test_tokens_are_compared_by_all_maps():
    model = keras.Sequential([keras.Input((24, 3)), keras.layers.Identity()])
    _, x, y = segmented()
    calibrated = kc.calibrate(
        model,
        x.reshape(30, 24, 3),
        y.reshape(30, 24),
        method="auto",
        from_logits=True,
        verbose=0,
        preserve_accuracy=None,
    )
    assert kc.calibration_record(calibrated)["method"] == "matrix"


def test_too_few_groups_are_counted_as_groups():
    model, x, y = segmented()
    with pytest.raises(ValueError, match="Received: 3 groups"):
        kc.calibrate(
            *(model, x, y),
            method="auto",
            from_logits=True,
            groups=np.arange(30) // 10,
        )


@pytest.mark.filterwarnings("ignore")
def test_the_mixture_is_the_mean_of_its_maps():
    logits = X @ KERNEL
    rng = np.random.default_rng(0)
    labels = (logits / 3 + rng.gumbel(size=logits.shape)).argmax(-1)
    model = built(functional(dense("softmax")))
    calibrated = kc.calibrate(
        model, X, labels, method="auto", mixture=True, verbose=0
    )
    record = kc.calibration_record(calibrated)
    weights = record["mixture_weights"]
    assert record["method"] == "CalibrationMixture" and len(weights) > 1
    assert sum(weights.values()) == pytest.approx(1)
    parts = [
        kc.calibrate(
            model,
            X,
            labels,
            method=as_map(name),
            guard=False,
            verbose=0,
        ).predict(X, verbose=0)
        for name in weights
    ]
    np.testing.assert_allclose(
        calibrated.predict(X, verbose=0),
        sum(w * q for w, q in zip(weights.values(), parts, strict=True)),
        atol=1e-5,
    )
    assert record["nll_after"] < record["nll_before"]


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


def counted_fits(monkeypatch):
    """A list that gets the name and number of samples of each fit."""
    fits = []
    find = CalibrationLayer._found

    def counting(layer, rows, *options):
        fits.append((type(layer).__name__, len(rows.labels)))
        return find(layer, rows, *options)

    monkeypatch.setattr(CalibrationLayer, "_found", counting)
    return fits


def confident_labels():
    """Labels of the network's logits, for which a spline is best."""
    logits = X @ KERNEL
    confidence = softmax(logits).max(axis=1)
    rng = np.random.default_rng(0)
    right = rng.random(len(X)) < np.where(confidence < 0.9, 0.95, 0.5)
    predicted = logits.argmax(axis=1)
    return np.where(right, predicted, (predicted + 1) % 3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mixture", [False, True])
def test_no_map_is_fitted_twice(mixture, monkeypatch):
    labels = confident_labels()
    model = built(functional(dense("softmax")))
    fits = counted_fits(monkeypatch)
    calibrated = kc.calibrate(
        model, X, labels, method="auto", mixture=mixture, verbose=0
    )
    record = kc.calibration_record(calibrated)
    whole = [name for name, count in fits if count == len(X)]
    shrunk = {
        "SplineCalibration",
        "IntraOrderPreserving",
        "ParameterizedTemperatureScaling",
    }
    assert shrunk <= {*whole} and len(whole) == len({*whole})
    # Temperature and matrices have five folds; three maps have their own.
    parts = [name for name, count in fits if count < len(X)]
    assert sorted(parts) == 10 * ["MatrixScaling"] + 5 * ["TemperatureScaling"]
    if mixture:
        alone = kc.layers.CalibrationMixture(
            maps=[as_map(name) for name in record["mixture_weights"]],
            weights=[*record["mixture_weights"].values()],
        ).adapt(X @ KERNEL, labels)
        assert {*record["maps"]} == {*alone.record["maps"]}
        assert {*record["maps"]} & {"spline", "order_preserving"}
    else:
        assert record["method"] == "spline"
        alone = as_map("spline").adapt(X @ KERNEL, labels)
        for key in ("mixture_weight", "nll_after"):
            assert record[key] == pytest.approx(alone.record[key], rel=1e-5)
    np.testing.assert_allclose(
        calibrated.predict(X, verbose=0),
        softmax(to_numpy(alone(X @ KERNEL))),
        atol=1e-5,
    )


def test_warnings_of_the_fit_are_those_of_the_best():
    rows = read_rows(*generated(0.0, 100))
    labels = rows.logits.argmin(axis=1)  # no better than chance
    rows = dataclasses.replace(rows, labels=labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choice = choose(rows, Options(), mixture=True)
    for name in ("spline", "order_preserving"):
        best = dataclasses.replace(choice, weights={name: 1.0})
        with pytest.warns(UserWarning) as caught:
            best.adapt(as_map(name), rows)
        with pytest.warns(UserWarning) as expected:
            as_map(name).adapt(rows.logits, labels)
        texts = [
            [str(each.message) for each in found if "set to" in str(each)]
            for found in (caught, expected)
        ]
        assert texts[0] == texts[1] != [], name


def test_what_was_fitted_to_a_part_of_the_samples_is_fitted_again(monkeypatch):
    monkeypatch.setattr(_choose, "MAX_SAMPLES", 50)
    rows = read_rows(*generated(0.0, 100))
    choice = choose(rows, Options())
    assert not choice.fitted
    layer = as_map("spline")
    dataclasses.replace(choice, weights={"spline": 1.0}).adapt(layer, rows)
    assert layer.record["num_samples"] == 100


def test_rich_maps_are_tried_with_few_samples():
    # Few samples leave their defaults near temperature scaling.
    trials = choose(read_rows(*generated(0.0, 60)), Options()).trials
    assert not any("skipped" in trial for trial in trials.values())
    for name in ("matrix", "order_preserving", "spline"):
        harm = trials[name]["nll"] - trials["temperature"]["nll"]
        assert harm < 0.02, name


@pytest.mark.filterwarnings("ignore")
def test_one_map_of_few_samples_is_nearest_to_the_mixture():
    logits, labels = generated([1.0, 0.0, -1.0], 60)
    rows = read_rows(logits, labels)
    choice = choose(rows, Options())
    # Temperature scaling has the weight of what ended there, and no other.
    ended = [n for n, t in choice.trials.items() if "same_as" in t]
    assert ended == ["parameterized_temperature"]
    assert choice.weights["temperature"] > choice.weights[ended[0]] == 0
    q, total = {}, 0
    for name, weight in choice.weights.items():
        if weight >= 0.01:
            layer = as_map(name)
            if name != "no_calibration":
                layer.adapt(logits, labels)
            q[name] = softmax(to_numpy(layer(logits)))
            total = total + weight * q[name]
    mean = total / total.sum(axis=1, keepdims=True)
    expected = {
        name: -(mean * np.log(each)).sum(axis=1).mean()
        for name, each in q.items()
    }
    assert len(expected) > 2
    for name, loss in expected.items():
        found = choice.trials[name]["expected_nll"]
        assert found == pytest.approx(loss, abs=1e-5)
    assert choice.best == min(expected, key=expected.get)
    assert not choose(rows, Options(), mixture=True).expected


def test_only_affine_maps_fuse():
    rows = read_rows(*generated([3.0, 0.0, -3.0]))
    choice = choose(rows, Options(affine=True))
    assert choice.best == "matrix"
    assert {*choice.trials} == {*("no_calibration", "temperature", "matrix")}


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
        trials = record["trials"]
        trial = trials[record["method"]]
        # On the samples of the fit the map looks better than it is.
        assert record["nll_after"] < trial["nll"] < record["nll_before"]
        weights = [t.get("weight", 0) for t in trials.values()]
        assert trial["weight"] == max(weights)


def test_two_classes_from_one_unit():
    rng = np.random.default_rng(0)
    logit = rng.normal(size=(1000, 1)).astype("float32") * 4 + 2
    labels = (logit[:, 0] / 4 - 0.5 + rng.logistic(size=1000) > 0).astype(int)
    for rows in (logit, np.concatenate([0 * logit, logit], axis=1)):
        choice = choose(read_rows(rows, labels), Options())
        assert choice.best in ("platt", "beta", "quadratic")
        assert {*choice.trials} == {
            *("no_calibration", "temperature", "bayesian_temperature"),
            *("platt", "beta", "quadratic", "spline"),
        }


FILES = (
    "lenet-5-cifar-100",
    "wideresnet-16-4-cifar-10",
    "wideresnet-16-4-cifar-100",
)


@pytest.mark.slow
@pytest.mark.backends("torch", reason="minutes of NumPy")
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

    chosen = choose(read_rows(logits[fit], labels[fit]), Options()).best
    plain = losses("temperature")
    error = plain.std() / np.sqrt(len(plain))
    assert losses(chosen).mean() <= plain.mean() + error


def test_a_mixture_says_once_what_its_maps_all_say():
    logits, _ = sampled(60, scale=1.0, num_classes=3, seed=0)
    labels = logits.argmax(axis=1)
    rows = read_rows(logits, labels)
    network = built(functional(dense()))
    choice = choose(rows, Options(), mixture=True)
    layer = _choose.mixture_of(choice, network, Options())
    assert len(layer.maps) > 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        choice.adapt(layer, rows)
    caught = [each for each in caught if each.category is UserWarning]
    texts = [str(each.message) for each in caught]
    assert texts and len(texts) == len(set(texts))


def test_classes_that_are_ruled_out_have_a_map_with_biases():
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(600, 4)).astype("float32")
    logits[:, 3] = -np.inf
    biased = logits / 2 + np.array([1.5, 0.0, -1.0, 0.0])
    labels = (biased + rng.gumbel(size=biased.shape)).argmax(-1)
    rows = read_rows(logits, labels)
    found = choose(rows, Options())
    assert "matrix" not in found.trials
    assert found.best == "dirichlet"
    assert found.trials["dirichlet"]["nll"] < found.trials["temperature"]["nll"]
