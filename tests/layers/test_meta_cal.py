"""Meta-Cal: the rank of the threshold, its guarantees, what comes out."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.solvers.temperature import fit_temperature
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import softmax


def entropy(logits):
    p = softmax(logits)
    return -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)


def data():
    logits, labels = generated(2500)
    return logits[:500], labels[:500], logits[500:], labels[500:]


@pytest.mark.parametrize(
    ("step", "count", "rank", "expected"),
    [(1, 36, 36, 0.756728474652), (2, 183, 175, 0.795268753845)],
)
def test_the_threshold_is_the_conformal_quantile(step, count, rank, expected):
    # The first 36, or every second, of the 365 correct rows.
    z, y, _, _ = data()
    good = np.flatnonzero(z.argmax(1) == y)
    h = entropy(z[good[::step][:count]])
    assert len(h) == count
    assert np.sort(h)[rank - 1] == pytest.approx(expected, abs=1e-11)
    found = kc.layers.MetaCal(max_miscoverage=0.05)._of_miscoverage(h)
    assert found == pytest.approx(expected, abs=2e-6)
    assert found > expected


def test_accepted_rows_are_tempered_and_the_rest_is_uniform():
    z, y, rest, _ = data()
    layer = kc.layers.MetaCal(max_miscoverage=0.05).adapt(z, y)
    correct = z.argmax(1) == y
    threshold = np.sort(entropy(z[correct]))[348 - 1]  # ceil(366 * 0.95)
    accepted = entropy(z) <= threshold
    temperature = fit_temperature(z[accepted], y[accepted]).temperature
    record = layer.record
    assert record["temperature"] == pytest.approx(temperature, rel=1e-9)
    assert record["accepted"] == accepted.sum()
    assert record["accepted_correct"] == 348
    assert record["rejected_correct"] == correct.sum() - 348

    scores, found = map(to_numpy, layer(rest))
    expected = entropy(rest) <= threshold
    np.testing.assert_array_equal(found, expected)
    assert 0.05 < 1 - found.mean() < 0.4
    np.testing.assert_allclose(
        scores[expected], rest[expected] / temperature, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(softmax(scores[~expected]), 0.2, atol=2e-5)
    # Every sample keeps its class, also after a softmax in float32.
    np.testing.assert_array_equal(scores.argmax(1), rest.argmax(1))
    p = to_numpy(keras.ops.softmax(scores.astype("float32")))
    np.testing.assert_array_equal(p.argmax(1), rest.argmax(1))
    # The record has the price.
    scores = to_numpy(layer(z)[0]).astype("float64")
    nll = -np.log(softmax(scores)[np.arange(500), y]).mean()
    assert record["nll_after"] == pytest.approx(nll, abs=1e-4)
    plain = fit_temperature(z, y)
    assert record["nll_temperature_scaling"] == pytest.approx(plain.nll_after)
    assert record["nll_after"] > record["nll_temperature_scaling"]


def test_correct_samples_are_rejected_at_the_rate_that_was_asked_for():
    """80 calibrations of 500 rows against all 40,000: Beta(n + 1 - k, k)."""
    z, y = generated(40_000)
    h = entropy(z)
    population = np.sort(h[z.argmax(1) == y])
    rates, means, variances = [], [], []
    for start in range(0, 40_000, 500):
        rows = slice(start, start + 500)
        layer = kc.layers.MetaCal(max_miscoverage=0.1)
        layer.adapt(z[rows], y[rows])
        t = float(to_numpy(layer.threshold))
        above = len(population) - np.searchsorted(population, t, "right")
        rates.append(above / len(population))
        n = (z[rows].argmax(1) == y[rows]).sum()
        k = -(-9 * (n + 1) // 10)
        means.append(1 - k / (n + 1))
        variances.append(k * (n + 1 - k) / ((n + 1) ** 2 * (n + 2)))
    assert max(means) <= 0.1
    error = np.sqrt(np.mean(variances) / 80)
    assert abs(np.mean(rates) - np.mean(means)) < 4 * error
    assert np.std(rates) == pytest.approx(np.sqrt(np.mean(variances)), rel=0.35)


@pytest.mark.filterwarnings("ignore:No threshold keeps the accuracy")
@pytest.mark.one_backend
def test_the_accuracy_is_reached_in_nine_of_ten_calibrations():
    """150 sets of 400: failures at most 0.1 and three standard errors."""
    z, y = generated(40_000)
    h, correct = entropy(z), z.argmax(1) == y
    rng = np.random.default_rng(0)
    failures, accepted = 0, 0
    for _ in range(150):
        rows = rng.choice(40_000, 400, replace=False)
        layer = kc.layers.MetaCal(min_accuracy=0.85, confidence=0.9)
        t = layer._of_accuracy(h[rows], correct[rows])
        passed = h < t
        accepted += passed.mean() / 150
        failures += correct[passed].mean() < 0.85 if passed.any() else 0
    assert failures / 150 <= 0.1 + 3 * np.sqrt(0.09 / 150)
    assert accepted > 0.4  # not by rejecting everything


def test_the_accuracy_constraint_is_that_of_the_risk_threshold():
    z, y, rest, truth = data()
    layer = kc.layers.MetaCal(min_accuracy=0.8).adapt(z, y)
    found = to_numpy(layer(rest)[1])
    correct = rest.argmax(1) == truth
    assert correct[found].mean() > 0.8 > correct.mean()
    record = layer.record
    share = record["accepted_correct"] / record["accepted"]
    assert share > 0.8
    with pytest.warns(UserWarning, match="every sample is rejected"):
        layer = kc.layers.MetaCal(min_accuracy=0.999).adapt(z, y)
    scores, found = map(to_numpy, layer(rest))
    assert not found.any()
    np.testing.assert_array_equal(scores.argmax(1), rest.argmax(1))
    assert layer.record["temperature"] == 1.0


def test_too_few_correct_samples_accept_all():
    # 18 correct ones have no rank for 5 %; 19 have.
    z, y, rest, _ = data()
    good = np.flatnonzero(z.argmax(1) == y)
    with pytest.warns(UserWarning, match="too few"):
        layer = kc.layers.MetaCal().adapt(z[good[:18]], y[good[:18]])
    assert to_numpy(layer(rest)[1]).all()
    layer = kc.layers.MetaCal().adapt(z[good[:19]], y[good[:19]])
    assert not to_numpy(layer(rest)[1]).all()


def test_in_a_model_and_its_file(tmp_path):
    z, y, rest, _ = data()
    layer = kc.layers.MetaCal(max_miscoverage=0.1).adapt(z, y)
    inputs = keras.Input((5,))
    model = keras.Model(inputs, layer(inputs))
    expected = model.predict(rest, verbose=0)
    assert [tuple(t.shape) for t in model.outputs] == [(None, 5), (None,)]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    for a, b in zip(again.predict(rest, verbose=0), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert again.layers[-1].record == layer.record
    assert again.layers[-1].get_config() == layer.get_config()


def test_it_starts_as_the_identity_and_one_sigmoid_is_two_classes():
    z, y, _, _ = data()
    scores, accepted = map(to_numpy, kc.layers.MetaCal()(z))
    np.testing.assert_allclose(scores, z, rtol=1e-6)
    assert accepted.all()
    keep = y < 2
    margin = (z[keep, 1] - z[keep, 0])[:, None]
    two = np.concatenate([np.zeros_like(margin), margin], axis=1)
    single = kc.layers.MetaCal().adapt(margin, y[keep])
    double = kc.layers.MetaCal().adapt(two, y[keep])
    for a, b in zip(single(margin), double(two), strict=True):
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=1e-6)


def test_bad_input_changes_nothing():
    z, y, _, _ = data()
    for kwargs, message in (
        ({"max_miscoverage": 0.1, "min_accuracy": 0.9}, "one constraint"),
        ({"max_miscoverage": 0}, "`max_miscoverage` must be in"),
        ({"min_accuracy": 1}, "`min_accuracy` must be in"),
        ({"confidence": 2}, "`confidence` must be in"),
    ):
        with pytest.raises(ValueError, match=message):
            kc.layers.MetaCal(**kwargs)
    layer = kc.layers.MetaCal()
    for arguments, message in (
        ((z, y, np.linspace(1, 2, 500)), "equal weight"),
        ((z.reshape(50, 10, 5), y.reshape(50, 10)), "independent rows"),
        ((z, np.full((500, 5), 0.2)), "soft labels"),
    ):
        with pytest.raises(ValueError, match=message):
            layer.adapt(*arguments)
        assert not layer.built
        assert layer.record is None


def test_sure_rows_have_an_order_of_their_own():
    rng = np.random.default_rng(0)
    labels, margin = rng.integers(0, 4, 4000), rng.uniform(0, 45, 4000)
    right = rng.random(4000) < np.where(margin > 22, 0.999, 0.6)
    predicted = np.where(right, labels, (labels + 1) % 4)
    logits = margin[:, None] * np.eye(4)[predicted]
    layer = kc.layers.MetaCal(min_accuracy=0.95).adapt(logits, labels)
    # The same samples in the same order, by another number.
    search = kc.layers.RiskThreshold(target_risk=0.05).adapt(logits, labels)
    accepted = to_numpy(layer(logits)[1])
    assert accepted.sum() == layer.record["accepted"]
    assert layer.record["accepted"] == search.record["accepted"] > 2000
    assert right[accepted].mean() >= 0.95


def test_a_share_of_sure_rows_is_rejected():
    # Of 99 correct ones 5 may be rejected, those of the smallest margins.
    logits = np.linspace(20, 60, 99)[:, None] * np.eye(3)[np.zeros(99, int)]
    layer = kc.layers.MetaCal(max_miscoverage=0.05)
    layer.adapt(logits, np.zeros(99, int))
    accepted = to_numpy(layer(logits)[1])
    assert accepted.sum() == layer.record["accepted"] == 95
    assert not accepted[:4].any()


def test_symbolic_inputs_of_any_rank():
    scores, accepted = kc.layers.MetaCal()(keras.Input((10, 4)))
    assert scores.shape == (None, 10, 4)
    assert accepted.shape == (None, 10)
