"""What every map must do, whatever its formula."""

import functools
import inspect
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from tests.helpers import compiled
from tests.helpers import read_predictions
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import nll
from tests.layers.generated import softmax

layers = kc.layers

MAPS = {
    "ensemble": layers.EnsembleTemperatureScaling,
    "bayesian": layers.BayesianTemperatureScaling,
    "parameterized": lambda: layers.ParameterizedTemperatureScaling(
        iterations=20
    ),
    "parameterized raw": lambda: layers.ParameterizedTemperatureScaling(
        normalize_logits=None, penalty=0.1, iterations=20
    ),
    "parameterized plain": lambda: layers.ParameterizedTemperatureScaling(
        iterations=20, shrinkage=None
    ),
    "diagonal": layers.IntraOrderPreserving,
    "diagonal plain": lambda: layers.IntraOrderPreserving(shrinkage=None),
    "order invariant": lambda: layers.IntraOrderPreserving(
        family="order_invariant", hidden=(4,), iterations=20
    ),
    "order invariant plain": lambda: layers.IntraOrderPreserving(
        family="order_invariant", hidden=(4,), iterations=20, shrinkage=None
    ),
    "spline": layers.SplineCalibration,
    "spline plain": lambda: layers.SplineCalibration(shrinkage=None),
    "spline monotone": lambda: layers.SplineCalibration(monotone=True),
    "isotonic": layers.IsotonicCalibration,
    "isotonic plain": lambda: layers.IsotonicCalibration(shrinkage=None),
    "isotonic per class plain": lambda: layers.IsotonicCalibration(
        per_class=True, shrinkage=None
    ),
    "isotonic per class": lambda: layers.IsotonicCalibration(per_class=True),
    "histogram": layers.HistogramBinning,
    "histogram plain": lambda: layers.HistogramBinning(shrinkage=None),
    "histogram equal mass": lambda: layers.HistogramBinning(
        equal_mass=True, shrinkage=None
    ),
    "mixture": lambda: layers.CalibrationMixture(
        maps=[layers.TemperatureScaling(), layers.EnsembleTemperatureScaling()],
        weights=[0.4, 0.6],
    ),
}
BINARY = {
    "beta": layers.BetaCalibration,
    "beta plain": lambda: layers.BetaCalibration(shrinkage=None),
    "platt": layers.PlattScaling,
    "platt plain": lambda: layers.PlattScaling(shrinkage=None),
    "quadratic": layers.QuadraticScaling,
    "quadratic plain": lambda: layers.QuadraticScaling(shrinkage=None),
}
# `call` of the plain ones is a part of that of the others.
CALLED = [name for name in MAPS if not name.endswith("plain")]
# Maps whose fit minimises the negative log-likelihood.
LIKELIHOOD = (
    "ensemble",
    "parameterized",
    "parameterized raw",
    "parameterized plain",
    "diagonal",
    "diagonal plain",
    "order invariant",
    "order invariant plain",
)
EXTREME = np.array(
    [
        [1e4, -1e4, 0, 0, 0],
        [1e4, 1e4, -1e4, -1e4, 5],
        [0, 0, 0, 0, 0],
        [-1e4, -1e4, -1e4, -1e4, 1e4],
        [88, 0, -88, 100, -100],
    ],
    "float32",
)


@functools.cache
def adapted(name):
    """A fitted map, shared by the tests that only look at it."""
    return fit(name)


def fit(name):
    if name in BINARY:
        return BINARY[name]().adapt(*binary())
    return MAPS[name]().adapt(*generated())


def binary():
    """Two classes of the generated set."""
    logits, labels = generated()
    keep = labels < 2
    return logits[keep, :2], labels[keep]


@pytest.mark.parametrize("name", [*MAPS, *BINARY])
def test_starts_as_the_identity(name):
    logits = (generated()[0] if name in MAPS else binary()[0]).astype("float32")
    layer = {**MAPS, **BINARY}[name]()
    np.testing.assert_allclose(
        softmax(to_numpy(layer(logits))), softmax(logits), atol=1e-6
    )
    assert layer.record is None


@pytest.mark.parametrize("name", [*MAPS, *BINARY])
def test_no_samples_give_no_scores(name):
    layer = adapted(name)
    num_classes = 5 if name in MAPS else 2
    for shape in ((0, num_classes), (0, 4, num_classes), (4, 0, num_classes)):
        assert tuple(layer(np.zeros(shape, "float32")).shape) == shape
    if name in BINARY:
        assert tuple(layer(np.zeros((0, 1), "float32")).shape) == (0, 1)


@pytest.mark.parametrize("name", [*MAPS, *BINARY])
def test_extreme_logits_stay_finite(name):
    layer = adapted(name)
    logits = EXTREME if name in MAPS else EXTREME[:, :2]
    out = to_numpy(layer(logits))
    assert np.isfinite(out).all()
    assert np.isfinite(softmax(out)).all()
    if layer.preserves_accuracy:
        np.testing.assert_array_equal(out.argmax(-1), logits.argmax(-1))


@pytest.mark.parametrize("name", [*MAPS, *BINARY])
def test_a_sample_of_nan_harms_no_other(name):
    layer = adapted(name)
    logits = (generated()[0] if name in MAPS else binary()[0])[:8]
    logits = logits.astype("float32")
    expected = to_numpy(layer(logits))
    logits[3, 1] = np.nan
    out = to_numpy(layer(logits))
    assert np.isnan(out[3]).any()
    others = np.arange(8) != 3
    np.testing.assert_array_equal(out[others], expected[others])


@pytest.mark.parametrize("name", [*MAPS, *BINARY])
def test_one_sigmoid_unit_is_two_classes(name):
    logits, labels = binary()
    make = {**MAPS, **BINARY}[name]
    single = (logits[:, 1:] - logits[:, :1]).astype("float32")
    layer = make().adapt(single, labels)
    out = to_numpy(layer(single))
    assert out.shape == single.shape
    pair = np.concatenate([0 * single, single], axis=1)
    expected = to_numpy(make().adapt(pair, labels)(pair))
    np.testing.assert_allclose(
        out[:, 0], expected[:, 1] - expected[:, 0], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", [*MAPS, *BINARY])
def test_pixels_void_labels_and_one_hot_rows(name):
    logits, labels = generated(40) if name in MAPS else binary()
    logits, labels = logits[:40].astype("float32"), labels[:40]
    make = {**MAPS, **BINARY}[name]
    # The pixels of an image are a group.
    groups = np.arange(40) // 12
    flat = make().adapt(logits, labels, groups=groups)
    expected = to_numpy(flat(logits))
    void = np.append(labels, [255] * 8).reshape(4, 12)
    pixels = np.concatenate([logits, logits[:8]]).reshape(4, 12, -1)
    num_classes = logits.shape[-1]
    for arguments in (
        {"logits": pixels, "labels": void, "ignore_class": 255},
        {
            "logits": logits,
            "labels": np.eye(num_classes)[labels],
            "groups": groups,
        },
    ):
        layer = make().adapt(**arguments)
        out = to_numpy(layer(pixels)).reshape(48, -1)[:40]
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*MAPS, *BINARY])
def test_weights_of_zero_leave_samples_out_and_scale_means_nothing(name):
    logits, labels = generated() if name in MAPS else binary()
    make = {**MAPS, **BINARY}[name]
    weight = np.where(np.arange(len(labels)) % 3 == 0, 0.0, 1.0)
    keep = weight > 0
    expected = to_numpy(make().adapt(logits[keep], labels[keep])(logits))
    layer = make().adapt(logits, labels, sample_weight=weight)
    np.testing.assert_allclose(
        to_numpy(layer(logits)), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", ["ensemble", "diagonal", "beta plain"])
def test_a_weight_of_two_is_a_repeated_sample(name):
    # Where the number of samples does not enter: see `test_weights.py`.
    logits, labels = generated() if name in MAPS else binary()
    make = {**MAPS, **BINARY}[name]
    if name == "diagonal":  # its prior weighs less against more samples
        make = functools.partial(
            layers.IntraOrderPreserving, penalty=0.0, shrinkage=None
        )
    weight = 1 + np.arange(len(labels)) % 3
    repeated = np.repeat(np.arange(len(labels)), weight)
    expected = make().adapt(logits[repeated], labels[repeated])
    layer = make().adapt(logits, labels, sample_weight=weight)
    np.testing.assert_allclose(
        softmax(to_numpy(layer(logits))),
        softmax(to_numpy(expected(logits))),
        atol=1e-5,
    )


@pytest.mark.parametrize("name", [*MAPS, *BINARY])
def test_a_failed_fit_leaves_the_layer_as_it_was(name):
    layer = fit(name)
    logits, labels = generated() if name in MAPS else binary()
    before = [to_numpy(w) for w in layer.weights], layer.record
    spoiled = logits.copy()
    spoiled[3, 0] = np.nan
    out_of_range = labels.copy()
    out_of_range[5] = 7
    for arguments, message in (
        ((spoiled, labels), "finite"),
        ((logits, out_of_range), "not one of the"),
        ((logits, labels[:-1]), "Received: labels of shape"),
        ((logits[:0], labels[:0]), "no calibration sample"),
    ):
        with pytest.raises(ValueError, match=message):
            layer.adapt(*arguments)
    for weight, expected in zip(layer.weights, before[0], strict=True):
        np.testing.assert_array_equal(to_numpy(weight), expected)
    assert layer.record == before[1]


HARD = {
    "constant logits": lambda z, y: (np.ones_like(z), y),
    "all correct": lambda z, y: (z, z.argmax(-1)),
    "all wrong": lambda z, y: (z, z.argmin(-1)),
    "a class absent": lambda z, y: (z[y != 1], y[y != 1]),
    "ruled out": lambda z, y: (
        np.where(np.arange(z.shape[1]) == 2, -np.inf, z)[y != 2],
        y[y != 2],
    ),
    "saturated": lambda z, y: (1e4 * z, y),
    "two values": lambda z, y: (np.sign(z), y),
}


@pytest.mark.filterwarnings("ignore:The temperature was set")
@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("name", MAPS)
def test_hard_data(name, case):
    logits, labels = HARD[case](*generated())
    layer = MAPS[name]().adapt(logits, labels)
    finite = np.isfinite(logits).all(-1)
    out = to_numpy(layer(logits))
    assert np.isfinite(out[finite]).all()
    assert not np.isnan(out).any()
    if layer.preserves_accuracy:
        np.testing.assert_array_equal(
            out.argmax(-1), logits.astype("float32").argmax(-1)
        )
    if name in LIKELIHOOD:
        # Rounding to float32 is all that may be lost.
        before = nll(np.maximum(logits, -1e30), labels)
        assert nll(out, labels) <= before * (1 + 1e-5) + 1e-6


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(
    "case", ["constant logits", "all correct", "all wrong"]
)
def test_hard_binary_data(name, case):
    logits, labels = HARD[case](*binary())
    layer = BINARY[name]().adapt(logits, labels)
    assert np.isfinite(to_numpy(layer(EXTREME[:, :2]))).all()
    assert nll(to_numpy(layer(logits)), labels) <= nll(logits, labels) + 1e-6


@pytest.mark.filterwarnings("ignore:The temperature was set")
@pytest.mark.parametrize("name", [*MAPS, *BINARY])
def test_one_sample(name):
    logits = np.array([[0.5, 1.5]])
    layer = {**MAPS, **BINARY}[name]()
    if name in BINARY:
        with pytest.raises(ValueError, match="both classes"):
            layer.adapt(logits, [1])
        return
    if name.startswith("spline"):
        with pytest.raises(ValueError, match="at least as many"):
            layer.adapt(logits, [1])
        return
    layer.adapt(logits, [1])
    assert np.isfinite(to_numpy(layer(logits))).all()


@pytest.mark.slow
def test_compiled():
    maps = [adapted(name) for name in CALLED]
    logits = ops.convert_to_tensor(generated()[0][:20].astype("float32"))
    found = compiled(lambda z: [layer(z) for layer in maps])(logits)
    for layer, out in zip(maps, found, strict=True):
        np.testing.assert_allclose(
            softmax(to_numpy(out)), softmax(to_numpy(layer(logits))), atol=1e-5
        )


@pytest.mark.parametrize("name", [*MAPS, *BINARY])
def test_deterministic(name):
    for one, other in zip(
        adapted(name).weights, fit(name).weights, strict=True
    ):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))


@pytest.mark.parametrize("names", [MAPS, BINARY], ids=["classes", "binary"])
def test_saving(names, tmp_path):
    logits = generated()[0] if names is MAPS else binary()[0]
    inputs = keras.Input((logits.shape[-1],))
    maps = [adapted(name) for name in names]
    model = keras.Model(inputs, [layer(inputs) for layer in maps])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    for layer, out in zip(maps, again(logits), strict=True):
        np.testing.assert_array_equal(to_numpy(out), to_numpy(layer(logits)))
        loaded = again.get_layer(layer.name)
        assert loaded.record == layer.record
        assert loaded.get_config() == layer.get_config()


@pytest.mark.slow
def test_a_fresh_process_reads_the_file(tmp_path):
    logits = generated()[0].astype("float32")
    inputs = keras.Input((5,))
    maps = [adapted(name) for name in CALLED]
    model = keras.Model(inputs, [layer(inputs) for layer in maps])
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "logits.npy", logits)
    code = (
        "import sys, keras, keras_calib, numpy as np\n"
        "model = keras.saving.load_model(sys.argv[1] + '/model.keras')\n"
        "out = model(np.load(sys.argv[1] + '/logits.npy'))\n"
        "out = [keras.ops.convert_to_numpy(part) for part in out]\n"
        "np.save(sys.argv[1] + '/out.npy', np.stack(out))\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
    expected = np.stack([to_numpy(part) for part in model(logits)])
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)


@pytest.mark.parametrize("name", MAPS)
def test_predictions_stay(name, data_folder):
    layer = MAPS[name]()
    if not layer.preserves_accuracy:
        pytest.skip("this map may change predictions")
    probabilities, labels = read_predictions(
        data_folder, "wideresnet-16-4-cifar-100"
    )
    logits = np.log(np.maximum(probabilities, 1e-37))
    layer.adapt(logits[:2000], labels[:2000])
    rest = logits[2000:]
    # A tie, and two scores that differ by the last digit.
    rest[0, 7] = rest[0, 91] = rest[0].max() + 1
    rest[1, 7] = rest[1].max() + 1
    rest[1, 5] = np.nextafter(rest[1, 7], np.float32(-100))
    out = to_numpy(layer(rest))
    np.testing.assert_array_equal(out.argmax(-1), rest.argmax(-1))
    assert out[0, 7] == out[0, 91]


@pytest.mark.parametrize("name", [*MAPS, *BINARY])
def test_a_constant_added_to_logits(name):
    layer = adapted(name)
    logits = generated()[0] if name in MAPS else binary()[0]
    moved = layer(logits + np.arange(len(logits))[:, None] % 7)
    difference = softmax(to_numpy(moved)) - softmax(to_numpy(layer(logits)))
    assert (np.abs(difference).max() < 1e-4) == layer.shift_invariant


@pytest.mark.parametrize("name", [*MAPS, *BINARY])
def test_degrees_of_freedom(name):
    num_classes = 5 if name in MAPS else 2
    count = {**MAPS, **BINARY}[name]().degrees_of_freedom(num_classes)
    assert isinstance(count, int) and count > 0


@pytest.mark.parametrize("name", [*MAPS, *BINARY])
def test_what_other_rooms_ask_a_layer_holds_for_subclasses(name):
    layer = {**MAPS, **BINARY}[name]()
    subclass = type("Subclass", (type(layer),), {})
    by_frequencies = name.split()[0] in ("spline", "isotonic", "histogram")
    expected = "frequencies" if by_frequencies else "likelihood"
    assert layer.fitted_by == subclass.fitted_by == expected
    assert layer.ends_in == subclass.ends_in == "linear"
    assert layers.LogProbabilities.ends_in == "linear"


@pytest.mark.parametrize("name", [*MAPS, *BINARY])
def test_arguments_are_keyword_only_and_saved(name):
    layer = {**MAPS, **BINARY}[name]()
    parameters = inspect.signature(type(layer).__init__).parameters.values()
    kinds = {p.name: p.kind for p in parameters if p.name != "self"}
    assert set(kinds.values()) <= {
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    }
    assert set(kinds) - {"kwargs"} <= set(layer.get_config())


@pytest.mark.parametrize("name", ["spline", "isotonic", "histogram"])
def test_frequencies_are_not_a_mean_of_losses(name):
    logits, labels = generated()
    with pytest.raises(ValueError, match="mean of losses"):
        MAPS[name]().adapt(logits, labels, class_loss_scaling="normal")
    with pytest.raises(ValueError, match="cannot minimize"):
        MAPS[name]().adapt(logits, labels, objective="focal")


@pytest.mark.parametrize("name", ["ensemble", "parameterized", "diagonal"])
@pytest.mark.parametrize("objective", ["label_smoothing", "focal"])
def test_other_objectives_fall(name, objective):
    from keras_calib.layers._objectives import NAMES

    logits, labels = generated()
    layer = MAPS[name]().adapt(logits, labels, objective=objective)
    of = NAMES[objective]()
    temperature = layers.TemperatureScaling().adapt(
        logits, labels, objective=objective
    )
    before = of.value(to_numpy(temperature(logits)), labels)
    assert of.value(to_numpy(layer(logits)), labels) <= before + 1e-6


@pytest.mark.parametrize("name", ["ensemble", "diagonal"])
def test_class_loss_scaling(name):
    logits, labels = generated()
    plain = MAPS[name]().adapt(logits, labels)
    scaled = MAPS[name]().adapt(logits, labels, class_loss_scaling="normal")
    spread = [
        np.std(
            [
                nll(to_numpy(layer(logits))[labels == k], labels[labels == k])
                for k in range(5)
            ]
        )
        for layer in (plain, scaled)
    ]
    assert spread[1] < spread[0]


def test_small_networks_take_a_loss_object():
    logits, labels = generated(100)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    layer = MAPS["parameterized"]().adapt(logits, labels, objective=loss)
    same = MAPS["parameterized"]().adapt(logits, labels)
    # float32 gradients take another way.
    assert nll(to_numpy(layer(logits)), labels) == pytest.approx(
        nll(to_numpy(same(logits)), labels), abs=0.01
    )
