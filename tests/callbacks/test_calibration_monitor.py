import csv

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.inputs.predictions import top_label
from tests.helpers import JIT_BUT_ON_TORCH
from tests.helpers import exact_error
from tests.helpers import small_network
from tests.helpers import to_numpy

NLL = "negative_log_likelihood"


def network(from_logits=True):
    model = small_network(activation=None if from_logits else "softmax")
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits),
        metrics=["accuracy"],
    )
    return model


@pytest.mark.parametrize("from_logits", [True, False])
def test_values_are_exact_and_seen_by_later_callbacks(
    from_logits, digits, tmp_path
):
    (x, y), validation, _ = digits
    model = network(from_logits)
    key = "val_adaptive_calibration_error"
    history = model.fit(
        x,
        y,
        validation_data=validation,
        epochs=2,
        verbose=0,
        callbacks=[
            kc.callbacks.CalibrationMonitor(
                validation,
                metrics=["adaptive_calibration_error", NLL],
                from_logits=from_logits,
            ),
            keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
            keras.callbacks.EarlyStopping(key, mode="min", patience=5),
            keras.callbacks.ModelCheckpoint(
                str(tmp_path / "best.keras"),
                monitor=key,
                mode="min",
                save_best_only=True,
            ),
        ],
    ).history
    outputs = model.predict(validation[0], verbose=0)
    if from_logits:
        outputs = to_numpy(keras.ops.softmax(outputs))
    confidence, correct = top_label(validation[1], outputs)
    expected = exact_error(confidence, correct, binning="mass")
    assert history[key][-1] == pytest.approx(expected, abs=1e-7)
    assert history["val_accuracy"][-1] == pytest.approx(correct.mean())
    assert history[f"val_{NLL}"][-1] == pytest.approx(
        history["val_loss"][-1], rel=1e-4
    )
    with open(tmp_path / "log.csv") as file:
        assert key in next(csv.reader(file))
    assert (tmp_path / "best.keras").exists()


def test_four_keys_by_default(digits):
    """All of them would fill a progress line and 31 curves."""
    (x, y), validation, _ = digits
    monitor = kc.callbacks.CalibrationMonitor(validation, from_logits=True)
    history = network().fit(x, y, verbose=0, callbacks=[monitor]).history
    assert {key for key in history if key.startswith("val_")} == {
        "val_expected_calibration_error",
        "val_smooth_calibration_error",
        "val_brier_score",
        "val_negative_log_likelihood",
    }


def test_a_name_is_not_a_list_of_names():
    with pytest.raises(ValueError, match=r"Pass `\['brier_score'\]`"):
        kc.callbacks.CalibrationMonitor(metrics="brier_score")


def test_every_other_epoch_and_the_last(digits):
    (x, y), validation, _ = digits
    monitor = kc.callbacks.CalibrationMonitor(
        validation, from_logits=True, every=2
    )
    history = network().fit(x, y, epochs=5, verbose=0, callbacks=[monitor])
    # After epochs 2 and 4, and after the fifth, which is the last.
    assert len(history.history["val_expected_calibration_error"]) == 3


class StopAfter(keras.callbacks.Callback):
    """Ends training after the third epoch."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 2


@pytest.mark.parametrize("own", [True, False])
def test_training_that_ends_before_an_epoch_is_due_is_told(own, digits):
    (x, y), validation, _ = digits
    monitor = kc.callbacks.CalibrationMonitor(
        validation if own else None, from_logits=True, every=5
    )
    with pytest.warns(UserWarning, match="no epoch that was due had a valid"):
        network().fit(
            *(x, y),
            validation_data=validation,
            epochs=9,
            verbose=0,
            callbacks=[monitor, StopAfter()],
        )


def test_periods_that_do_not_meet_are_told(digits, tmp_path):
    (x, y), validation, _ = digits
    settings = {"from_logits": True, "every": 2}
    callbacks = {
        "CalibrationMonitor": kc.callbacks.CalibrationMonitor(**settings),
        "TemperatureTracker": kc.callbacks.TemperatureTracker(**settings),
        "ReliabilityDiagram": kc.callbacks.ReliabilityDiagram(
            tmp_path, **settings
        ),
    }
    with pytest.warns(UserWarning) as told:
        network().fit(
            *(x, y),
            validation_data=validation,
            epochs=5,
            validation_freq=3,
            verbose=0,
            callbacks=list(callbacks.values()),
        )
    said = [str(one.message) for one in told]
    for name in callbacks:
        (message,) = [one for one in said if one.startswith(name)]
        assert "`validation_freq`" in message and "every=2" in message
    assert not list(tmp_path.iterdir())


def test_gammas_without_validation_are_told(digits):
    (x, y), *_ = digits
    loss = kc.losses.AdaFocalLoss(from_logits=True)
    model = network()
    model.compile("sgd", loss, metrics=loss.component_metrics())
    with pytest.warns(UserWarning, match="received no validation data"):
        model.fit(x, y, verbose=0, callbacks=[kc.callbacks.AdaFocalSchedule()])


@pytest.mark.parametrize("own", [True, False])
def test_an_epoch_that_becomes_the_last_counts(own, digits):
    (x, y), validation, _ = digits
    model = network()
    monitor = kc.callbacks.CalibrationMonitor(
        validation if own else None, from_logits=True, every=2
    )
    history = model.fit(
        x,
        y,
        validation_data=validation,
        epochs=5,
        verbose=0,
        callbacks=[StopAfter(), monitor],
    ).history
    found = history["val_brier_score"]
    assert len(found) == 2
    assert found[-1] == pytest.approx(
        kc.metrics.calibration_errors(
            validation[1],
            model.predict(validation[0], verbose=0),
            from_logits=True,
        )["brier_score"],
        abs=1e-6,
    )


def test_a_generator_is_not_read_again_for_the_last_epoch(digits):
    (x, y), validation, _ = digits

    def batches():
        while True:
            yield validation

    monitor = kc.callbacks.CalibrationMonitor(from_logits=True, every=2)
    history = network().fit(
        x,
        y,
        validation_data=batches(),
        validation_steps=1,
        epochs=5,
        verbose=0,
        callbacks=[StopAfter(), monitor],
    )
    assert len(history.history["val_brier_score"]) == 1


@pytest.mark.parametrize("from_logits", [True, False], ids=["logits", "p"])
@pytest.mark.parametrize("weighted", [True, False], ids=["weights", "plain"])
def test_the_validation_of_fit_is_used(from_logits, weighted, digits):
    (x, y), (x_val, y_val), _ = digits
    weight = np.linspace(0.0, 2.0, len(y_val)).astype("float32")
    data = (x_val, y_val, weight) if weighted else (x_val, y_val)
    model = network(from_logits)
    calls = []
    predict = model.predict_on_batch
    model.predict_on_batch = lambda x: calls.append(1) or predict(x)
    arguments = {"from_logits": from_logits}
    history = model.fit(
        x,
        y,
        validation_data=data,
        epochs=2,
        verbose=0,
        callbacks=[kc.callbacks.CalibrationMonitor(metrics="all", **arguments)],
    ).history
    assert not calls
    assert not [key for key in history if "outputs" in key]
    outputs = model.predict(x_val, verbose=0)
    expected = kc.metrics.calibration_errors(
        y_val, outputs, weight if weighted else None, **arguments
    )
    for name, value in expected.items():
        # A softmax in another batch size differs in its last digit, which may
        # move a sample across an edge.
        assert history[f"val_{name}"][-1] == pytest.approx(value, abs=6e-3), (
            name
        )
    for name in ("brier_score", "negative_log_likelihood", "mean_confidence"):
        assert history[f"val_{name}"][-1] == pytest.approx(
            expected[name], abs=1e-6
        )
    # The model is left as it was.
    found = model.evaluate(x_val, y_val, verbose=0, return_dict=True)
    assert set(found) == {"loss", "accuracy"}


@pytest.mark.parametrize("jit_compile", [False, JIT_BUT_ON_TORCH])
@pytest.mark.slow
def test_a_sigmoid_unit_and_a_last_batch_of_one(jit_compile):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(33, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")
    model = keras.Sequential([keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", jit_compile=jit_compile)
    history = model.fit(
        x,
        y,
        validation_data=(x, y),
        verbose=0,
        callbacks=[kc.callbacks.CalibrationMonitor(metrics="all")],
    ).history
    outputs = model.predict(x, verbose=0)
    expected = kc.metrics.calibration_errors(y, outputs)
    name = "brier_score"
    assert history[f"val_{name}"] == pytest.approx([expected[name]], abs=1e-6)
    assert "val_binary_calibration_error" in history


def test_pixels_with_a_void_class():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 4, 4, 2)).astype("float32")
    y = rng.integers(0, 3, (8, 4, 4))
    void = y.copy()
    void[:, 0] = 255
    model = keras.Sequential([keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", lambda y_true, y_pred: keras.ops.mean(y_pred**2))
    history = model.fit(
        x,
        void,
        validation_data=(x, void),
        batch_size=4,
        verbose=0,
        callbacks=[
            kc.callbacks.CalibrationMonitor(ignore_class=255, metrics="all")
        ],
    ).history
    p = model.predict(x, verbose=0)
    expected = kc.metrics.calibration_errors(y[:, 1:], p[:, 1:])
    for name in ("brier_score", "confidence_gap"):
        assert history[f"val_{name}"][0] == pytest.approx(
            expected[name], abs=1e-6
        )


def test_where_the_validation_cannot_be_used_the_model_predicts(digits):
    (x, y), validation, _ = digits
    model = network()
    calls = []
    predict = model.predict_on_batch
    model.predict_on_batch = lambda x: calls.append(1) or predict(x)

    class Monitor(kc.callbacks.CalibrationMonitor):
        def on_train_begin(self, logs=None):
            super().on_train_begin(logs)
            self._fit_outputs.possible = lambda: False

    history = model.fit(
        x,
        y,
        validation_data=validation,
        validation_batch_size=100,
        validation_steps=3,
        epochs=2,
        verbose=0,
        callbacks=[Monitor(from_logits=True)],
    ).history
    assert len(calls) == 2 * 3
    expected = kc.metrics.calibration_errors(
        validation[1][:300],
        model.predict(validation[0][:300], verbose=0),
        from_logits=True,
    )
    assert history["val_brier_score"][-1] == pytest.approx(
        expected["brier_score"], abs=1e-6
    )


def test_epochs_without_validation_are_left_out(digits):
    (x, y), validation, _ = digits
    history = (
        network()
        .fit(
            x,
            y,
            validation_data=validation,
            validation_freq=2,
            epochs=4,
            verbose=0,
            callbacks=[
                kc.callbacks.CalibrationMonitor(
                    from_logits=True, metrics=["auroc", "brier_score"]
                )
            ],
        )
        .history
    )
    assert len(history["val_brier_score"]) == 2
    assert "val_expected_calibration_error" not in history


def test_no_validation_at_all_is_told(digits):
    (x, y), _, _ = digits
    with pytest.warns(UserWarning, match="validation_data"):
        network().fit(
            x,
            y,
            verbose=0,
            callbacks=[kc.callbacks.CalibrationMonitor(from_logits=True)],
        )


def test_an_interrupted_fit_leaves_a_working_model(digits):
    (x, y), validation, _ = digits

    class Stop(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    model = network()
    monitor = kc.callbacks.CalibrationMonitor(from_logits=True)
    with pytest.raises(KeyboardInterrupt):
        model.fit(
            x,
            y,
            validation_data=validation,
            verbose=0,
            callbacks=[monitor, Stop()],
        )
    found = model.evaluate(*validation, verbose=0, return_dict=True)
    assert set(found) == {"loss", "accuracy"}
    history = model.fit(
        x, y, validation_data=validation, verbose=0, callbacks=[monitor]
    ).history
    assert len(history["val_brier_score"]) == 1


@pytest.mark.slow
def test_modes_of_a_metric_that_is_compiled_too(digits):
    # The exact value takes the place of the streamed one, whose metric tells
    # EarlyStopping that less is better.
    (x, y), validation, _ = digits
    model = small_network()
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[kc.metrics.AdaptiveCalibrationError(from_logits=True)],
    )
    key = "val_adaptive_calibration_error"
    stop = keras.callbacks.EarlyStopping(key)
    history = model.fit(
        x,
        y,
        validation_data=validation,
        verbose=0,
        callbacks=[kc.callbacks.CalibrationMonitor(from_logits=True), stop],
    ).history
    assert stop.best == pytest.approx(history[key][0])


def test_bad_arguments(digits):
    with pytest.raises(ValueError, match="at least 1"):
        kc.callbacks.CalibrationMonitor(digits[1], num_bins=0)
    with pytest.raises(ValueError, match="names out of"):
        kc.callbacks.CalibrationMonitor(metrics=["ece"])
    (x, y), validation, _ = digits
    with pytest.raises(ValueError, match="from_logits=True"):
        network().fit(
            x,
            y,
            verbose=0,
            callbacks=[kc.callbacks.CalibrationMonitor(validation)],
        )
