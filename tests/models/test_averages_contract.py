"""Averages keep masks and shapes, and ask where a network's end is unclear."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_calib as kc
from keras_calib.keras_graph.endings import output_kind
from keras_calib.models._networks import _kind
from tests.helpers import to_numpy

TOKENS = np.array([[1, 2, 3, 0], [4, 0, 0, 0], [2, 2, 0, 0], [3, 1, 4, 2]])
TAGS = np.array([[0, 1, 2, 0], [1, 0, 0, 0], [2, 0, 0, 0], [1, 1, 2, 0]])
VALID = TOKENS != 0


def softmax(z):
    z = np.exp(z - z.max(axis=-1, keepdims=True))
    return z / z.sum(axis=-1, keepdims=True)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def tagger(seed=0, rate=0.0, activation="softmax", length=4):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((length,), dtype="int32"),
            layers.Embedding(5, 8, mask_zero=True),
            layers.Dropout(rate),
            layers.Dense(3, activation),
        ]
    )


def dense(seed=0, units=3, activation=None, *after):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(units, activation), *after]
    )


def averages(members):
    """An ensemble, and Monte Carlo dropout that drops next to nothing."""
    dropping = keras.Sequential(
        [*members[0].layers[:-1], layers.Dropout(1e-9), members[0].layers[-1]]
    )
    dropping.build(members[0].input_shape)
    return {
        "ensemble": (kc.models.DeepEnsemble(members), members),
        "dropout": (
            kc.models.MonteCarloDropout(dropping, num_masks=5),
            members[:1],
        ),
    }


@pytest.mark.parametrize("kind", ["ensemble", "dropout"])
@pytest.mark.parametrize("length", [4, None])
def test_masks_reach_losses_and_metrics(kind, length):
    members = [tagger(seed, length=length) for seed in range(3)]
    model, used = averages(members)[kind]
    expected = np.mean([m.predict(TOKENS, verbose=0) for m in used], axis=0)
    model.compile(
        loss="sparse_categorical_crossentropy", weighted_metrics=["accuracy"]
    )
    found = model.evaluate(
        TOKENS,
        TAGS,
        sample_weight=np.ones(TAGS.shape),
        verbose=0,
        return_dict=True,
    )
    chosen = np.take_along_axis(expected, TAGS[..., None], -1)[..., 0]
    assert found["loss"] == pytest.approx(-np.log(chosen)[VALID].mean(), 1e-5)
    correct = (expected.argmax(-1) == TAGS)[VALID]
    assert found["accuracy"] == pytest.approx(correct.mean())
    mask = kc.keras_private.keras_mask(model(TOKENS))
    np.testing.assert_array_equal(to_numpy(mask), VALID)


def test_a_row_counts_where_every_member_counts_it():
    first, second = tagger(), tagger(1)
    shifted = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            layers.Lambda(lambda x: x - 1, output_shape=(4,)),
            *second.layers,
        ]
    )
    model = kc.models.DeepEnsemble([first, shifted])
    mask = kc.keras_private.keras_mask(model(np.maximum(TOKENS, 1)))
    expected = np.maximum(TOKENS, 1) > 1
    np.testing.assert_array_equal(to_numpy(mask), expected)


class Normalized(layers.Dense):
    """A Dense layer that is no longer one."""

    def call(self, inputs):
        return keras.ops.softmax(super().call(inputs))


class Softmax(layers.Layer):
    """A name is not a class."""

    def call(self, inputs):
        return 2.0 * inputs


class TestEnds:
    """A network whose end is not known is never guessed to give logits."""

    HIDDEN = {
        "reshape": (layers.Reshape((3, 1)), layers.Reshape((3,))),
        "rescaling": (layers.Rescaling(1.0),),
        "lambda": (layers.Lambda(lambda x: x, output_shape=(3,)),),
    }

    @pytest.mark.parametrize("name", HIDDEN)
    def test_a_softmax_behind_something_is_asked_for(self, name):
        members = [
            dense(seed, 3, "softmax", *self.HIDDEN[name]) for seed in (0, 1)
        ]
        with pytest.raises(ValueError, match="Pass `from_logits=`"):
            kc.models.DeepEnsemble(members)
        ensemble = kc.models.DeepEnsemble(members, from_logits=False)
        x = np.random.default_rng(0).normal(size=(6, 4))
        expected = np.mean([m.predict(x, verbose=0) for m in members], axis=0)
        np.testing.assert_allclose(
            ensemble.predict(x, verbose=0), expected, atol=1e-6
        )

    def test_ends_that_are_known_through_other_layers(self):
        x = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
        inputs = keras.Input((4,))
        parts = [layers.Dense(3, "softmax")(inputs) for _ in range(2)]
        mixture = keras.Model(inputs, layers.Average()(parts))
        quiet = dense(0, 3, "softmax", layers.Dropout(0.5))
        for model in (mixture, quiet):
            found = kc.models.DeepEnsemble([model]).predict(x, verbose=0)
            expected = model.predict(x, verbose=0)
            np.testing.assert_allclose(found, expected, atol=1e-6)
        inputs = keras.Input((4, 1))
        outputs = layers.TimeDistributed(layers.Dense(3, "softmax"))(inputs)
        model = keras.Model(inputs, outputs)
        found = kc.models.DeepEnsemble([model]).predict(x[..., None], verbose=0)
        expected = model.predict(x[..., None], verbose=0)
        np.testing.assert_allclose(found, expected, atol=1e-6)

    def test_averages_and_pairs_say_what_they_give(self):
        kind = output_kind
        ensemble = kc.models.DeepEnsemble([dense(), dense(1)])
        assert kind(ensemble) == "probabilities"
        # So an ensemble of ensembles needs no word, nor does `kc.calibrate`.
        other = kc.models.DeepEnsemble([dense(2)])
        both = kc.models.DeepEnsemble([ensemble, other])
        x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
        expected = np.mean(
            [m.predict(x, verbose=0) for m in (ensemble, other)], axis=0
        )
        np.testing.assert_allclose(
            both.predict(x, verbose=0), expected, atol=1e-6
        )
        y = np.arange(60) % 3
        told = kc.calibrate(ensemble, x, y, from_logits=False, verbose=0)
        found = kc.calibrate(ensemble, x, y, verbose=0)
        np.testing.assert_allclose(
            found.predict(x, verbose=0), told.predict(x, verbose=0), atol=1e-6
        )
        assert kind(kc.models.DiffDML(dense(), dense(1))) == "logits"
        softmaxes = [dense(i, 3, "softmax") for i in range(2)]
        assert kind(kc.models.DiffDML(*softmaxes)) == "probabilities"
        assert kind(kc.models.InterleavedTraining(dense())) == "logits"

    def test_one_unknown_member_is_enough(self):
        unknown = dense(0, 3, None, layers.Rescaling(1.0))
        with pytest.raises(ValueError, match=r"Received: member 1\. Pass"):
            kc.models.DeepEnsemble([dense(), unknown])

    def test_monte_carlo_dropout_asks_too(self):
        model = dense(
            0, 3, "softmax", layers.Rescaling(1.0), layers.Dropout(0.5)
        )
        with pytest.raises(ValueError, match="Pass `from_logits=`"):
            kc.models.MonteCarloDropout(model)

    def test_known_ends(self):
        kind = _kind
        inputs = keras.Input((4,))
        logits = layers.Dense(3)(inputs)
        ends = {
            "logits": [
                logits,
                layers.Identity()(logits),
                layers.Activation("linear")(logits),
                layers.Dense(3, "log_softmax")(inputs),
                dense()(inputs),
                kc.layers.TemperatureScaling()(logits),
            ],
            "softmax": [
                layers.Softmax()(logits),
                layers.Activation("softmax")(logits),
                keras.ops.softmax(logits),
                dense(0, 3, "softmax")(inputs),
            ],
            "sigmoid": [
                keras.ops.sigmoid(logits),
                layers.Dense(1, "sigmoid")(inputs),
            ],
            None: [
                layers.Dense(3, "relu")(inputs),
                layers.Dense(3, lambda x: keras.ops.softmax(x))(inputs),
                layers.LSTM(3)(layers.Reshape((2, 2))(inputs)),
                layers.SimpleRNN(3, "softmax")(layers.Reshape((2, 2))(inputs)),
                layers.Reshape((3, 1))(logits),
                Normalized(3)(inputs),
                Softmax()(logits),
            ],
        }
        for expected, tensors in ends.items():
            found = [kind(keras.Model(inputs, tensor)) for tensor in tensors]
            assert found == [expected] * len(tensors)

    @pytest.mark.parametrize("activation", [None, "softmax"])
    def test_what_is_said_and_what_is_there(self, activation):
        members = [dense(0, 3, activation), dense(1, 3, activation)]
        wrong = activation is not None
        with pytest.raises(ValueError, match=f"from_logits={wrong}, and as"):
            kc.models.DeepEnsemble(members, from_logits=wrong)
        pair = kc.models.DiffDML(*members, from_logits=wrong)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=wrong)
        with pytest.raises(ValueError, match=f"from_logits={wrong}, and as"):
            pair.compile("sgd", loss)

    def test_things_that_are_no_classifiers(self):
        inputs = keras.Input((4,))
        parts = [layers.Dense(3)(inputs), layers.Dense(3)(inputs)]
        with pytest.raises(ValueError, match=r"one output.*member 0"):
            kc.models.DeepEnsemble([keras.Model(inputs, parts)])
        with pytest.raises(ValueError, match="as a tensor"):
            kc.models.DeepEnsemble([keras.Model(inputs, {"a": parts[0]})])
        with pytest.raises(ValueError, match=r"`keras\.Model` objects"):
            kc.models.DeepEnsemble([dense(), "resnet.keras"])
        with pytest.raises(ValueError, match="list of members"):
            kc.models.DeepEnsemble(dense())
        with pytest.raises(ValueError, match="always 1"):
            kc.models.DeepEnsemble([dense(0, 1, "softmax")])


class TestSigmoids:
    @pytest.mark.parametrize("kind", ["ensemble", "dropout"])
    @pytest.mark.parametrize("activation", [None, "sigmoid"])
    def test_one_unit_stays_one(self, kind, activation):
        members = [
            keras.Sequential([keras.Input((4,)), *dense(seed, 8).layers, head])
            for seed in range(3)
            for head in [layers.Dense(1, activation)]
        ]
        x = np.random.default_rng(0).normal(size=(40, 4))
        y = (np.arange(40) % 2).astype("float32")
        model, used = averages(members)[kind]
        outputs = [m.predict(x, verbose=0) for m in used]
        if activation is None:
            outputs = [sigmoid(z) for z in outputs]
        expected = np.mean(outputs, axis=0)
        np.testing.assert_allclose(
            model.predict(x, verbose=0), expected, atol=1e-6
        )
        model.compile(loss="binary_crossentropy", metrics=["accuracy"])
        found = model.evaluate(x, y, verbose=0, return_dict=True)
        p = np.where(y == 1, expected[:, 0], 1 - expected[:, 0])
        assert found["loss"] == pytest.approx(-np.log(p).mean(), rel=1e-4)
        assert found["accuracy"] == pytest.approx((p > 0.5).mean())

    def test_several_units_are_refused_or_averaged_one_by_one(self):
        members = [dense(seed, 3, "sigmoid") for seed in range(2)]
        with pytest.raises(ValueError, match="`multi_label=True`"):
            kc.models.DeepEnsemble(members)
        with pytest.raises(ValueError, match="`multi_label=True`"):
            kc.models.DeepEnsemble(members, from_logits=False)
        x = np.random.default_rng(0).normal(size=(40, 4))
        expected = np.mean([m.predict(x, verbose=0) for m in members], axis=0)
        ensemble = kc.models.DeepEnsemble(members, multi_label=True)
        found = ensemble.predict(x, verbose=0)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        dropping = dense(0, 3, None, layers.Dropout(1e-9))
        sampled = kc.models.MonteCarloDropout(
            dropping, num_masks=4, multi_label=True, from_logits=True
        )
        np.testing.assert_allclose(
            sampled.predict(x, verbose=0),
            sigmoid(dropping.predict(x, verbose=0)),
            atol=1e-6,
        )
        with pytest.raises(ValueError, match="ends in a softmax"):
            kc.models.DeepEnsemble([dense(0, 3, "softmax")], multi_label=True)

    def test_files_keep_multi_label(self, tmp_path):
        members = [dense(seed, 3, "sigmoid") for seed in range(2)]
        ensemble = kc.models.DeepEnsemble(members, multi_label=True)
        ensemble.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        x = np.ones((2, 4), "float32")
        assert np.array_equal(to_numpy(again(x)), to_numpy(ensemble(x)))

    def test_saturated_units(self):
        # float32 rounds 1 - sigmoid(100) to 0; the mean must stay finite.
        member = dense(0, 2, "sigmoid")
        member.set_weights([np.full((4, 2), 100.0), np.zeros(2)])
        model = kc.models.DeepEnsemble([member], multi_label=True)
        x = np.array([[1.0] * 4, [-1.0] * 4])
        found = model.predict(x, verbose=0)
        np.testing.assert_allclose(found, [[1, 1], [0, 0]], atol=1e-6)


def varies(model, x, **kwargs):
    """Spread of predictions over calls, and over equal samples of one call."""
    sampled = kc.models.MonteCarloDropout(
        model, num_masks=2, from_logits=True, **kwargs
    )
    calls = np.stack([to_numpy(sampled(x)) for _ in range(3)])
    return np.ptp(calls, axis=0).max(), np.ptp(calls, axis=1).max()


def pooled(make):
    """A network with an attention or recurrent layer in its middle."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 8))
    x = make(inputs)
    if len(x.shape) == 3:
        x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(3)(x))


DROPPING = {
    "Dropout": lambda x: layers.Dropout(0.5)(x),
    "SpatialDropout1D": lambda x: layers.SpatialDropout1D(0.5)(x),
    "AlphaDropout": lambda x: layers.AlphaDropout(0.5)(x),
    "GaussianDropout": lambda x: layers.GaussianDropout(0.5)(x),
    "Attention": lambda x: layers.Attention(dropout=0.5)([x, x]),
    "AdditiveAttention": lambda x: layers.AdditiveAttention(dropout=0.5)(
        [x, x]
    ),
    "MultiHeadAttention": lambda x: layers.MultiHeadAttention(
        2, 4, dropout=0.5
    )(x, x),
    "GroupQueryAttention": lambda x: layers.GroupQueryAttention(
        4, 2, 1, dropout=0.5
    )(x, x),
    "LSTM": lambda x: layers.LSTM(8, dropout=0.5)(x),
    "GRU recurrent": lambda x: layers.GRU(8, recurrent_dropout=0.5)(x),
    "SimpleRNN": lambda x: layers.SimpleRNN(8, dropout=0.5)(x),
    "RNN of a cell": lambda x: layers.RNN(layers.LSTMCell(8, dropout=0.5))(x),
    "stacked": lambda x: layers.RNN(
        layers.StackedRNNCells(
            [layers.GRUCell(8), layers.LSTMCell(8, recurrent_dropout=0.5)]
        )
    )(x),
    "list of cells": lambda x: layers.RNN(
        [layers.SimpleRNNCell(8, dropout=0.5), layers.GRUCell(8)]
    )(x),
    "Bidirectional": lambda x: layers.Bidirectional(
        layers.LSTM(4, dropout=0.5)
    )(x),
    "TimeDistributed": lambda x: layers.TimeDistributed(layers.Dropout(0.5))(x),
    "nested": lambda x: keras.Sequential(
        [layers.Dense(8), layers.Dropout(0.5)]
    )(x),
}


@pytest.mark.parametrize("name", DROPPING)
def test_every_dropout_of_keras_is_switched_on(name):
    x = np.tile(np.random.default_rng(0).normal(size=(1, 6, 8)), (5, 1, 1))
    over_calls, over_samples = varies(pooled(DROPPING[name]), x)
    assert over_calls > 1e-3
    assert over_samples > 1e-3


QUIET = {
    "GaussianNoise": lambda x: layers.GaussianNoise(1.0)(x),
    "a stack that keeps all": lambda x: layers.RNN(
        layers.StackedRNNCells([layers.GRUCell(8), layers.GRUCell(8)])
    )(x),
    "Attention": lambda x: layers.Attention()([x, x]),
}


@pytest.mark.parametrize("name", QUIET)
def test_other_noise_stays_off(name):
    def make(inputs):
        return layers.Dropout(1e-9)(QUIET[name](inputs))

    x = np.random.default_rng(0).normal(size=(3, 6, 8))
    assert varies(pooled(make), x)[0] == 0.0
    with pytest.raises(ValueError, match="no dropout layer"):
        kc.models.MonteCarloDropout(pooled(QUIET[name]))


@pytest.mark.parametrize("layer", [layers.Dropout, layers.AlphaDropout])
def test_a_mask_for_all_samples_is_drawn_anew_for_each_draw(layer):
    # One mask for the batch: equal samples get equal predictions, and each of
    # the draws another one. Logits (w d, 0) as in the test of `Dropout`.
    model = keras.Sequential(
        [
            keras.Input((1,)),
            layers.Dropout(0.5, noise_shape=(1, 1), seed=1),
            layers.Dense(2, use_bias=False),
        ]
    )
    model.set_weights([np.array([[1.5, 0.0]])])
    sampled = kc.models.MonteCarloDropout(model, num_masks=200)
    p = to_numpy(sampled(np.ones((4, 1))))[:, 0]
    np.testing.assert_allclose(p, p[0], atol=1e-6)
    high = sigmoid(3.0)
    # 200 draws: standard error 0.016.
    assert p[0] == pytest.approx((0.5 + high) / 2, abs=0.06)
    other = keras.Sequential(
        [keras.Input((1,)), layer(0.5, noise_shape=(3, 1)), layers.Dense(2)]
    )
    found = kc.models.MonteCarloDropout(other, num_masks=3)(np.ones((3, 1)))
    assert found.shape == (3, 2)


def test_stateful_layers_are_refused():
    inputs = keras.Input(batch_shape=(2, 6, 8))
    x = layers.LSTM(4, dropout=0.5, stateful=True)(inputs)
    model = keras.Model(inputs, layers.Dense(3)(x))
    with pytest.raises(ValueError, match="stateful=True"):
        kc.models.MonteCarloDropout(model)


def test_an_unbuilt_network_samples_in_its_first_call():
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.attention = layers.MultiHeadAttention(2, 4, dropout=0.5)
            self.dense = layers.Dense(3)

        def call(self, x):
            return self.dense(self.attention(x, x)[:, 0])

    sampled = kc.models.MonteCarloDropout(
        Subclassed(), num_masks=2, from_logits=True
    )
    x = np.tile(np.random.default_rng(0).normal(size=(1, 6, 8)), (5, 1, 1))
    assert np.ptp(sampled.predict(x, verbose=0), axis=0).max() > 1e-3
    assert np.ptp(to_numpy(sampled(x)), axis=0).max() > 1e-3


def test_empty_batches():
    x = np.zeros((0, 4), "float32")
    ensemble = kc.models.DeepEnsemble([dense(), dense(1)])
    assert ensemble(x).shape == (0, 3)
    dropping = dense(0, 3, None, layers.Dropout(0.5))
    sampled = kc.models.MonteCarloDropout(dropping, from_logits=True)
    assert sampled(x).shape == (0, 3)


def test_options_are_keywords():
    with pytest.raises(TypeError):
        kc.models.DeepEnsemble([dense()], True)
    with pytest.raises(TypeError):
        kc.models.MonteCarloDropout(dense(), 4)


def test_members_are_calibrated_and_their_average_is_not():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4)).astype("float32")
    y = (x[:, 0] + rng.normal(size=400) > 0).astype(int)
    members = [
        kc.calibrate(
            keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]),
            x,
            y,
            verbose=0,
        )
        for _ in range(2)
    ]
    average = kc.models.DeepEnsemble(members)
    for function in (kc.calibration_record, kc.model_card):
        with pytest.raises(ValueError, match="no calibration layer"):
            function(average)
    whole = kc.calibrate(average, x[:300], y[:300], verbose=0)
    assert kc.calibration_record(whole)["num_samples"] == 300
