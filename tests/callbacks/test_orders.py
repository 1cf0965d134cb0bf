"""The order of samples is the callback's, whatever `fit` shuffles."""

import random

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import small_network

SIZE = 100


@pytest.fixture
def data(digits):
    x, y = digits[0]
    return x[:SIZE], y[:SIZE]


def weights_of(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])


def network(wrap=None):
    """Starts alike, and ends alike only after the same batches."""
    keras.utils.set_random_seed(5)
    model = small_network()
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    if wrap:
        model = kc.models.SampleHistoryModel(model, num_samples=SIZE)
        loss = kc.losses.CRL(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    return model


def with_targets(data, **kwargs):
    return kc.callbacks.EmpiricalTargets(
        *data, num_classes=10, cycle=2, from_logits=True, batch_size=8, **kwargs
    )


def with_pruning(data, **kwargs):
    return kc.callbacks.DataPruning(
        *data, fraction=0.2, every=2, batch_size=8, **kwargs
    )


FORMS = {"targets": with_targets, "pruning": with_pruning}


def trained(form, data, disturbance, epochs=2, **kwargs):
    model = network(wrap=form == "pruning")
    callback = FORMS[form](data, **kwargs)
    # Keras shuffles with it.
    random.seed(disturbance)
    model.fit(callback.data, epochs=epochs, callbacks=[callback], verbose=0)
    return weights_of(getattr(model, "model", model))


@pytest.mark.parametrize("form", FORMS)
def test_a_seed_gives_the_same_run(form, data):
    first = trained(form, data, 1, seed=3)
    np.testing.assert_array_equal(first, trained(form, data, 2, seed=3))
    assert np.abs(first - trained(form, data, 1, seed=4)).max() > 1e-4


@pytest.mark.parametrize("form", FORMS)
def test_without_shuffling_batches_come_in_order(form, data):
    x, y = data
    found = trained(form, data, 1, epochs=1, shuffle=False)
    model = network(wrap=form == "pruning")
    labels = y
    if form == "targets":
        # The targets of the first epoch.
        callback = with_targets(data)
        callback.set_model(model)
        callback.on_epoch_begin(0)
        labels = callback.targets
    model.fit(
        x if form == "targets" else kc.add_sample_index(x),
        labels,
        batch_size=8,
        shuffle=False,
        verbose=0,
    )
    expected = weights_of(getattr(model, "model", model))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_epochs_go_on_over_calls_of_fit(form, data):
    """Orders, prunings and targets, all of which have a period of two."""
    expected = trained(form, data, 1, epochs=4, seed=3)
    model = network(wrap=form == "pruning")
    callback = FORMS[form](data, seed=3)
    for epochs in (1, 2, 1):
        model.fit(callback.data, epochs=epochs, callbacks=[callback], verbose=0)
    found = weights_of(getattr(model, "model", model))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_another_model_begins_anew(form, data):
    callback = FORMS[form](data, seed=3)
    found = []
    for _ in range(2):
        model = network(wrap=form == "pruning")
        model.fit(callback.data, epochs=4, callbacks=[callback], verbose=0)
        found.append(weights_of(getattr(model, "model", model)))
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)


def test_an_epoch_has_every_sample_once(data):
    model = network(wrap=True)
    pruning = with_pruning(data, seed=0)
    model.fit(pruning.data, epochs=3, callbacks=[pruning], verbose=0)
    found = model.sample_history()
    np.testing.assert_array_equal(found["seen"], 2 + found["kept"])
    assert found["kept"].sum() == 80


class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("first", ["pruning", "backup"])
def test_a_resumed_run_is_the_whole_one(first, data, tmp_path):
    def run(folder, *more):
        model = network(wrap=True)
        pruning = with_pruning(data, seed=3)
        backup = keras.callbacks.BackupAndRestore(tmp_path / folder)
        both = [pruning, backup]
        model.fit(
            pruning.data,
            epochs=4,
            callbacks=[*(both if first == "pruning" else both[::-1]), *more],
            verbose=0,
        )
        return model, pruning

    whole, pruning = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("killed", Stop())
    resumed, again = run("killed")
    for name, values in whole.sample_history().items():
        np.testing.assert_array_equal(
            resumed.sample_history()[name], values, err_msg=name
        )
    np.testing.assert_allclose(
        weights_of(resumed.model), weights_of(whole.model), atol=1e-6
    )
    # 20 after the second epoch and 16 after the fourth.
    assert len(pruning.dropped) == len(again.dropped) == 36
    assert set(again.dropped[:20]) == set(pruning.dropped[:20])
    np.testing.assert_array_equal(again.dropped[20:], pruning.dropped[20:])


def test_samples_that_do_not_count_are_not_dropped(data):
    x, y = data
    y = y.copy()
    y[:30] = 255
    weight = np.ones(SIZE)
    weight[30:50] = 0.0
    model = kc.models.SampleHistoryModel(small_network(), num_samples=SIZE)
    model.compile(
        "sgd", kc.losses.FocalLoss(ignore_class=255, from_logits=True)
    )
    pruning = kc.callbacks.DataPruning(x, y, weight, fraction=0.5, every=1)
    model.fit(pruning.data, callbacks=[pruning], verbose=0)
    # Half of the 50 that count.
    assert len(pruning.dropped) == 25
    assert pruning.dropped.min() >= 50


@pytest.mark.parametrize("form", FORMS)
def test_other_data_than_the_callbacks_are_refused(form, data):
    x, y = data
    callback = FORMS[form](data)
    model = network(wrap=form == "pruning")
    if form == "targets":
        y = np.eye(10)[y]
    else:
        x = kc.add_sample_index(x)
    arguments = {"callbacks": [callback], "batch_size": 8, "verbose": 0}
    with pytest.raises(ValueError, match=r"`fit` takes its data from \w+: "):
        model.fit(x, y, **arguments)


@pytest.mark.parametrize("form", FORMS)
def test_part_of_an_epoch_is_refused(form, data):
    callback = FORMS[form](data)
    with pytest.raises(ValueError, match="leave out `steps_per_epoch`"):
        network(wrap=form == "pruning").fit(
            callback.data, steps_per_epoch=3, callbacks=[callback], verbose=0
        )


def test_targets_need_a_row_of_classes_per_sample(data):
    x, y = data
    for labels, message in (
        (y + 0.5, "whole numbers"),
        (np.eye(10)[y], "A sample has one label"),
        (np.where(y == 3, np.nan, y), "whole numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            with_targets((x, labels))
    cape = with_targets((x, y.astype(float)[:, None]))
    np.testing.assert_array_equal(cape.labels, y)

    def loss(y_true, y_pred):
        # Takes any shape: it is not the loss that refuses.
        return keras.ops.mean(y_pred, axis=-1)

    model = small_network()
    model.compile("sgd", loss)
    cape = kc.callbacks.EmpiricalTargets(x, y, num_classes=12, from_logits=True)
    with pytest.raises(ValueError, match="100 samples and 10 classes"):
        model.fit(cape.data, callbacks=[cape], verbose=0)
    model = small_network(num_classes=1, activation="sigmoid")
    model.compile("sgd", loss)
    cape = kc.callbacks.EmpiricalTargets(x, y % 2, num_classes=2)
    with pytest.raises(ValueError, match="two softmax units"):
        model.fit(cape.data, callbacks=[cape], verbose=0)
