"""Patra et al., WACV 2023."""

import warnings

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.callbacks import _data_pruning as data_pruning
from tests.helpers import small_network
from tests.helpers import to_numpy

SIZE = 120


@pytest.fixture
def data(digits):
    x, y = digits[0]
    return x[:SIZE], y[:SIZE]


def build(learning_rate=0.0, num_samples=SIZE):
    model = kc.models.SampleHistoryModel(
        small_network(), num_samples=num_samples
    )
    model.compile(
        keras.optimizers.SGD(learning_rate),
        kc.losses.FocalLoss(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def test_average_and_choice():
    average = np.array([0.5, 0.9, 0.2, 0.7, 0.6])
    confidence = np.array([0.8, 0.95, 0.3, 0.4, 0.65])
    average = data_pruning.smoothed(average, confidence, 0.3)
    np.testing.assert_allclose(average, [0.59, 0.915, 0.23, 0.61, 0.615])
    kept, labels = np.ones(5, bool), np.zeros(5, int)
    drop = data_pruning.least_confident(average, kept, labels, 0.2, 1)
    assert drop.tolist() == [2]
    # The first confidence starts the average.
    started = data_pruning.smoothed(np.zeros(5), confidence, 0.3)
    np.testing.assert_array_equal(started, confidence)


def test_a_class_keeps_its_last_samples():
    average = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    labels = np.array([0, 0, 1, 1, 1, 1])
    kept = np.ones(6, bool)
    drop = data_pruning.least_confident(average, kept, labels, 0.5, 2)
    assert drop.tolist() == [2, 3]
    kept[drop] = False
    drop = data_pruning.least_confident(average, kept, labels, 0.5, 2)
    assert drop.tolist() == []


class Samples(keras.callbacks.Callback):
    """How many samples each epoch trained on."""

    def on_train_begin(self, logs=None):
        self.before, self.counts = 0, []

    def on_epoch_end(self, epoch, logs=None):
        seen = self.model.sample_history()["seen"].sum()
        self.counts.append(seen - self.before)
        self.before = seen


def test_a_whole_number_of_samples_is_not_rounded_down():
    average, labels = np.linspace(0, 1, 100), np.zeros(100, int)
    kept = np.ones(100, bool)
    for percent in range(1, 100):
        drop = data_pruning.least_confident(
            average, kept, labels, percent / 100, 0
        )
        assert len(drop) == percent


def test_epochs_get_shorter_and_lose_the_least_confident(data):
    model = build()
    pruning = kc.callbacks.DataPruning(
        *data, fraction=0.25, every=2, batch_size=16
    )
    count = Samples()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Your input ran out")
        logs = model.fit(
            pruning.data,
            epochs=5,
            verbose=0,
            callbacks=[pruning, count],
            validation_data=data,
        ).history
    # 30 dropped after the second epoch, 22 after the fourth.
    assert count.counts == [120, 120, 90, 90, 68]
    assert logs["kept_samples"] == [120, 90, 90, 68, 68]
    p = to_numpy(keras.ops.softmax(model.predict(data[0], verbose=0)))
    # The network does not learn: averages are its confidences.
    found = model.sample_history()
    np.testing.assert_allclose(
        found["average_confidence"], p.max(-1), atol=1e-5
    )
    lowest = np.argsort(p.max(-1))[:52]
    assert set(pruning.dropped) == set(lowest)
    np.testing.assert_array_equal(
        np.flatnonzero(found["kept"] == 0), np.sort(lowest)
    )


def test_a_loop_of_ones_own_prunes_without_logs(data):
    model = build()
    pruning = kc.callbacks.DataPruning(
        *data, fraction=0.25, every=1, min_per_class=1
    )
    pruning.set_model(model)
    pruning.on_epoch_begin(0)
    pruning.data[0]
    # Half of the samples were seen, the first one with the least confidence.
    half = np.arange(SIZE) < SIZE // 2
    model.seen.assign(half.astype(model.seen.dtype))
    confidence = np.where(half, np.linspace(0.1, 0.9, SIZE), 0.0)
    model.confidence.assign(confidence.astype("float32"))
    pruning.on_epoch_end(0)
    dropped = model.sample_history()["kept"] == 0
    np.testing.assert_array_equal(np.flatnonzero(dropped), pruning.dropped)
    np.testing.assert_array_equal(pruning.dropped, np.arange(SIZE // 8))


@pytest.mark.slow
def test_averages_follow_a_network_that_learns(data):
    model = build(learning_rate=0.1)
    pruning = kc.callbacks.DataPruning(*data, every=9, smoothing=0.3)
    confidences = []

    class Record(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found = self.model.sample_history()
            confidences.append(found["confidence"])

    model.fit(pruning.data, epochs=3, verbose=0, callbacks=[pruning, Record()])
    first, second, third = confidences
    expected = 0.3 * third + 0.7 * (0.3 * second + 0.7 * first)
    found = model.sample_history()["average_confidence"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert not np.allclose(first, third)


class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_killed_run_resumes_with_what_was_left(data, tmp_path):
    def run(*more):
        model = build()
        model.model.set_weights(weights)
        pruning = kc.callbacks.DataPruning(*data, fraction=0.25, every=2)
        count = Samples()
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        model.fit(
            pruning.data,
            epochs=5,
            verbose=0,
            callbacks=[pruning, backup, count, *more],
        )
        return model, count

    weights = small_network().get_weights()
    with pytest.raises(KeyboardInterrupt):
        run(Stop())
    model, count = run()
    # Epochs 4 and 5; the count begins at the three restored epochs.
    assert count.counts == [120 + 120 + 90 + 90, 68]
    found = model.sample_history()
    assert found["kept"].sum() == 68
    assert found["seen"].sum() == 120 + 120 + 90 + 90 + 68


def test_several_inputs_one_hot_labels_and_weights(data):
    x, y = data
    pruning = kc.callbacks.DataPruning(
        {"a": x, "b": x}, np.eye(10)[y], np.ones(SIZE), batch_size=50
    )
    inputs, labels, weights = pruning.data[0]
    assert set(inputs["inputs"]) == {"a", "b"}
    assert labels.shape == (50, 10) and weights.shape == (50,)
    np.testing.assert_array_equal(pruning.labels, y)


def test_bad_arguments(data):
    with pytest.raises(ValueError, match="`fraction` must be in"):
        kc.callbacks.DataPruning(*data, fraction=1.0)
    with pytest.raises(ValueError, match="`every` must be at least 1"):
        kc.callbacks.DataPruning(*data, every=0)
    for least in (None, -100, 1.5):
        with pytest.raises(ValueError, match="`min_per_class` must be"):
            kc.callbacks.DataPruning(*data, min_per_class=least)
    with pytest.raises(ValueError, match="the same length"):
        kc.callbacks.DataPruning(data[0], data[1][:-1])
    with pytest.raises(ValueError, match="one label"):
        kc.callbacks.DataPruning(data[0], np.zeros((SIZE, 2, 2)))
    pruning = kc.callbacks.DataPruning(*data)
    arguments = {"verbose": 0, "callbacks": [pruning]}
    with pytest.raises(ValueError, match="num_samples=130 in the model, 120"):
        build(num_samples=130).fit(pruning.data, **arguments)
    model = small_network()
    model.compile("sgd", kc.losses.FocalLoss(from_logits=True))
    with pytest.raises(ValueError, match="DataPruning needs a history"):
        model.fit(*data, **arguments)
