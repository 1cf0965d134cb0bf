"""Small parts of the models that train networks in their own ways."""

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_calib as kc
from keras_calib.models import _networks
from keras_calib.models._mutual_optimizer import _first_rate
from keras_calib.models._two_parts import last_fraction
from keras_calib.models._two_parts import of_datasets
from tests.helpers import Pieces
from tests.helpers import small_network
from tests.helpers import to_numpy

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = np.arange(8) % 3


class OfUnknownClass(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that no config can make again."""

    def __call__(self, step):
        return 0.25 + 0.0 * ops.cast(step, "float32")

    def get_config(self):
        return {"unknown": 1}


class TestTwoParts:
    def test_both_parts_need_samples(self):
        whole = X, Y
        first, last = last_fraction(whole, 0.25)
        assert len(first[1]) == 6 and len(last[1]) == 2
        for fraction in (0.95, 1e-12):
            with pytest.raises(ValueError, match="both need samples"):
                last_fraction((X[:1], Y[:1]), fraction)

    def test_endless_data_would_have_every_turn(self):
        class Endless(keras.utils.PyDataset):
            num_batches = None

            def __getitem__(self, i):
                return X, Y

        with pytest.raises(ValueError, match="Each part must end"):
            of_datasets(Endless(), Pieces(X, Y))

    def test_loaders_follow_each_other(self):
        torch = pytest.importorskip("torch")
        data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
        loaders = [
            torch.utils.data.DataLoader(data, batch_size=size)
            for size in (3, 4)
        ]
        chained = of_datasets(*loaders)
        assert len(chained) == 5
        found = [(batch[0]["inputs"], batch[1]) for batch in chained]
        for place, values in enumerate((X, Y)):
            rows = np.concatenate([np.asarray(each[place]) for each in found])
            np.testing.assert_array_equal(rows, np.concatenate([values] * 2))


class TestBuild:
    def test_a_wrapped_network_is_built_with_its_own_inputs(self):
        for shape in (
            (None, 4),
            {"inputs": (None, 4), "sample_index": (None,)},
        ):
            network = keras.Sequential([layers.Dense(3)])
            model = kc.models.SampleHistoryModel(network, num_samples=8)
            assert not model.built
            model.build(shape)
            assert model.built and network.count_params() == 15
            weights = network.get_weights()
            model.build(shape)
            np.testing.assert_array_equal(network.get_weights()[0], weights[0])

    def test_networks_that_are_built_stay_as_they_are(self):
        fresh = keras.Sequential([layers.Dense(3)])
        ready = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
        weights = ready.get_weights()
        pair = kc.models.MutualLearning(ready, fresh, from_logits=True)
        assert pair.output_kind == "logits"
        pair.build((None, 4))
        assert fresh.built
        np.testing.assert_array_equal(ready.get_weights()[0], weights[0])

    def test_shapes_of_several_inputs(self):
        shapes = {"a": (None, 2), "b": [(None, 3), (None, 4)]}
        found = _networks.symbolic(shapes, "float16")
        assert found["a"].shape == (None, 2) and found["a"].dtype == "float16"
        assert [each.shape for each in found["b"]] == [(None, 3), (None, 4)]

    def test_a_model_that_is_not_built_is_compiled_from_its_config(self):
        def pair():
            return kc.models.MutualLearning(
                *(keras.Sequential([layers.Dense(3)]) for _ in range(2)),
                from_logits=True,
            )

        model = pair()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss)
        again = pair()
        again.compile_from_config(model.get_compile_config())
        assert not again.built and not again.optimizer.built
        again.build((None, 4))
        again.compile_from_config(model.get_compile_config())
        assert again.optimizer.built


class TestScores:
    def test_yes_and_no_of_probabilities(self):
        p = np.array([[0.25], [1.0]], "float32")
        yes, no = (
            to_numpy(part) for part in _networks.log_yes_and_no(p, False)
        )
        np.testing.assert_allclose(yes[:, 0], np.log([0.25, 1.0]), atol=1e-7)
        assert no[0, 0] == pytest.approx(np.log(0.75), rel=1e-6)
        # What rounds to 1 is a quarter of a step below it on average.
        assert no[1, 0] == pytest.approx(-26 * np.log(2), rel=1e-6)
        logits = np.log(p[:1]) - np.log(1 - p[:1])
        for a, b in zip(
            _networks.log_yes_and_no(p[:1], False),
            _networks.log_yes_and_no(logits, True),
            strict=True,
        ):
            np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=1e-5)

    def test_a_softmax_is_no_logits(self):
        outputs = small_network(3, inputs=4, activation="softmax")(X)
        with pytest.raises(ValueError, match="output of a softmax or sigmoid"):
            _networks.log_yes_and_no(outputs, True)


def test_the_rate_of_a_schedule_that_cannot_be_made_again():
    optimizer = keras.optimizers.SGD(OfUnknownClass())
    assert _first_rate(optimizer) == 0.25


def test_a_loss_scale_of_the_pair_is_that_of_both():
    for given, expected in ((None, 8.0), (32.0, 32.0)):
        optimizer = kc.models.MutualOptimizer(
            keras.optimizers.SGD(0.1),
            keras.optimizers.SGD(0.1, loss_scale_factor=8.0),
            loss_scale_factor=given,
        )
        assert optimizer.loss_scale_factor == expected


class TestMonteCarloDropout:
    def test_an_input_may_be_missing(self):
        class Optional(keras.Model):
            def __init__(self):
                super().__init__()
                self.dropout = layers.Dropout(0.5)
                self.dense = layers.Dense(3)

            def call(self, inputs, training=None):
                x, more = inputs
                x = x if more is None else x + more
                return self.dense(self.dropout(x, training=training))

        network = Optional()
        network([X, X])
        model = kc.models.MonteCarloDropout(
            network, num_masks=2, from_logits=True
        )
        assert model([X, None]).shape == (8, 3)

    def test_a_call_of_ones_own_is_put_back(self):
        network = keras.Sequential(
            [keras.Input((4,)), layers.Dropout(0.5), layers.Dense(3)]
        )
        dropout, seen = network.layers[0], []
        own = dropout.call

        def watched(inputs, training=None):
            seen.append(training)
            return own(inputs, training=training)

        dropout.call = watched
        model = kc.models.MonteCarloDropout(
            network, num_masks=2, from_logits=True
        )
        model(X)
        assert seen and all(seen)
        assert dropout.call is watched
