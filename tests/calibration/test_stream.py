"""`stream=True`: the ordinary temperature, with no logits kept."""

import tracemalloc
import warnings

import keras
import numpy as np
import pytest
from keras import layers

import keras_calib as kc
from keras_calib.solvers import temperature_stream
from keras_calib.solvers.temperature import fit_temperature
from keras_calib.solvers.temperature_stream import fit_temperature_in_stream
from tests.calibration.networks import EXPECTED
from tests.calibration.networks import Subclassed
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional
from tests.helpers import Pieces
from tests.helpers import to_numpy


def pieces():
    """A function that gives a new generator, in batches of unequal size."""
    for part in np.array_split(np.arange(len(X)), [7, 100, 101]):
        yield X[part], Y[part]


def both(model, *data, **kwargs):
    ordinary = kc.calibrate(model, *data, verbose=0, **kwargs)
    streamed = kc.calibrate(model, *data, verbose=0, stream=True, **kwargs)
    return ordinary, streamed


@pytest.mark.filterwarnings("ignore:No final softmax")
@pytest.mark.parametrize("kind", ["logits", "softmax", "subclassed", "masked"])
def test_the_result_is_that_of_the_ordinary_fit(kind, tmp_path):
    model, x, y, kwargs = built(functional(dense())), X, Y, {}
    if kind == "softmax":
        model = built(functional(dense("softmax")))
    if kind == "subclassed":
        model, kwargs = built(Subclassed("softmax")), {"from_logits": False}
    if kind == "masked":
        x, y = X.reshape(30, 10, 8).copy(), Y.reshape(30, 10)
        x[:, 7:] = 0
        inputs = keras.Input((10, 8))
        tensor = dense()(layers.Masking()(inputs))
        model = built_like(keras.Model(inputs, tensor))
        kwargs = {"ignore_class": 2}
    ordinary, streamed = both(model, x, y, **kwargs)
    expected, found = map(kc.calibration_record, (ordinary, streamed))
    assert found["temperature"] == pytest.approx(
        expected["temperature"], rel=1e-5
    )
    assert found["num_passes"] <= 4
    # A stream is not read again for folds.
    prior = found["source_prior"]
    np.testing.assert_allclose(prior, expected["source_prior"], atol=1e-6)
    others = {"temperature", "guard", "source_prior", "source_num_samples"}
    for key in set(expected) - others:
        if isinstance(expected[key], float):
            assert found[key] == pytest.approx(
                expected[key], rel=1e-4, abs=1e-5
            ), key
        else:
            assert found[key] == expected[key], key
    np.testing.assert_allclose(
        streamed.predict(x, verbose=0),
        ordinary.predict(x, verbose=0),
        atol=1e-5,
    )
    streamed.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert kc.calibration_record(again) == found


def built_like(model):
    for weight, value in zip(
        model.weights, built(functional(dense())).weights, strict=True
    ):
        weight.assign(value)
    return model


def test_any_source_that_can_be_read_again():
    model = built(functional(dense()))
    for source in (pieces, Pieces(X, Y), list(pieces())):
        found = kc.calibrate(model, source, stream=True, verbose=0)
        record = kc.calibration_record(found)
        assert record["temperature"] == pytest.approx(EXPECTED, rel=1e-5)
        assert record["num_samples"] == len(X)


def test_weights_of_all_batches_are_on_one_scale():
    model = built(functional(dense()))
    weight = np.linspace(0, 5, len(X))  # the first batch has little weight
    ordinary, streamed = both(model, X, Y, weight)
    expected, found = map(kc.calibration_record, (ordinary, streamed))
    keys = "temperature", "nll_before", "ece_before", "ece_after"
    for key in (*keys, "class_bias", "source_prior"):
        assert found[key] == pytest.approx(expected[key], rel=1e-5), key


def test_one_sigmoid_unit_and_fusing():
    inputs = keras.Input((8,))
    head = layers.Dense(1, "sigmoid", name="head")
    model = keras.Model(inputs, head(inputs))
    head.kernel.assign(np.linspace(-3, 3, 8)[:, None])
    y = (X @ np.linspace(-1, 1, 8) + np.sin(17 * X[:, 0]) > 0).astype(int)
    ordinary, streamed = both(model, X, y, fuse=True)
    np.testing.assert_allclose(
        streamed.predict(X, verbose=0),
        ordinary.predict(X, verbose=0),
        atol=1e-5,
    )
    kernel = to_numpy(streamed.get_layer("head").kernel)
    temperature = kc.calibration_record(ordinary)["temperature"]
    np.testing.assert_allclose(
        kernel[:, 0], np.linspace(-3, 3, 8) / temperature, rtol=1e-4
    )


def test_other_class_frequencies_after_a_stream():
    """Rows of 5,000 classes: a block of the sums has several of them."""
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(8, 5000)).astype("float32")
    inputs = keras.Input((8,))
    outputs = layers.Dense(5000, use_bias=False)(inputs)
    model = keras.Model(inputs, outputs)
    model.set_weights([kernel])
    z = X @ kernel
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(-1)
    weight = np.linspace(0.5, 2, len(X))
    ordinary, streamed = both(model, X, y, weight, output="logits")
    priors = [
        kc.calibration_record(each)["source_prior"]
        for each in (ordinary, streamed)
    ]
    np.testing.assert_allclose(*priors, rtol=1e-3, atol=1e-9)
    target = np.roll(priors[0], 1)
    found = [
        kc.adjust_prior(each, prior=target, verbose=0).predict(X, verbose=0)
        for each in (ordinary, streamed)
    ]
    np.testing.assert_allclose(*found, atol=5e-3)


def test_a_layer_keeps_its_state_when_the_data_changes():
    model = built(functional(dense()))
    rng = np.random.default_rng(0)

    def augmented():
        yield X + rng.normal(size=X.shape).astype("float32"), Y

    layer = kc.layers.TemperatureScaling(temperature=3.0)
    with pytest.raises(ValueError, match="must be the same"):
        kc.calibrate(model, augmented, method=layer, stream=True, verbose=0)
    assert layer.record is None
    assert layer.temperature == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"method": "vector"}, "fits a temperature"),
        ({"method": "auto"}, "fits a temperature"),
        ({"objective": "ece"}, "minimizes the NLL"),
        ({"groups": np.arange(300)}, "by `groups`"),
        ({"class_loss_scaling": "normal"}, "minimizes the NLL"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(kwargs, message):
    model = built(functional(dense()))
    with pytest.raises(ValueError, match=message):
        kc.calibrate(model, X, Y, stream=True, verbose=0, **kwargs)


def test_data_that_cannot_be_read_again_is_refused():
    model = built(functional(dense()))
    with pytest.raises(ValueError, match="generator can be read once"):
        kc.calibrate(model, pieces(), stream=True, verbose=0)
    with pytest.raises(ValueError, match="`stream=True`"):
        kc.calibrate(model, pieces, verbose=0)
    soft = np.full((len(X), 3), 1 / 3)
    with pytest.raises(ValueError, match="soft labels"):
        kc.calibrate(model, X, soft, stream=True, verbose=0)
    with pytest.raises(ValueError, match="no calibration sample"):
        kc.calibrate(
            model, X, np.full(len(X), 9), stream=True, ignore_class=9, verbose=0
        )
    streamed = kc.calibrate(model, pieces, stream=True, verbose=0)
    with pytest.raises(ValueError, match="already been calibrated"):
        kc.calibrate(streamed, pieces, stream=True, verbose=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(4))
def test_the_solver_equals_the_one_of_whole_arrays(dtype, seed):
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-1, 1)
    logits = (4 * rng.normal(size=(3000, 5))).astype(dtype)
    labels = (logits / scale + rng.gumbel(size=logits.shape)).argmax(1)
    weights = rng.uniform(0.1, 3, 3000)

    begun = []

    def read():
        begun.append(1)
        for i in range(0, 3000, 700):
            part = slice(i, i + 700)
            yield logits[part], labels[part], weights[part]

    expected = fit_temperature(logits, labels, weights)
    found, num_passes = fit_temperature_in_stream(read)
    assert num_passes == len(begun)
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-5)
    assert found.nll_before == pytest.approx(expected.nll_before, rel=1e-6)
    assert found.nll_after == pytest.approx(expected.nll_after, rel=1e-6)
    assert num_passes <= 4


@pytest.mark.parametrize(
    ("labels", "reason"), [((0, 1), "all correct"), ((1, 0), "chance")]
)
def test_a_stream_without_a_minimum_ends_as_the_ordinary_fit(labels, reason):
    logits = np.array([[2.0, 0], [0, 1]])

    def read():
        for i in range(2):
            yield logits[i : i + 1], np.array([labels[i]])

    layer = kc.layers.TemperatureScaling()
    with pytest.warns(UserWarning, match="The temperature was set to"):
        layer.adapt_to_blocks(read)
    assert layer.record["stop_reason"] == reason
    expected = fit_temperature(logits, np.array(labels))
    assert layer.temperature == pytest.approx(expected.temperature, rel=1e-5)


def test_the_first_block_may_be_all_right():
    # Alone it has no minimum: the fit must not start at its bound.
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(400, 3))
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(1)
    labels[:50] = logits[:50].argmax(1)

    def read():
        yield logits[:50], labels[:50]
        yield logits[50:], labels[50:]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = kc.layers.TemperatureScaling().adapt_to_blocks(read)
    expected = fit_temperature(logits, labels).temperature
    assert layer.temperature == pytest.approx(expected, rel=1e-5)


def peak_bytes(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_that_of_a_block():
    """Ten times the tokens take no more; a block here has 4 MB."""

    def fit(num_blocks):
        def read():
            rng = np.random.default_rng(0)
            for _ in range(num_blocks):
                z = rng.normal(size=(1, 256, 4000)).astype("float32")
                yield 4 * z, (2 * z[0, :, :50]).argmax(-1)[None]

        kc.layers.TemperatureScaling().adapt_to_blocks(read)

    few, many = (peak_bytes(lambda n=n: fit(n)) for n in (2, 20))
    assert many < few + 100_000
    assert many < 20 * 4_096_000  # the blocks of one pass


@pytest.mark.filterwarnings("ignore:The temperature was set to 100")
def test_memory_of_calibrate_is_that_of_a_batch():
    """Token scores: six times the batches take no more; each has 2 MB."""
    inputs = keras.Input((16, 4))
    model = keras.Model(inputs, layers.Dense(4000, use_bias=False)(inputs))

    def fit(num_batches):
        def batches():
            rng = np.random.default_rng(0)
            for _ in range(num_batches):
                x = rng.normal(size=(8, 16, 4)).astype("float32")
                yield x, rng.integers(4000, size=(8, 16))

        kc.calibrate(model, batches, stream=True, verbose=0)

    fit(2)  # what Keras compiles once
    few, many = (peak_bytes(lambda n=n: fit(n)) for n in (2, 12))
    assert many < few + 500_000
    assert many < 12 * 2_048_000


def test_a_start_far_away_costs_passes_only(monkeypatch):
    monkeypatch.setattr(temperature_stream, "FIRST", 30)
    found = kc.calibrate(
        built(functional(dense())), X, Y, stream=True, verbose=0
    )
    temperature = kc.calibration_record(found)["temperature"]
    assert temperature == pytest.approx(EXPECTED, rel=1e-5)


def test_unequal_weights_are_fewer_samples():
    model = built(functional(dense("softmax")))
    weight = np.ones(len(X))
    weight[:3] = 1e6
    for stream in (False, True):
        with pytest.warns(
            UserWarning, match="of unequal weight, which tell as much as 3"
        ):
            kc.calibrate(
                *(model, X, Y, weight), stream=stream, guard=False, verbose=0
            )
