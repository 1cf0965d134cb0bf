"""The outputs of `fit`'s validation, where a model goes ways of its own."""

import functools
import types

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.callbacks import _fit_outputs
from tests.helpers import small_network

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = np.arange(24) % 3
VALIDATION = X[::-1].copy(), (Y + 1) % 3


def compiled():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), loss)
    return model


def fit(model, validation=VALIDATION, **options):
    monitor = kc.callbacks.CalibrationMonitor(from_logits=True)
    options = {"callbacks": [monitor], "verbose": 0, **options}
    return model.fit(X, Y, validation_data=validation, **options).history


def brier(model):
    scores = model.predict(VALIDATION[0], verbose=0)
    return kc.metrics.calibration_errors(
        VALIDATION[1], scores, from_logits=True
    )["brier_score"]


def silent(model):
    """The model, with test steps that return no outputs to be collected."""
    step = model.test_step

    def test_step(*arguments):
        found = step(*arguments)
        logs = found[0] if isinstance(found, tuple) else found
        logs.pop(_fit_outputs.KEY, None)
        return found

    model.test_step = test_step
    return model


def test_a_validation_without_outputs_is_predicted():
    model = silent(compiled())
    found = fit(model)["val_brier_score"]
    assert found == pytest.approx([brier(model)], abs=1e-6)


def test_a_generator_without_outputs_cannot_be_read_again():
    def batches():
        while True:
            yield VALIDATION

    model = silent(compiled())
    with pytest.raises(ValueError, match="are not available here"):
        fit(model, batches(), validation_steps=1)


def test_methods_of_ones_own_are_put_back():
    model = compiled()
    own, calls = model.compute_metrics, []

    def compute_metrics(*arguments, **options):
        calls.append(0)
        return own(*arguments, **options)

    model.compute_metrics = compute_metrics
    found = fit(model)["val_brier_score"]
    assert calls and model.compute_metrics is compute_metrics
    assert found == pytest.approx([brier(model)], abs=1e-6)


def test_a_stand_in_that_an_exception_left_is_taken_away():
    model = compiled()
    model.evaluate(*VALIDATION, verbose=0)
    own = model.test_function
    model.test_function = _fit_outputs._StandIn(model, own, own)
    monitor = kc.callbacks.CalibrationMonitor(from_logits=True)
    monitor.set_model(model)
    assert model.test_function is own
    # What has no test function stays as it is.
    other = types.SimpleNamespace(name="other")
    monitor.set_model(other)
    assert monitor.model is other and vars(other) == {"name": "other"}


def test_validation_arrays_without_a_sample_are_told():
    model = small_network(3, inputs=4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    model.build((None, 4))
    monitor = kc.callbacks.CalibrationMonitor((X[:0], Y[:0]), from_logits=True)
    with pytest.raises(ValueError, match="has no validation data"):
        model.fit(X, Y, callbacks=[monitor], verbose=0)


@pytest.mark.backends("torch", reason="a step in the manner of PyTorch")
def test_weights_of_a_step_of_ones_own_are_those_of_its_metrics():
    weight = np.linspace(0.5, 2.0, len(Y)).astype("float32")

    class Weighted(keras.Model):
        """Measures with weights that the loss does not see."""

        def test_step(self, data):
            x, y = data
            scores = self(x, training=False)
            self._loss_tracker.update_state(self.compute_loss(x, y, scores))
            return self.compute_metrics(x, y, scores, weight[: len(y)])

    inputs = keras.Input((4,))
    model = Weighted(inputs, keras.layers.Dense(3)(inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), loss)
    found = fit(model)["val_brier_score"]
    scores = model.predict(VALIDATION[0], verbose=0)
    expected = kc.metrics.calibration_errors(
        VALIDATION[1], scores, weight, from_logits=True
    )["brier_score"]
    assert found == pytest.approx([expected], abs=1e-6)


@pytest.mark.backends(
    "tensorflow", "torch", reason="a step on JAX has the state in its arguments"
)
def test_a_step_that_measures_two_outputs_leaves_the_predictions():
    class TwoViews(keras.Model):
        """Measures predictions of the inputs, and of their negatives."""

        def test_step(self, data):
            x, y = data
            scores = self(x, training=False)
            self._loss_tracker.update_state(self.compute_loss(x, y, scores))
            self.compute_metrics(x, y, scores)
            return self.compute_metrics(x, y, self(-x, training=False))

    inputs = keras.Input((4,))
    model = TwoViews(inputs, keras.layers.Dense(3)(inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metric = kc.metrics.BrierScore(from_logits=True, name="brier")
    model.compile(keras.optimizers.SGD(0.0), loss, metrics=[metric])
    monitor = kc.callbacks.CalibrationMonitor(
        metrics=["brier_score"], from_logits=True
    )
    history = model.fit(
        X,
        Y,
        epochs=2,
        validation_data=VALIDATION,
        callbacks=[monitor],
        verbose=0,
    ).history
    x, y = VALIDATION
    clean, turned = (
        float(
            kc.metrics.calibration_errors(
                y, model.predict(each, verbose=0), from_logits=True
            )["brier_score"]
        )
        for each in (x, -x)
    )
    assert abs(clean - turned) > 0.01
    both = [(clean + turned) / 2] * 2
    assert history["val_brier"] == pytest.approx(both, abs=1e-5)
    assert history["val_brier_score"] == pytest.approx([clean] * 2, abs=1e-5)


def test_without_a_validation_there_is_nothing_to_read_again():
    model = compiled()
    outputs = _fit_outputs.FitOutputs(model)
    assert not outputs._can_be_read_again()
    seen = []

    class Look(keras.callbacks.Callback):
        def on_test_end(self, logs=None):
            seen.append(outputs._can_be_read_again())

    model.fit(
        *(X, Y), validation_data=VALIDATION, callbacks=[Look()], verbose=0
    )
    assert seen == [True]


@pytest.mark.backends("torch", reason="torch.compile")
def test_a_compiled_network_that_torch_traces_in_parts(monkeypatch):
    torch = pytest.importorskip("torch")
    # In Python, because C++ would take minutes to compile.
    traced = functools.partial(torch.compile, backend="eager")
    monkeypatch.setattr(torch, "compile", traced)
    # As in a larger network, whose layers run in more ways than are compiled.
    with torch._dynamo.config.patch(recompile_limit=1):
        model = compiled()
        model.compile(keras.optimizers.SGD(0.0), model.loss, jit_compile=True)
        found = fit(model)
    assert found["val_brier_score"] == pytest.approx([brier(model)], abs=1e-6)
