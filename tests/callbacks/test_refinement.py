"""`CalibrationMonitor(refinement=True)`: the loss after temperature scaling."""

import csv

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import small_network

KEYS = {"val_refinement_loss", "val_calibration_loss", "val_temperature"}


def monitor(validation=None, **kwargs):
    kwargs = {"metrics": [], "from_logits": True} | kwargs
    return kc.callbacks.CalibrationMonitor(
        validation, refinement=True, **kwargs
    )


def compiled(model, from_logits=True, **kwargs):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    model.compile("adam", loss, metrics=["accuracy"], **kwargs)
    return model


def train(model, digits, callbacks, epochs=1, validation=None, **kwargs):
    (x, y), default, _ = digits
    return model.fit(
        x[:200],
        y[:200],
        validation_data=validation or default,
        epochs=epochs,
        verbose=0,
        callbacks=callbacks,
        **kwargs,
    ).history


def test_keys_are_those_of_temperature_scaling_without_a_second_pass(digits):
    model = compiled(small_network())
    x, y = digits[1]
    weight = np.linspace(0.0, 2.0, len(y)).astype("float32")
    passes, predict = [], model.predict_on_batch
    model.predict_on_batch = lambda x: passes.append(1) or predict(x)
    tracker = kc.callbacks.TemperatureTracker(from_logits=True)
    logs = train(
        model, digits, [monitor(), tracker], 3, validation=(x, y, weight)
    )
    assert not passes
    assert all(len(logs[key]) == 3 for key in KEYS)
    scores = model.predict(x, verbose=0)
    layer = kc.layers.TemperatureScaling().adapt(scores, y, weight)
    assert logs["val_temperature"][-1] == pytest.approx(
        layer.temperature, rel=1e-5
    )
    # Weights of Keras, too: its loss is a weighted mean.
    before, after = layer.record["nll_before"], layer.record["nll_after"]
    assert logs["val_refinement_loss"][-1] == pytest.approx(after, rel=1e-5)
    assert logs["val_calibration_loss"][-1] == pytest.approx(
        before - after, abs=1e-6
    )
    # The tracker has the same number, from the same pass.
    key = "val_calibrated_negative_log_likelihood"
    assert logs["val_refinement_loss"] == logs[key]


def test_keras_callbacks_see_the_keys(digits, tmp_path):
    best, log = tmp_path / "best.weights.h5", tmp_path / "log.csv"
    key = "val_refinement_loss"
    stop = keras.callbacks.EarlyStopping(
        key, mode="min", patience=1, min_delta=10.0
    )
    checkpoint = keras.callbacks.ModelCheckpoint(
        str(best),
        monitor=key,
        mode="min",
        save_best_only=True,
        save_weights_only=True,
    )
    logs = train(
        compiled(small_network()),
        digits,
        [monitor(), keras.callbacks.CSVLogger(str(log)), stop, checkpoint],
        epochs=5,
    )
    # No improvement of 10 nats: it stops after the second epoch.
    assert len(logs[key]) == 2
    assert stop.best == logs[key][0]
    assert best.exists()
    assert checkpoint.best == min(logs[key])
    with open(log) as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) >= KEYS
    assert [float(row[key]) for row in rows] == pytest.approx(logs[key])


def test_parts_add_up_to_the_nll_of_probabilities(digits):
    model = compiled(small_network(activation="softmax"), from_logits=False)
    callback = monitor(
        from_logits=False, metrics=["negative_log_likelihood"], every=2
    )
    logs = train(model, digits, [callback], epochs=3)
    assert len(logs["val_temperature"]) == 2
    parts = np.add(logs["val_refinement_loss"], logs["val_calibration_loss"])
    assert list(parts) == pytest.approx(
        logs["val_negative_log_likelihood"], abs=1e-6
    )
    assert np.all(np.array(logs["val_calibration_loss"]) >= 0)


def test_void_labels_and_rows_of_weight_0_do_not_count(digits):
    x, y = digits[1]
    model = compiled(small_network())
    model.fit(*digits[0], verbose=0)
    weight = np.ones(len(y))
    weight[:50] = 0.0
    void = y.copy()
    void[50:100] = 255
    found = []
    for data, kwargs in (
        ((x[100:], y[100:]), {}),
        ((x, void, weight), {"ignore_class": 255}),
    ):
        callback = monitor(data, **kwargs)
        logs = {}
        callback.set_model(model)
        callback.set_params({"epochs": 1})
        callback.on_train_begin()
        callback.on_epoch_end(0, logs)
        found.append(logs)
    assert set(found[0]) == KEYS
    assert found[1] == pytest.approx(found[0], rel=1e-5)


class FromEpochTwo(keras.callbacks.Callback):
    """Trains nothing before the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.01 if epoch else 0.0


def test_a_network_that_guesses_has_the_loss_of_guessing(digits):
    # All logits are 0 in the first epoch: the temperature has no effect, and
    # the next search does not start from it.
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(10, kernel_initializer="zeros")]
    )
    callback = monitor()
    logs = train(compiled(model), digits, [FromEpochTwo(), callback], epochs=2)
    assert logs["val_refinement_loss"][0] == pytest.approx(np.log(10))
    assert logs["val_calibration_loss"][0] == pytest.approx(0.0, abs=1e-9)
    assert logs["val_refinement_loss"][1] < 2.0
    # A third fit begins afresh.
    assert callback._temperature == logs["val_temperature"][1]
    callback.set_model(model)
    assert callback._temperature is None


def test_a_model_of_several_networks_is_its_primary(digits):
    model = kc.models.DiffDML(small_network(), small_network())
    compiled(model)
    logs = train(model, digits, [monitor()], epochs=5)
    assert 0.05 < logs["val_temperature"][-1] < 20
    scores = model.primary.predict(digits[1][0], verbose=0)
    layer = kc.layers.TemperatureScaling().adapt(scores, digits[1][1])
    assert logs["val_refinement_loss"][-1] == pytest.approx(
        layer.record["nll_after"], rel=1e-5
    )
