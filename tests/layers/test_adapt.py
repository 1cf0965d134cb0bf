"""What calibration data may be, and what a map makes of it: every map."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import nll
from tests.layers.generated import softmax
from tests.layers.test_weights import BINARY
from tests.layers.test_weights import EACH_MAP
from tests.layers.test_weights import MAPS
from tests.layers.test_weights import data

layers = kc.layers
TOLD = pytest.mark.filterwarnings(
    "ignore:The temperature was set",
    "ignore:.*every calibration sample",
    "ignore:Every calibration sample",
    "ignore:.*classes have no calibration sample",
    "ignore:The fit of",
    "ignore:overflow encountered in cast",
)


@TOLD
@EACH_MAP
@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_record_tells_what_the_layer_gives(name, scale, dtype):
    logits, labels, weights = data(name)
    logits = (scale * logits).astype(dtype)
    for weight in (None, weights):
        layer = MAPS[name]().adapt(logits, labels, sample_weight=weight)
        if "nll_after" not in layer.record:
            assert layer.fitted_by == "frequencies"
            return
        for key, scores in (
            ("nll_before", logits),
            ("nll_after", to_numpy(layer(logits))),
        ):
            assert layer.record[key] == pytest.approx(
                nll(scores, labels, weight), rel=1e-6, abs=1e-5
            )


@TOLD
def test_the_order_invariant_family_sees_the_gaps_that_it_stretches():
    logits, labels = generated()
    expected = layers.IntraOrderPreserving(family="order_invariant").adapt(
        logits, labels
    )
    layer = layers.IntraOrderPreserving(family="order_invariant")
    layer.adapt(1e4 * logits, labels)
    found = nll(to_numpy(layer(1e4 * logits)), labels)
    # The gaps were cut at 1e4: recorded 0.75, given 1.08.
    assert found == pytest.approx(expected.record["nll_after"], abs=1e-3)


def ruled_out(logits, labels, value):
    """Now and then a class that is neither the label nor the prediction."""
    logits = logits.copy()
    chosen = np.random.default_rng(1).uniform(size=logits.shape) < 0.2
    chosen &= np.arange(logits.shape[1]) != np.asarray(labels)[:, None]
    chosen &= logits < logits.max(axis=1, keepdims=True)
    logits[chosen] = value
    return logits


@TOLD
@EACH_MAP
@pytest.mark.parametrize("value", [-np.inf, -1e300, np.finfo("float32").min])
def test_classes_that_are_ruled_out(name, value):
    logits, labels, _ = data(name)
    logits = ruled_out(logits, labels, value)
    layer = MAPS[name]()
    if name.startswith("matrix"):
        with pytest.raises(ValueError, match="cannot mix"):
            layer.adapt(logits, labels)
        return
    layer.adapt(logits, labels)
    assert all(np.isfinite(to_numpy(w)).all() for w in layer.weights)
    p = softmax(np.maximum(to_numpy(layer(logits)), -1e30))
    assert np.isfinite(p).all()
    if layer.fitted_by == "likelihood" and name != "ensemble":
        # No map but those that mix in other classes' shares revives one.
        assert p[logits <= -1e30].max(initial=0) < 1e-3
    if "nll_after" in layer.record:
        assert layer.record["nll_after"] == pytest.approx(
            -np.log(p[np.arange(len(labels)), labels]).mean(), abs=1e-5
        )


def test_smoothed_labels_have_no_share_for_what_is_ruled_out():
    logits, labels, _ = data("temperature")
    logits = ruled_out(logits, labels, -np.inf)
    layer = layers.TemperatureScaling()
    with pytest.raises(ValueError, match="Smoothed labels"):
        layer.adapt(logits, labels, objective="label_smoothing")


@EACH_MAP
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30, 1e300])
def test_numbers_that_no_layer_can_hold(name, value):
    logits, labels, _ = data(name)
    logits[3, 1] = value
    layer = MAPS[name]()
    with pytest.raises(ValueError, match="Logits must be"):
        layer.adapt(logits, labels)
    assert layer.record is None
    assert not layer.built


@TOLD
@EACH_MAP
@pytest.mark.parametrize(
    "case",
    [
        "half",
        "huge",
        "tiny",
        "all correct",
        "all wrong",
        "constant",
        "one class",
        "one class is missing",
        "void",
        "empty",
    ],
)
def test_a_right_number_or_an_error(name, case):
    logits, labels, _ = data(name)
    if case == "half":
        logits = logits.astype("float16")
    elif case == "huge":
        logits = 1e25 * logits
    elif case == "tiny":
        logits = 1e-30 * logits
    elif case == "all correct":
        labels = logits.argmax(axis=1)
    elif case == "all wrong":
        labels = logits.argmin(axis=1)
    elif case == "constant":
        logits = np.ones_like(logits)
    elif case == "one class":
        logits, labels = logits[labels == 1], labels[labels == 1]
    elif case == "one class is missing":
        logits, labels = logits[labels != 1], labels[labels != 1]
    elif case == "void":
        labels = np.full_like(labels, 7)
    else:
        logits, labels = logits[:0], labels[:0]
    layer = MAPS[name]()
    refused = case in ("void", "empty")
    if name in BINARY:
        refused = refused or case.startswith("one class")
    if refused:
        with pytest.raises(ValueError):
            layer.adapt(logits, labels, ignore_class=7)
        assert layer.record is None
        assert not layer.built
        return
    layer.adapt(logits, labels, ignore_class=7)
    assert all(np.isfinite(to_numpy(w)).all() for w in layer.weights)
    out = to_numpy(layer(logits))
    assert np.isfinite(out).all()
    if "nll_after" in layer.record:
        after, before = nll(out, labels), nll(logits, labels)
        assert after <= before * (1 + 1e-5) + 1e-5
        assert layer.record["nll_after"] == pytest.approx(
            after, rel=1e-4, abs=1e-4
        )


class Failing(layers.VectorScaling):
    """A map whose fit fails late, or gives no numbers."""

    failure = FloatingPointError

    def solve(self, *arguments):
        weights, record = super().solve(*arguments)
        if self.failure is None:
            weights["bias"] = np.full_like(weights["bias"], np.inf)
            return weights, record
        raise self.failure


@pytest.mark.parametrize("failure", [FloatingPointError, None])
@pytest.mark.parametrize("scaling", [None, "normal"])
def test_a_failed_fit_leaves_a_layer_that_was_not_built(failure, scaling):
    logits, labels, _ = data("vector")
    layer = Failing()
    layer.failure = failure
    if failure is None and scaling is not None:
        type(layer).failure = None  # of the twin that computes class losses
    try:
        with pytest.raises(failure or ValueError):
            layer.adapt(logits, labels, class_loss_scaling=scaling)
    finally:
        type(layer).failure = FloatingPointError
    assert not layer.built
    assert layer.record is None
    assert not layer.weights
    # And it takes logits of any other number of classes.
    assert to_numpy(layer(logits[:, :3])).shape == (len(logits), 3)


@EACH_MAP
def test_a_second_fit_is_a_first_one(name, tmp_path):
    logits, labels, weight = data(name)
    inputs = keras.Input(logits.shape[1:])
    layer = MAPS[name]()
    model = keras.Model(inputs, layer(inputs))
    layer.adapt(2 * logits + 1, labels, sample_weight=weight)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    loaded = again.get_layer(layer.name)
    assert loaded.record == layer.record
    expected = MAPS[name]().adapt(logits, labels)
    for adapted in (layer, loaded):
        adapted.adapt(logits, labels)
        assert adapted.record == expected.record
        for one, other in zip(adapted.weights, expected.weights, strict=True):
            np.testing.assert_array_equal(to_numpy(one), to_numpy(other))


@pytest.mark.parametrize("name", [name for name in MAPS if name not in BINARY])
def test_another_number_of_classes(name):
    logits, labels, _ = data(name)
    layer = MAPS[name]().adapt(logits, labels)
    before = [to_numpy(w).copy() for w in layer.weights]
    fewer = logits[:, :4][labels < 4], labels[labels < 4]
    try:
        layer.adapt(*fewer)
    except ValueError as error:
        assert "built for other logits" in str(error)
        for one, other in zip(layer.weights, before, strict=True):
            np.testing.assert_array_equal(to_numpy(one), other)
    else:
        # A map that knows nothing of classes: a new one has such weights, too.
        new = MAPS[name]().adapt(*fewer)
        assert [w.shape for w in new.weights] == [w.shape for w in before]


@EACH_MAP
def test_masks_and_axes_go_through(name):
    logits, labels, _ = data(name)
    layer = MAPS[name]().adapt(logits, labels)
    width = logits.shape[1]
    tokens = np.array([[1, 2, 0, 3], [4, 0, 0, 0]])
    inputs = keras.Input((4,), dtype="int32")
    table = keras.layers.Embedding(5, width, mask_zero=True)
    outputs = layer(table(inputs))
    assert outputs.shape == (None, 4, width)
    outputs = keras.layers.Activation("softmax")(outputs)
    summed = keras.layers.GlobalAveragePooling1D()(outputs)
    model = keras.Model(inputs, [outputs, summed])
    found, mean = (to_numpy(out) for out in model(tokens))
    # The pooling layer sees the mask: it leaves the padding out.
    mask = (tokens > 0)[..., None]
    expected = (found * mask).sum(axis=1) / mask.sum(axis=1)
    np.testing.assert_allclose(mean, expected, rtol=1e-5)
    rows = to_numpy(layer(to_numpy(table(tokens)).reshape(-1, width)))
    np.testing.assert_allclose(
        found.reshape(-1, width), softmax(rows), atol=1e-5
    )


def test_masks_go_through_log_probabilities():
    inputs = keras.Input((4,), dtype="int32")
    x = keras.layers.Embedding(5, 3, mask_zero=True)(inputs)
    x = keras.layers.Activation("softmax")(x)
    x = layers.LogProbabilities()(x)
    model = keras.Model(inputs, [x, keras.layers.GlobalAveragePooling1D()(x)])
    tokens = np.array([[1, 2, 0, 3], [4, 0, 0, 0]])
    found, mean = (to_numpy(out) for out in model(tokens))
    mask = (tokens > 0)[..., None]
    expected = (found * mask).sum(axis=1) / mask.sum(axis=1)
    np.testing.assert_allclose(mean, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["MatrixScaling", "HistogramBinning"])
def test_a_fit_that_fails_late_leaves_the_layer_as_it_was(name, monkeypatch):
    rng = np.random.default_rng(1)
    logits = 3 * rng.normal(size=(200, 3))
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    make = getattr(kc.layers, name)
    layer = make().adapt(logits, labels)
    weights, record = layer.get_weights(), dict(layer.record)

    def without_memory(self, *given):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(make, "call", without_memory)
        with pytest.raises(MemoryError):
            layer.adapt(logits * 2, labels)
    assert layer.record == record
    for old, new in zip(weights, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_weights_that_are_none_are_named():
    class Wrong(kc.layers.TemperatureScaling):
        def solve(self, *data):
            return {"temperatures": 1.0}, {}

    with pytest.raises(ValueError, match="'temperatures'"):
        Wrong().adapt(np.eye(3), np.arange(3))


def test_what_was_never_fitted_is_as_new_after_an_interrupted_fit(monkeypatch):
    layer = kc.layers.MatrixScaling()

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(layer, "_nll", interrupted)
    z = np.random.default_rng(0).normal(size=(60, 3))
    with pytest.raises(KeyboardInterrupt):
        layer.adapt(z, np.arange(60) % 3)
    assert layer.record is None
    new = kc.layers.MatrixScaling()
    new.build((None, 3))
    for one, other in zip(layer.weights, new.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))
