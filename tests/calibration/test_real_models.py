"""Models, data and messages that users met: each failed once."""

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_calib as kc
from keras_calib.data.predict import outputs_and_mask
from keras_calib.solvers.temperature import fit_temperature
from tests.calibration.networks import EXPECTED
from tests.calibration.networks import KERNEL
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional
from tests.helpers import to_numpy

RNG = np.random.default_rng(5)
TOKENS = RNG.integers(1, 20, (64, 12))
LENGTHS = RNG.integers(3, 12, 64)
REAL = np.arange(12) < LENGTHS[:, None]
TOKENS[~REAL] = 0


def tagger(activation="softmax", kernel=None):
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(20, 8, mask_zero=True),
            layers.Dense(4, activation),
        ]
    )
    rng = np.random.default_rng(6)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape) * 1.5)
    return model


def tags(model):
    """Labels at half the model's logits; where there is padding, wrong ones."""
    table, kernel, bias = (to_numpy(weight) for weight in model.weights)
    logits = table[TOKENS] @ kernel + bias
    rng = np.random.default_rng(7)
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(-1)
    labels[~REAL] = logits[~REAL].argmin(-1)
    return logits, labels


class SubclassedTagger(keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x)


TAGGERS = {
    "softmax": lambda: tagger(),
    "logits": lambda: tagger(None),
    "subclassed": lambda: SubclassedTagger(tagger(None)),
}


@pytest.mark.parametrize("kind", TAGGERS)
def test_masked_tokens_are_not_calibrated_on(kind):
    model = TAGGERS[kind]()
    logits, labels = tags(model)
    expected = fit_temperature(logits[REAL], labels[REAL]).temperature
    padded = fit_temperature(
        logits.reshape(-1, 4), labels.reshape(-1)
    ).temperature
    assert padded > 2 * expected  # what the mask is needed for
    calibrated = kc.calibrate(model, TOKENS, labels, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["num_samples"] == REAL.sum()
    assert record["temperature"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.filterwarnings("error:.*destroy the mask")
@pytest.mark.parametrize("kind", TAGGERS)
@pytest.mark.parametrize("method", ["temperature", "vector", "isotonic"])
def test_calibrated_model_keeps_the_mask(kind, method):
    model = TAGGERS[kind]()
    _, labels = tags(model)
    calibrated = kc.calibrate(model, TOKENS, labels, method=method, verbose=0)
    outputs, mask = outputs_and_mask(calibrated, TOKENS)
    np.testing.assert_array_equal(mask, REAL)
    # `evaluate` counts what the fit counted.
    record = kc.calibration_record(calibrated)
    right = (outputs.argmax(-1) == labels)[REAL].mean()
    assert right > 2 * (outputs.argmax(-1) == labels)[~REAL].mean()
    loss, accuracy = calibrated.evaluate(
        TOKENS, labels, batch_size=64, verbose=0
    )
    assert accuracy == pytest.approx(right, rel=1e-5)
    nll = -np.log(np.take_along_axis(outputs, labels[..., None], -1)[..., 0])
    assert nll[REAL].mean() == pytest.approx(record["nll_after"], rel=1e-4)
    assert loss == pytest.approx(record["nll_after"], rel=1e-4)


def test_fused_model_keeps_the_mask():
    model = tagger()
    _, labels = tags(model)
    fused = kc.calibrate(model, TOKENS, labels, fuse=True, verbose=0)
    _, mask = outputs_and_mask(fused, TOKENS)
    np.testing.assert_array_equal(mask, REAL)


def test_masked_weights_multiply_the_mask():
    model = tagger()
    logits, labels = tags(model)
    weights = RNG.uniform(0.5, 2.0, 64)
    each = np.repeat(weights[:, None], 12, axis=1)
    expected = fit_temperature(
        logits[REAL], labels[REAL], each[REAL]
    ).temperature
    for given in (weights, weights[:, None], each, each[..., None]):
        calibrated = kc.calibrate(model, TOKENS, labels, given, verbose=0)
        record = kc.calibration_record(calibrated)
        assert record["temperature"] == pytest.approx(expected, rel=1e-3)


def test_batches_of_different_length():
    model = tagger()
    logits, labels = tags(model)
    data = []
    for part in np.split(np.argsort(LENGTHS), 8):
        size = LENGTHS[part].max()
        data.append((TOKENS[part, :size], labels[part, :size]))
    expected = fit_temperature(logits[REAL], labels[REAL]).temperature
    for source in (data, iter(data)):
        calibrated = kc.calibrate(model, source, verbose=0)
        record = kc.calibration_record(calibrated)
        assert record["num_samples"] == REAL.sum()
        assert record["temperature"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("fuse", [False, True], ids=["layer", "fused"])
def test_fused_twice_on_the_same_data_is_refused(fuse, tmp_path):
    model = built(functional(dense("softmax")))
    once = kc.calibrate(model, X, Y, fuse=True, verbose=0)
    order = np.random.default_rng(0).permutation(len(X))
    once.save(tmp_path / "once.keras")
    loaded = keras.saving.load_model(tmp_path / "once.keras")
    inside = keras.Sequential([keras.Input((8,)), loaded])
    for again in (once, loaded, inside):
        with pytest.raises(ValueError, match="very samples"):
            kc.calibrate(again, X[order], Y[order], fuse=fuse, verbose=0)
    kc.calibrate(once, X[:200] + 1, Y[:200], fuse=fuse, verbose=0)


NOT_AFFINE = {
    "dirichlet": lambda: "dirichlet",
    "log_softmax": lambda: kc.layers.VectorScaling(
        normalize_logits="log_softmax"
    ),
    "matrix, log_softmax": lambda: kc.layers.MatrixScaling(
        normalize_logits="log_softmax"
    ),
}


@pytest.mark.parametrize("name", NOT_AFFINE)
def test_map_that_is_not_affine_is_refused_before_the_pass(name):
    def data():
        raise AssertionError("the data was read")
        yield

    with pytest.raises(ValueError, match="not affine"):
        kc.calibrate(
            built(functional(dense())),
            data(),
            method=NOT_AFFINE[name](),
            fuse=True,
            verbose=0,
        )


def test_auto_tries_no_map_that_cannot_be_fused():
    calibrated = kc.calibrate(
        built(functional(dense())), X, Y, method="auto", fuse=True, verbose=0
    )
    trials = kc.calibration_record(calibrated)["trials"]
    assert "temperature" in trials and "dirichlet" not in trials


@pytest.mark.parametrize("num_samples", [1, 4])
def test_auto_on_fewer_samples_than_folds_is_refused(num_samples):
    with pytest.raises(ValueError, match=f"Received: {num_samples} calib"):
        kc.calibrate(
            built(functional(dense())),
            X[:num_samples],
            Y[:num_samples],
            method="auto",
            verbose=0,
        )


class Unregistered(keras.regularizers.Regularizer):
    def __call__(self, x):
        return 0.01 * ops.sum(x**2)


@pytest.mark.parametrize("fuse", [False, True], ids=["layer", "fused"])
def test_head_with_an_unregistered_regularizer(fuse):
    model = built(
        functional(dense("softmax", kernel_regularizer=Unregistered()))
    )
    calibrated = kc.calibrate(model, X, Y, fuse=fuse, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["temperature"] == pytest.approx(EXPECTED, rel=1e-4)
    if fuse:
        assert len(calibrated.losses) == 1


def test_custom_layer_with_an_activation():
    class Head(layers.Layer):
        def __init__(self):
            super().__init__()
            self.activation = keras.activations.softmax
            self.dense = dense()

        def call(self, x):
            return self.activation(self.dense(x))

    model = built(functional(Head()))
    with pytest.warns(UserWarning, match="logarithm of its probabilities"):
        calibrated = kc.calibrate(model, X, Y, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["temperature"] == pytest.approx(EXPECTED, rel=1e-3)
    with pytest.raises(ValueError, match="come from Head"):
        kc.calibrate(model, X, Y, fuse=True, verbose=0)


def test_layer_that_is_called_head_logits():
    model = functional(
        layers.Dense(8, name="head_logits"), dense("softmax", name="head")
    )
    calibrated = kc.calibrate(model, X, Y, verbose=0)
    expected = model.predict(X, verbose=0) ** (
        1 / kc.calibration_record(calibrated)["temperature"]
    )
    np.testing.assert_allclose(
        calibrated.predict(X, verbose=0),
        expected / expected.sum(-1, keepdims=True),
        atol=1e-5,
    )


def fill(layer, value):
    for state in layer.states:
        state.assign(np.full(state.shape, value))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_stateful_recurrent_network(kind):
    model = keras.Sequential(
        [
            keras.Input((5, 8), batch_size=10),
            getattr(layers, kind)(6, stateful=True),
            dense("softmax"),
        ]
    )
    sequences = RNG.normal(size=(40, 5, 8)).astype("float32")
    recurrent = model.layers[0]
    fill(recurrent, 0.5)
    outputs = model.predict(sequences, batch_size=10, verbose=0)
    fill(recurrent, 0.5)
    labels = outputs.argmax(-1)
    labels[::4] = (labels[::4] + 1) % 3
    calibrated = kc.calibrate(
        model, sequences, labels, batch_size=10, verbose=0
    )
    for state in recurrent.states:
        assert (to_numpy(state) == 0.5).all()
    record = kc.calibration_record(calibrated)
    expected = fit_temperature(np.log(outputs), labels).temperature
    assert record["temperature"] == pytest.approx(expected, rel=1e-3)
    assert record["logits_source"] == "before softmax"


MESSAGES = {
    "layer": (lambda: layers.Dense(3), "must be a Keras model.*Sequential"),
    "path": (lambda: "model.keras", "must be a Keras model.*type str"),
    "function": (lambda: print, "must be a Keras model"),
    "nothing": (lambda: None, "must be a Keras model"),
    "module": (lambda: module_of_torch(), "TorchModuleWrapper"),
    "dict of one output": (lambda: dict_of_outputs(1), "keys 'a'"),
    "dict of two outputs": (lambda: dict_of_outputs(2), "keys 'a', 'b'"),
    "subclassed dict": (lambda: SubclassedDict(), "a dict of 2 outputs"),
    "one number": (lambda: functional(*flat()), "one number per sample"),
    "subclassed one number": (lambda: OneNumber(), "one number per sample"),
}


def module_of_torch():
    torch = pytest.importorskip("torch")
    return torch.nn.Sequential(torch.nn.Linear(8, 3))


def dict_of_outputs(count):
    inputs = keras.Input((8,))
    names = "ab"[:count]
    return keras.Model(inputs, {name: dense()(inputs) for name in names})


def flat():
    return layers.Dense(1, "sigmoid"), layers.Reshape(())


class SubclassedDict(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = dense()

    def call(self, x):
        return {"a": self.dense(x), "b": self.dense(x)}


class OneNumber(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1, "sigmoid")

    def call(self, x):
        return self.dense(x)[:, 0]


@pytest.mark.parametrize("name", MESSAGES)
def test_message_says_what_is_wrong_with_the_model(name):
    make, message = MESSAGES[name]
    with pytest.raises(ValueError, match=message):
        kc.calibrate(make(), X, np.minimum(Y, 1), verbose=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("fuse", [False, True], ids=["layer", "fused"])
def test_dicts_of_inputs_are_not_warned_of(nested, fuse):
    def inputs():
        return {
            "a": {"c": keras.Input((4,), name="c")},
            "b": keras.Input((4,), name="b"),
        }

    def network(given):
        joined = layers.Concatenate()([given["a"]["c"], given["b"]])
        return keras.Model(given, dense("softmax")(joined))

    model = network(inputs())
    model.set_weights([KERNEL])
    if nested:
        outer = inputs()
        model = keras.Model(outer, model(outer))
    x = {"a": {"c": X[:, :4]}, "b": X[:, 4:]}
    calibrated = kc.calibrate(model, x, Y, fuse=fuse, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["temperature"] == pytest.approx(EXPECTED, rel=1e-4)


def test_generator_function_is_not_data():
    def data():
        yield X, Y

    model = built(functional(dense()))
    with pytest.raises(ValueError, match=r"pass `data\(\)`"):
        kc.calibrate(model, data, verbose=0)
    calibrated = kc.calibrate(model, data(), verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["temperature"] == pytest.approx(EXPECTED, rel=1e-4)


def test_steps_takes_no_batch_too_many():
    taken = []

    def endless():
        while True:
            taken.append(0)
            yield X, Y

    kc.calibrate(built(functional(dense())), endless(), steps=2, verbose=0)
    assert len(taken) == 2


def test_sequential_without_an_input():
    model = keras.Sequential([dense("softmax")])
    calibrated = kc.calibrate(model, X, Y, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["logits_source"] == "before softmax"


def test_logits_that_are_probabilities_are_refused():
    class Given(keras.Model):
        def call(self, x):
            return x

    probabilities = to_numpy(ops.softmax(X[:, :3]))
    with pytest.raises(ValueError, match="sum to one are probabilities"):
        kc.calibrate(Given(), probabilities, Y, from_logits=True, verbose=0)
    model = built(functional(dense()))
    model.layers[-1].set_weights([np.eye(8)[:, :3]])
    with pytest.raises(ValueError, match="its graph ends without a softmax"):
        kc.calibrate(
            model, np.pad(probabilities, [(0, 0), (0, 5)]), Y, verbose=0
        )
