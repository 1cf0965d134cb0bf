"""DeepEnsemble and MonteCarloDropout: models like any other."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.models._monte_carlo_dropout import _dropouts
from tests.helpers import to_numpy


def network(seed=0, activation=None, classes=10, rate=0.5):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(rate),
            keras.layers.Dense(classes, activation=activation),
        ]
    )


def trained(digits, seed=0, **kwargs):
    model = network(seed, **kwargs)
    from_logits = model.layers[-1].activation is keras.activations.linear
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits),
    )
    model.fit(*digits[0], batch_size=100, epochs=3, verbose=0)
    return model


def softmax(z):
    z = np.exp(z - z.max(axis=-1, keepdims=True))
    return z / z.sum(axis=-1, keepdims=True)


def measured(model, data):
    model.compile(
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy", kc.metrics.ExpectedCalibrationError(name="ece")],
    )
    return model.evaluate(*data, verbose=0, return_dict=True)


class TestDeepEnsemble:
    @pytest.mark.parametrize("activation", [None, "softmax"])
    def test_is_the_mean_of_probabilities(self, digits, activation):
        x, y = digits[2]
        members = [network(seed, activation) for seed in range(3)]
        outputs = [member.predict(x, verbose=0) for member in members]
        if activation is None:
            outputs = [softmax(z) for z in outputs]
        expected = np.mean(outputs, axis=0)
        ensemble = kc.models.DeepEnsemble(members)
        np.testing.assert_allclose(
            ensemble.predict(x, verbose=0), expected, atol=1e-6
        )
        found = measured(ensemble, (x, y))
        chosen = expected[np.arange(len(y)), y]
        assert found["loss"] == pytest.approx(-np.log(chosen).mean(), rel=1e-5)
        correct = expected.argmax(-1) == y
        assert found["accuracy"] == pytest.approx(correct.mean())

    def test_one_sigmoid_unit(self, digits):
        # One column comes out, as every Keras loss and metric expects it.
        x = digits[2][0]
        members = [network(seed, "sigmoid", classes=1) for seed in range(2)]
        expected = np.mean([m.predict(x, verbose=0) for m in members], axis=0)
        found = to_numpy(kc.models.DeepEnsemble(members)(x))
        assert found.shape == (len(x), 1)
        np.testing.assert_allclose(found, expected, atol=1e-6)

    def test_tail_of_a_confident_ensemble_is_kept(self):
        # Both members give class 1 a probability that float32 rounds to 0.
        members = []
        for gap in (200.0, 210.0):
            member = keras.Sequential(
                [keras.Input((1,)), keras.layers.Dense(2, use_bias=False)]
            )
            member.set_weights([np.array([[gap, 0.0]])])
            members.append(member)
        ensemble = kc.models.DeepEnsemble(members)
        ensemble.compile(loss=kc.losses.FocalLoss(gamma=0.0))
        loss = ensemble.evaluate(np.ones((1, 1)), np.array([1]), verbose=0)
        if keras.backend.backend() == "jax":
            # Traced arrays cannot carry the logits: the floor of `log p`.
            assert loss == pytest.approx(-np.log(1.1754944e-38), abs=1e-3)
        else:
            assert loss == pytest.approx(200 + np.log(2), abs=1e-3)

    def test_round_trip(self, digits, tmp_path):
        x, _ = digits[2]
        ensemble = kc.models.DeepEnsemble([network(0), network(1)])
        ensemble.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        assert np.array_equal(to_numpy(again(x)), to_numpy(ensemble(x)))

    @pytest.mark.slow
    def test_calibrate_and_files(self, digits, tmp_path):
        members = [trained(digits, seed) for seed in range(2)]
        ensemble = kc.models.DeepEnsemble(members)
        before = measured(ensemble, digits[1])
        calibrated = kc.calibrate(
            ensemble, *digits[1], from_logits=False, verbose=0
        )
        after = measured(calibrated, digits[1])
        assert after["loss"] < before["loss"]
        assert after["accuracy"] == before["accuracy"]
        for model in (ensemble, calibrated):
            model.save(tmp_path / "model.keras")
            again = keras.saving.load_model(tmp_path / "model.keras")
            np.testing.assert_allclose(
                again.predict(digits[2][0], verbose=0),
                model.predict(digits[2][0], verbose=0),
                atol=1e-6,
            )

    def test_errors(self):
        with pytest.raises(ValueError, match="none"):
            kc.models.DeepEnsemble([])
        with pytest.raises(ValueError, match="same classes"):
            kc.models.DeepEnsemble([network(), network(classes=7)])
        with pytest.raises(ValueError, match="member 1 softmax"):
            kc.models.DeepEnsemble([network(), network(activation="softmax")])
        member = network()
        with pytest.raises(ValueError, match="are the same network"):
            kc.models.DeepEnsemble([member, member])

    def test_subclassed_members(self):
        class Subclassed(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(3)

            def call(self, x):
                return self.dense(x)

        members = [Subclassed(), Subclassed()]
        with pytest.raises(ValueError, match="from_logits="):
            kc.models.DeepEnsemble(members)
        ensemble = kc.models.DeepEnsemble(members, from_logits=True)
        x = np.ones((4, 5), "float32")
        p = ensemble.predict(x, verbose=0)
        expected = [softmax(m.predict(x, verbose=0)) for m in members]
        np.testing.assert_allclose(p, np.mean(expected, axis=0), atol=1e-6)


class TestMonteCarloDropout:
    def test_mean_and_spread_are_those_of_dropout(self):
        # One input of 1 and logits (w d, 0), where d is 0 or 2 with equal
        # chance: the mean probability is (1/2 + sigmoid(2 w)) / 2.
        model = keras.Sequential(
            [
                keras.Input((1,)),
                keras.layers.Dropout(0.5, seed=1),
                keras.layers.Dense(2, use_bias=False),
            ]
        )
        model.set_weights([np.array([[1.5, 0.0]])])
        sampled = kc.models.MonteCarloDropout(model, num_masks=400)
        p = sampled.predict(np.ones((50, 1)), verbose=0)[:, 0]
        high = 1 / (1 + np.exp(-3.0))
        # 20,000 draws; each sample of the batch has masks of its own.
        assert p.mean() == pytest.approx((0.5 + high) / 2, abs=0.006)
        assert p.std() == pytest.approx((high - 0.5) / 2 / 20, rel=0.4)

    def test_only_dropout_is_random(self, digits):
        # Batch normalization and noise stay in inference.
        x = digits[2][0][:100]
        model = network(rate=0.5)
        layers = [*model.layers[:3], keras.layers.GaussianNoise(1.0)]
        quiet = keras.Sequential(
            [keras.Input((64,)), *layers, keras.layers.Dropout(1e-9)]
        )
        statistics = [to_numpy(v) + 0 for v in model.layers[1].variables]
        sampled = kc.models.MonteCarloDropout(
            quiet, num_masks=4, from_logits=True
        )
        expected = softmax(quiet.predict(x, verbose=0))
        found = to_numpy(sampled(x))
        np.testing.assert_allclose(found, expected, atol=1e-6)
        for old, new in zip(statistics, model.layers[1].variables, strict=True):
            assert np.array_equal(old, to_numpy(new))
        # Afterwards the network is what it was.
        np.testing.assert_array_equal(to_numpy(model(x)), to_numpy(model(x)))

    @pytest.mark.slow
    def test_more_samples_vary_less(self, digits):
        x = digits[2][0][:100]
        model = network()

        def spread(num_masks):
            sampled = kc.models.MonteCarloDropout(model, num_masks=num_masks)
            runs = [to_numpy(sampled(x)) for _ in range(5)]
            return np.std(runs, axis=0).mean()

        assert spread(64) < 0.4 * spread(2)

    @pytest.mark.slow
    def test_calibrate_fit_and_files(self, digits, tmp_path):
        model = trained(digits)
        sampled = kc.models.MonteCarloDropout(model, num_masks=30)
        before = measured(sampled, digits[1])
        assert before["accuracy"] > 0.7
        calibrated = kc.calibrate(
            sampled, *digits[1], from_logits=False, verbose=0
        )
        after = measured(calibrated, digits[1])
        assert after["loss"] < before["loss"] + 0.02
        # Dropout makes one epoch as good as the next: five are better.
        losses = sampled.fit(*digits[0], epochs=6, verbose=0).history["loss"]
        assert losses[-1] < losses[0]
        sampled.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        assert again.num_masks == 30
        x = digits[2][0]
        np.testing.assert_allclose(
            to_numpy(again.model(x)), to_numpy(model(x)), atol=1e-6
        )
        difference = to_numpy(again(x)) - to_numpy(sampled(x))
        assert np.abs(difference).mean() < 0.05

    def test_dropout_inside_other_layers(self):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((6, 8))
        x = keras.layers.MultiHeadAttention(2, 4, dropout=0.5)(inputs, inputs)
        x = keras.layers.LSTM(8, dropout=0.5)(x)
        inner = keras.Sequential([keras.layers.SpatialDropout1D(0.5)])
        x = inner(keras.layers.Reshape((1, 8))(x))
        x = keras.layers.Flatten()(x)
        model = keras.Model(inputs, keras.layers.Dense(3)(x))
        found = _dropouts(model)
        names = sorted(type(layer).__name__ for layer in found)
        assert names == ["Dropout", "LSTM", "LSTMCell", "SpatialDropout1D"]
        sampled = kc.models.MonteCarloDropout(model, num_masks=3)
        x = np.ones((2, 6, 8), "float32")
        first, second = (to_numpy(sampled(x)) for _ in range(2))
        assert np.abs(first - second).max() > 1e-4

    def test_errors(self):
        with pytest.raises(ValueError, match="no dropout layer"):
            kc.models.MonteCarloDropout(network(rate=0.0))
        with pytest.raises(ValueError, match="num_masks=0"):
            kc.models.MonteCarloDropout(network(), num_masks=0)


def test_fit_of_an_ensemble_warns_that_members_are_trained_alone(digits):
    ensemble = kc.models.DeepEnsemble([network(0), network(1)])
    ensemble.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.warns(UserWarning, match="Call `fit` of each member"):
        ensemble.fit(*digits[0], verbose=0)
