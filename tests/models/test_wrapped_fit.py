"""`fit` of the models around a model takes what Keras' `fit` takes."""

import inspect

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.calibration.networks import Subclassed
from tests.helpers import Pieces
from tests.helpers import small_network
from tests.helpers import to_numpy

SIZE = 60


@pytest.fixture
def data(digits):
    x, y = digits[0]
    return x[:SIZE], y[:SIZE]


class Count(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(dict(logs))


def interleaved(rate=0.0, **kwargs):
    model = kc.models.InterleavedTraining(small_network(), **kwargs)
    loss = kc.losses.MarginLabelSmoothing(margin=0.5, from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss)
    return model


def remembering(rate=0.0):
    model = kc.models.SampleHistoryModel(small_network(), num_samples=SIZE)
    loss = kc.losses.CRL(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss, metrics=["accuracy"])
    return model


@pytest.mark.parametrize("cls", ["InterleavedTraining", "SampleHistoryModel"])
def test_a_subclassed_network_is_built_without_a_word(cls, data, recwarn):
    x, y = data
    if cls == "InterleavedTraining":
        model = kc.models.InterleavedTraining(Subclassed())
        loss = kc.losses.MarginLabelSmoothing(from_logits=True)
    else:
        model = kc.models.SampleHistoryModel(Subclassed(), num_samples=SIZE)
        loss = kc.losses.CRL(from_logits=True)
        x = kc.add_sample_index(x)
    model.compile("sgd", loss)
    model.fit(x, y % 3, verbose=0)
    assert not [each for each in recwarn if "build" in str(each.message)]


def test_history_takes_positional_arguments(data):
    model, count = remembering(), Count()
    x = kc.add_sample_index(data[0])
    # batch_size, epochs, verbose, callbacks, validation_split, validation_data.
    model.fit(x, data[1], 16, 2, 0, [count], 0.0, data)
    assert len(count.epochs) == 2 and "val_loss" in count.epochs[0]
    np.testing.assert_array_equal(model.sample_history()["seen"], 2.0)
    model = kc.models.SampleHistoryModel(small_network(), num_samples=10)
    model.compile("sgd", kc.losses.CRL(from_logits=True))
    with pytest.raises(ValueError, match="holds 10"):
        model.fit(x, data[1], 16)


def test_strays_are_found_behind_a_callback_list(data):
    model = kc.models.SampleHistoryModel(small_network(), num_samples=10)
    model.compile("sgd", kc.losses.CRL(from_logits=True))
    callbacks = keras.callbacks.CallbackList(
        [Count()], model=model, epochs=1, verbose=0, steps=2
    )
    with pytest.raises(ValueError, match=r"[Hh]istory"):
        model.fit(
            kc.add_sample_index(Pieces(*data)), verbose=0, callbacks=callbacks
        )


def test_a_sample_twice_in_a_batch(data):
    x, y = data
    index = np.array([3, 3, 5, 3, 5, 7])
    model = remembering()
    network = model.model
    p = to_numpy(keras.ops.softmax(network.predict(x[:6], verbose=0)))
    for _ in range(2):
        model.fit(
            {"inputs": x[:6], "sample_index": index},
            y[:6],
            batch_size=6,
            verbose=0,
        )
    found = model.sample_history()
    confidence = p.max(-1)
    expected = {
        3: confidence[[0, 1, 3]].mean(),
        5: confidence[[2, 4]].mean(),
        7: confidence[5],
    }
    for i, value in expected.items():
        assert found["confidence"][i] == pytest.approx(value, abs=1e-6)
    assert found["seen"][[3, 5, 7]].tolist() == [6, 4, 2]


def test_interleaved_has_the_signature_of_keras():
    ours = list(inspect.signature(kc.models.InterleavedTraining.fit).parameters)
    theirs = list(inspect.signature(keras.Model.fit).parameters)
    assert ours == [*theirs, "penalty_data"]


def test_interleaved_takes_positional_arguments(data):
    model, count = interleaved(), Count()
    model.fit(*data, 16, 2, 0, [count])
    assert len(count.epochs) == 2


def test_interleaved_validation_split(data):
    # The last quarter, as in Keras; the penalty's share is of the rest.
    model = interleaved(penalty_split=0.2)
    logs = model.fit(*data, validation_split=0.25, verbose=0).history
    x, y = data
    last = (x[45:], y[45:])
    assert logs["val_loss"][0] == pytest.approx(
        model.evaluate(*last, verbose=0, return_dict=True)["loss"], rel=1e-5
    )
    (a, _), (b, _) = model._split((x[:45], y[:45]), None)
    assert (len(a), len(b)) == (36, 9)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(True)
    part = model._split((x[:45], y[:45]), None)[0]
    expected = cross_entropy(part[1], model.predict(part[0], verbose=0))
    assert logs["primary_loss"][0] == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(ValueError, match=r"validation_split=1\.5"):
        model.fit(*data, validation_split=1.5, verbose=0)
    with pytest.raises(ValueError, match="are for arrays"):
        model.fit(
            Pieces(*data),
            penalty_data=Pieces(*data),
            validation_split=0.5,
            verbose=0,
        )


def test_interleaved_refuses_parts_of_an_epoch(data):
    with pytest.raises(ValueError, match="steps_per_epoch=1"):
        interleaved().fit(*data, steps_per_epoch=1, verbose=0)


def test_interleaved_arrays_of_different_lengths(data):
    x, y = data
    model = interleaved()
    with pytest.raises(ValueError, match=r"lengths \[60, 50\]"):
        model.fit(x, y[:50], verbose=0)
    with pytest.raises(ValueError, match="in the training data"):
        model.fit(x, y, sample_weight=np.ones(61), verbose=0)
    with pytest.raises(ValueError, match="in `penalty_data`"):
        model.fit(x, y, penalty_data=(x[:9], y[:8]), verbose=0)
    with pytest.raises(ValueError, match="arrays too"):
        model.fit(x, y, penalty_data=Pieces(x, y), verbose=0)


def test_options_are_keywords():
    with pytest.raises(TypeError):
        kc.models.InterleavedTraining(small_network(), 0.2)
    with pytest.raises(TypeError):
        kc.models.SampleHistoryModel(small_network(), 8, "name")


def test_monte_carlo_dropout_does_not_train_half_of_a_pair(data):
    def network():
        return keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(10),
            ]
        )

    pair = kc.models.DiffDML(network(), network())
    sampled = kc.models.MonteCarloDropout(pair, num_masks=2, from_logits=True)
    assert sampled.predict(data[0], verbose=0).shape == (SIZE, 10)
    sampled.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="`compute_loss` of its own"):
        sampled.fit(*data, verbose=0)
