"""A `fit` that ends early leaves model and process as they were."""

import gc
import tracemalloc
import warnings

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import small_network

ENDINGS = {"error": ValueError("no"), "interrupt": KeyboardInterrupt()}
HOOKS = (
    "on_test_begin",
    "on_test_batch_begin",
    "on_test_batch_end",
    "on_test_end",
    "on_epoch_begin",
    "on_epoch_end",
)


class Ending(keras.callbacks.Callback):
    """Raises in one hook, the second time that it is called there."""

    def __init__(self, hook, exception):
        super().__init__()
        self.exception = exception
        self.calls = 0
        setattr(self, hook, self.end)

    def end(self, *args, **kwargs):
        self.calls += 1
        if self.calls == 2:
            raise self.exception


class Failing(keras.metrics.Metric):
    """A metric that fails in validation, when it is traced or run there."""

    def __init__(self, exception):
        super().__init__(name="failing")
        self.exception = exception
        self.fails = False

    def update_state(self, *args, **kwargs):
        if self.fails:
            raise self.exception

    def result(self):
        return 0.0


def state(model):
    return {
        "test_function": model.test_function,
        "own": {
            name: vars(model)[name]
            for name in ("test_step", "compute_metrics", "make_test_function")
            if name in vars(model)
        },
        "filters": list(warnings.filters),
    }


def compiled(model, loss=None, metrics=(), **kwargs):
    if loss is None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy", *metrics], **kwargs)
    return model


def monitors(validation):
    return [kc.callbacks.CalibrationMonitor(from_logits=True)]


def two_monitors(validation):
    return [
        kc.callbacks.CalibrationMonitor(from_logits=True, every=2),
        kc.callbacks.TemperatureTracker(from_logits=True),
    ]


def own_passes(validation):
    return [
        kc.callbacks.CalibrationMonitor(validation, from_logits=True),
        kc.callbacks.TemperatureTracker(validation, from_logits=True),
    ]


def interrupted(model, data, callbacks, exception):
    x, y, validation = data
    # Keras builds the test function anew where there is none.
    model.evaluate(*validation, verbose=0)
    before = state(model)
    with pytest.raises(type(exception)):
        model.fit(
            x,
            y,
            epochs=3,
            validation_data=validation,
            callbacks=callbacks,
            verbose=0,
        )
    after = state(model)
    assert after["own"] == before["own"] == {}
    assert after["filters"] == before["filters"]
    return before["test_function"], after["test_function"]


@pytest.fixture(scope="module")
def data(digits):
    (x, y), (x_val, y_val), _ = digits
    return x[:64], y[:64], (x_val[:64], y_val[:64])


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("watching", [monitors, two_monitors, own_passes])
def test_validation(hook, ending, watching, data):
    model = compiled(small_network())
    callbacks = watching(data[2])
    exception = ENDINGS[ending]
    before, after = interrupted(
        model, data, [*callbacks, Ending(hook, exception)], exception
    )
    if hook != "on_test_batch_begin":
        assert after is before
    # There a batch was waiting to be collected: it is the only one.
    found = model.evaluate(*data[2], verbose=0, return_dict=True)
    assert set(found) == {"loss", "accuracy"}
    assert model.test_function is before
    # The same callbacks work in the next run.
    history = model.fit(
        *data[:2], validation_data=data[2], callbacks=callbacks, verbose=0
    ).history
    (value,) = (
        history["val_negative_log_likelihood"]
        if (watching is not two_monitors)
        else history["val_calibrated_negative_log_likelihood"]
    )
    assert np.isfinite(value)
    assert model.test_function is before


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_metric_that_fails(ending, data):
    exception = ENDINGS[ending]
    metric = Failing(exception)
    # Looked up in every step, and not once by a compiler.
    model = compiled(small_network(), metrics=[metric], run_eagerly=True)

    class Fail(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            metric.fails = True

    before, after = interrupted(
        model,
        data,
        [kc.callbacks.CalibrationMonitor(from_logits=True), Fail()],
        exception,
    )
    assert after is before
    metric.fails = False
    found = model.evaluate(*data[2], verbose=0, return_dict=True)
    assert set(found) == {"loss", "accuracy", "failing"}


@pytest.mark.parametrize("hook", ["on_test_batch_begin", "on_test_batch_end"])
def test_later_validations_keep_nothing(hook, data):
    model = compiled(small_network())
    x, y = data[2]
    x, y = np.tile(x, (200, 1)), np.tile(y, 200)
    exception = KeyboardInterrupt()
    interrupted(
        model,
        data,
        [
            kc.callbacks.CalibrationMonitor(from_logits=True),
            Ending(hook, exception),
        ],
        exception,
    )
    model.evaluate(x, y, batch_size=1280, verbose=0)
    gc.collect()
    tracemalloc.start()
    for _ in range(5):
        model.evaluate(x, y, batch_size=1280, verbose=0)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The outputs alone are 5 * 12800 * 10 * 4 bytes.
    assert held < 5 * 12800 * 10 * 4 / 2


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "hook", ["on_train_batch_end", "on_epoch_begin", "on_epoch_end"]
)
def test_pruning_and_history(hook, ending, data):
    x, y, validation = data
    model = compiled(
        kc.models.SampleHistoryModel(small_network(), num_samples=len(x)),
        kc.losses.CRL(from_logits=True),
    )
    pruning = kc.callbacks.DataPruning(x, y, fraction=0.5, every=1)
    callbacks = [pruning, kc.callbacks.CorrectnessHistory()]
    before = state(model)
    exception = ENDINGS[ending]
    with pytest.raises(type(exception)):
        model.fit(
            pruning.data,
            epochs=3,
            validation_data=validation,
            callbacks=[*callbacks, Ending(hook, exception)],
            verbose=0,
        )
    after = state(model)
    assert after["own"] == before["own"]
    assert after["filters"] == before["filters"]
    logs = model.fit(
        pruning.data, epochs=1, callbacks=callbacks, verbose=0
    ).history
    assert logs["kept_samples"][0] == model.sample_history()["kept"].sum()


def test_numbers_that_were_wrong_do_not_fail_the_next_fit(data):
    x, y, _ = data
    model = compiled(
        kc.models.SampleHistoryModel(small_network(), num_samples=40),
        kc.losses.CRL(from_logits=True),
    )

    class Numbered(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            part = slice(32 * i, 32 * i + 32)
            inputs = {"inputs": x[part], "sample_index": np.arange(64)[part]}
            return inputs, y[part]

    with pytest.raises(ValueError, match=r"[Hh]istory"):
        model.fit(Numbered(), verbose=0)
    logs = model.fit(kc.add_sample_index(x[:40]), y[:40], verbose=0).history
    assert np.isfinite(logs["loss"][0])
