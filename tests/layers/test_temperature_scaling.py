import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.solvers.temperature import fit_temperature
from tests.helpers import read_predictions
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import nll

# Temperature fitted to rows 0 to 4999, and NLL there at 1 and at T.
REAL = {
    "wideresnet-16-4-cifar-10": (
        2.05922421605,
        0.382630446296,
        0.278556716713,
        2.052548801,
    ),
    "lenet-5-cifar-100": (
        1.10706900407,
        3.80106562436,
        3.79351941104,
        1.118156903,
    ),
    "wideresnet-16-4-cifar-100": (
        1.10990269122,
        0.969038257652,
        0.96017530673,
        1.111145769,
    ),
}
# Three of four right, margin 2: the best confidence is 3/4.
LOGITS = np.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])


def test_generated_set():
    logits, labels = generated()
    assert labels[:10].tolist() == [0, 3, 2, 4, 4, 4, 3, 0, 3, 4]
    found = fit_temperature(logits, labels)
    assert found.temperature == pytest.approx(1.97593901124, abs=1e-10)
    assert found.nll_before == pytest.approx(0.845336749895, abs=1e-12)
    assert found.nll_after == pytest.approx(0.692067035915, abs=1e-11)
    layer = kc.layers.TemperatureScaling().adapt(logits, labels)
    assert layer.temperature == pytest.approx(1.97593901124, rel=1e-6)
    assert layer.record["temperature"] == pytest.approx(
        1.97593901124, abs=1e-10
    )


@pytest.mark.parametrize("name", REAL)
def test_real_predictions(name, data_folder):
    probabilities, labels = read_predictions(data_folder, name)
    logits = np.log(np.maximum(probabilities.astype("float64"), 1.18e-38))
    temperature, before, after, on_all = REAL[name]
    found = fit_temperature(logits[:5000], labels[:5000])
    assert found.temperature == pytest.approx(temperature, abs=5e-11)
    assert found.nll_before == pytest.approx(before, abs=5e-11)
    assert found.nll_after == pytest.approx(after, abs=5e-11)
    found = fit_temperature(logits, labels)
    assert found.temperature == pytest.approx(on_all, abs=1e-9)
    # float32 is what networks give; netcal 1.4.0 leaves T = 1 on it.
    single = fit_temperature(logits[:5000].astype("float32"), labels[:5000])
    assert single.temperature == pytest.approx(temperature, rel=1e-6)


def test_by_hand():
    layer = kc.layers.TemperatureScaling().adapt(LOGITS, [0, 0, 1, 1])
    assert layer.temperature == pytest.approx(2 / np.log(3), rel=1e-6)
    confidence = to_numpy(ops.softmax(layer(LOGITS)))[0, 0]
    assert confidence == pytest.approx(0.75, rel=1e-6)


def test_starts_as_the_identity():
    layer = kc.layers.TemperatureScaling()
    np.testing.assert_array_equal(
        to_numpy(layer(LOGITS.astype("float32"))), LOGITS
    )
    assert layer.temperature == 1.0
    assert layer.record is None


@pytest.mark.parametrize(
    ("labels", "temperature", "stop_reason", "message"),
    [
        # The probability 1 / (1 + exp(-2 / T)) is that of the label, 0.95.
        ([0, 0, 0, 1], 2 / np.log(19), "all correct", "predicted correctly"),
        ([1, 1, 1, 0], 100.0, "chance", "no better than chance"),
        ([0, 1, 1, 1], None, None, None),
    ],
)
def test_bounds(labels, temperature, stop_reason, message):
    layer = kc.layers.TemperatureScaling()
    if stop_reason is None:
        # Two of four right at equal margins: chance as well.
        with pytest.warns(UserWarning, match="chance"):
            layer.adapt(LOGITS, labels)
        return
    with pytest.warns(UserWarning, match=message):
        layer.adapt(LOGITS, labels)
    assert layer.temperature == pytest.approx(temperature, rel=1e-6)
    assert layer.record["stop_reason"] == stop_reason


@pytest.mark.parametrize("scale", [0.3, 3.0])
@pytest.mark.parametrize("count", [1, 10, 1000])
def test_samples_that_are_all_right(count, scale):
    logits = scale * generated(count)[0]
    labels = logits.argmax(axis=1)
    share = 1 / (2 * (count + 1))
    z = logits - logits.max(axis=1, keepdims=True)
    u = np.linspace(np.log(0.01), 0, 5_001)
    smoothed = [
        np.mean(np.log(np.exp(z * b).sum(axis=1)) - share * b * z.mean(axis=1))
        for b in np.exp(-u)
    ]
    found = fit_temperature(logits, labels)
    best = np.exp(u[np.argmin(smoothed)])
    assert found.temperature == pytest.approx(best, rel=1e-3)
    assert (found.temperature == 1) == (scale == 3 and count < 1000)
    # Copies of a sample tell more than a weight, which is relative.
    twice = fit_temperature(logits, labels, np.full(count, 2.0))
    assert twice.temperature <= found.temperature
    layer = kc.layers.TemperatureScaling()
    with pytest.warns(UserWarning, match="at most 1"):
        layer.adapt(logits, labels, np.full(count, 2.0))
    assert layer.temperature == pytest.approx(found.temperature, rel=1e-6)


@pytest.mark.one_backend
@pytest.mark.parametrize("confidence", ["over", "right"])
def test_few_samples_that_are_all_right_do_no_harm(confidence):
    rng = np.random.default_rng(0)
    logits = 8 * rng.normal(size=(20_000, 10))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    logits = logits * (2 if confidence == "over" else 1)
    right = logits.argmax(axis=1) == labels
    rest = slice(10_000, None)
    untouched = nll(logits[rest], labels[rest])
    seen = 0
    for draw in range(200):
        rows = np.random.default_rng(draw).permutation(10_000)[:20]
        if right[rows].all():
            t = fit_temperature(logits[rows], labels[rows]).temperature
            assert nll(logits[rest] / t, labels[rest]) < untouched + 0.004
            seen += 1
    assert seen > 5


def test_constant_logits_leave_temperature_one():
    with pytest.warns(UserWarning, match="do not differ"):
        layer = kc.layers.TemperatureScaling().adapt(
            np.ones((4, 3)), [0, 1, 2, 0]
        )
    assert layer.temperature == 1.0


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_optimum_scales_with_the_logits(scale, dtype):
    logits, labels = generated(200)
    labels[:20] = 0
    found = fit_temperature(logits.astype(dtype), labels)
    scaled = fit_temperature((logits * scale).astype(dtype), labels)
    expected = np.clip(found.temperature * scale, 0.01, 100)
    assert scaled.temperature == pytest.approx(expected, rel=1e-6)


def test_slope_is_zero_at_the_optimum():
    logits, labels = generated()
    temperature = fit_temperature(logits, labels).temperature
    z = logits / temperature
    q = np.exp(z - z.max(1, keepdims=True))
    q /= q.sum(1, keepdims=True)
    slope = np.mean((q * logits).sum(1) - logits[np.arange(500), labels])
    assert abs(slope) < 1e-9


def test_many_logits_go_through_a_subsample_first():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(40_000, 100)).astype("float32") * 3
    noise = rng.gumbel(size=logits.shape)
    labels = (logits / 1.7 + noise).argmax(-1)
    found = fit_temperature(logits, labels)
    assert found.temperature == pytest.approx(1.7, abs=0.02)
    exact = fit_temperature(logits.astype("float64"), labels)
    assert found.temperature == pytest.approx(exact.temperature, rel=1e-6)


def test_a_weight_of_two_is_a_repeated_sample():
    logits, labels = generated(100)
    weights = np.random.default_rng(0).integers(0, 3, 100)
    repeated = np.repeat(np.arange(100), weights)
    weighted = kc.layers.TemperatureScaling().adapt(
        logits, labels, sample_weight=weights
    )
    expected = fit_temperature(logits[repeated], labels[repeated])
    assert weighted.record["temperature"] == pytest.approx(
        expected.temperature, rel=1e-9
    )
    # Rows without weight are not counted as samples.
    assert weighted.record["num_samples"] == (weights > 0).sum()


def test_label_forms_and_pixels_agree():
    logits, labels = generated(24)
    labels[0] = (logits[0].argmax() + 1) % 5
    expected = fit_temperature(logits, labels).temperature
    void = np.append(labels, [255] * 6).reshape(2, 15)
    pixels = np.concatenate([logits, logits[:6]]).reshape(2, 15, 5)
    for arguments in (
        {"logits": logits, "labels": labels[:, None]},
        {"logits": logits, "labels": np.eye(5)[labels]},
        {"logits": ops.convert_to_tensor(logits), "labels": labels},
        {"logits": pixels, "labels": void, "ignore_class": 255},
    ):
        layer = kc.layers.TemperatureScaling().adapt(**arguments)
        assert layer.temperature == pytest.approx(expected, rel=1e-5)


def test_a_class_without_calibration_samples_changes_nothing_else():
    logits, labels = generated()
    keep = labels != 3
    layer = kc.layers.TemperatureScaling().adapt(logits[keep], labels[keep])
    assert 1.0 < layer.temperature < 3.0


def test_a_class_that_is_ruled_out():
    logits, labels = generated()
    logits = np.concatenate([logits, np.full((500, 1), -np.inf)], axis=1)
    layer = kc.layers.TemperatureScaling().adapt(logits, labels)
    assert layer.temperature == pytest.approx(1.97593901124, rel=1e-6)


def test_one_sigmoid_unit():
    logit = np.array([[2.0], [2.0], [2.0], [-2.0]])
    layer = kc.layers.TemperatureScaling().adapt(logit, [1, 1, 0, 0])
    # The log-odds divided by T: three of four right.
    assert layer.temperature == pytest.approx(2 / np.log(3), rel=1e-6)
    assert layer(logit).shape == (4, 1)


BAD_INPUT = {
    "NaN": (np.array([[np.nan, 1.0], [0.0, 1.0]]), [0, 1], "finite"),
    "infinity": (np.array([[np.inf, 1.0], [0.0, 1.0]]), [0, 1], "finite"),
    "label out of range": (LOGITS, [0, 1, 2, 0], "from 0 to 2"),
    "negative label": (LOGITS, [0, 1, -1, 0], "from -1 to 1"),
    "no sample": (np.zeros((0, 3)), np.zeros(0), "no calibration sample"),
    "shapes": (LOGITS, [0, 1], "Received: labels of shape"),
    "no class axis": (np.float32(1.0), 0, "class axis"),
    "rows that sum to two": (LOGITS, np.ones((4, 2)), "sum to one"),
    "probabilities": (np.full((4, 2), 0.5), [0, 0, 1, 1], "sum to one"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_leaves_the_layer_as_it_was(case):
    logits, labels, message = BAD_INPUT[case]
    layer = kc.layers.TemperatureScaling().adapt(LOGITS, [0, 0, 1, 1])
    before = layer.temperature, layer.record
    with pytest.raises(ValueError, match=message):
        layer.adapt(logits, labels)
    assert (layer.temperature, layer.record) == before


def test_negative_weights():
    with pytest.raises(ValueError, match="cannot be negative"):
        kc.layers.TemperatureScaling().adapt(
            LOGITS, [0, 0, 1, 1], sample_weight=[1, 1, 1, -1]
        )


def test_bad_temperature():
    with pytest.raises(ValueError, match="must be positive"):
        kc.layers.TemperatureScaling(temperature=0.0)


def test_saving(tmp_path):
    inputs = keras.Input((2,))
    layer = kc.layers.TemperatureScaling()
    model = keras.Model(inputs, layer(inputs))
    layer.adapt(LOGITS, [0, 0, 1, 1])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(
        to_numpy(again(LOGITS)), to_numpy(model(LOGITS))
    )
    assert again.layers[-1].record == layer.record


def test_half_precision_input():
    layer = kc.layers.TemperatureScaling().adapt(LOGITS, [0, 0, 1, 1])
    half = ops.cast(ops.convert_to_tensor(LOGITS), "float16")
    assert keras.backend.standardize_dtype(layer(half).dtype) == "float32"


@pytest.mark.parametrize("pick", ["argmax", "argmin"])
@pytest.mark.parametrize("objective", ["focal", "soft_binned_ece", "ece"])
def test_a_search_that_stops_at_the_end_of_its_range_warns(objective, pick):
    logits = 2 * np.random.default_rng(0).normal(size=(200, 3))
    labels = getattr(logits, pick)(axis=1)
    layer = kc.layers.TemperatureScaling()
    with pytest.warns(UserWarning, match="nothing was tried"):
        layer.adapt(logits, labels, objective=objective)
    assert layer.record["stop_reason"] == "limit"


def test_blocks_may_be_empty_and_have_weights():
    logits, labels = generated()
    weights = np.linspace(0.5, 2.0, 500)
    void = np.where(np.arange(500) < 200, 255, labels)

    def read():
        for part in np.split(np.arange(500), [100, 200, 450]):
            yield logits[part], void[part], weights[part]

    layer = kc.layers.TemperatureScaling()
    layer.adapt_to_blocks(read, ignore_class=255)
    expected = kc.layers.TemperatureScaling()
    expected.adapt(logits[200:], labels[200:], weights[200:])
    assert layer.temperature == pytest.approx(expected.temperature, rel=1e-5)
    before = layer.record

    def soft():
        yield logits, np.full((500, 5), 0.2)

    with pytest.raises(ValueError, match="one class per sample"):
        layer.adapt_to_blocks(soft)
    assert layer.record == before


def test_a_layer_that_is_not_built_has_its_first_temperature():
    layer = kc.layers.TemperatureScaling(temperature=2.5)
    assert not layer.built and layer.temperature == 2.5
    layer.build((None, 3))
    assert layer.temperature == pytest.approx(2.5)


def test_a_fit_without_the_nll_before_ends_at_the_same_temperature():
    logits, labels = generated()
    whole = fit_temperature(logits, labels)
    found = fit_temperature(logits, labels, start=1.5, before=False)
    assert found.temperature == pytest.approx(whole.temperature, rel=1e-9)
    assert found.nll_after == pytest.approx(whole.nll_after, rel=1e-9)
    assert np.isnan(found.nll_before)


def test_whole_numbers_are_logits():
    layer = kc.layers.TemperatureScaling(temperature=2.0)
    found = keras.ops.convert_to_numpy(layer(np.array([[1, 2], [3, 4]])))
    np.testing.assert_allclose(found, [[0.5, 1.0], [1.5, 2.0]])
