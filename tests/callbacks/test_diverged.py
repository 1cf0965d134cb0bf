"""Networks whose outputs are NaN for a while, or to the end."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import small_network
from tests.helpers import to_numpy

EPOCHS = 3
# Those of `kc.losses` refuse a first batch of NaN.
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
WARNING = "outputs were not finite from epoch 2 on"


class Diverged(keras.callbacks.Callback):
    """The weights are NaN in the second epoch, and as at first in the third."""

    def on_train_begin(self, logs=None):
        self.weights = [to_numpy(v) for v in self.network.trainable_variables]

    @property
    def network(self):
        return getattr(self.model, "model", self.model)

    def on_epoch_begin(self, epoch, logs=None):
        factor = {1: np.nan, 2: 1.0}.get(epoch)
        if factor is None:
            return
        variables = self.network.trainable_variables
        for variable, value in zip(variables, self.weights, strict=True):
            variable.assign(factor * value)


@pytest.fixture
def data(digits):
    return tuple(part[:64] for part in digits[1])


def network(softmax=False):
    model = small_network()
    if softmax:
        model.add(keras.layers.Softmax())
    return model


def fit(data, callbacks, model=None, loss=None, x=None, **kwargs):
    model = model or network()
    loss = loss or kc.losses.FocalLoss(from_logits=True)
    tables = getattr(loss, "component_metrics", list)()
    model.compile(
        keras.optimizers.SGD(1e-2), loss, metrics=["accuracy", *tables]
    )
    x = data if x is None else x
    options = {"epochs": EPOCHS, "validation_data": data, "verbose": 0}
    callbacks = [Diverged(), *callbacks]
    return model.fit(*x, callbacks=callbacks, **{**options, **kwargs})


def told(record):
    texts = [str(each.message) for each in record]
    return [text for text in texts if "not finite" in text]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("kind", ["monitor", "all", "tracker"])
def test_keys_are_nan_while_outputs_are(kind, softmax, own, data, recwarn):
    options = {"from_logits": not softmax}
    held = data if own else None
    if kind == "tracker":
        callback = kc.callbacks.TemperatureTracker(held, **options)
    else:
        metrics = "all" if kind == "all" else None
        callback = kc.callbacks.CalibrationMonitor(
            held, metrics=metrics, refinement=True, **options
        )
    loss = kc.losses.FocalLoss(**options)
    validation = None if own else data
    history = fit(
        data, [callback], network(softmax), loss, validation_data=validation
    ).history
    keys = {key for key in history if key.startswith("val_")}
    keys -= {"val_loss", "val_accuracy"} if not own else set()
    assert len(keys) >= 3
    for key in keys:
        finite = np.isfinite(history[key]).tolist()
        assert finite == [True, False, True], key
    assert len(told(recwarn)) == 1


def test_no_diagram_of_what_is_no_number(data, tmp_path):
    pytest.importorskip("matplotlib")
    diagram = kc.callbacks.ReliabilityDiagram(
        tmp_path / "{epoch}.png", from_logits=True
    )
    with pytest.warns(UserWarning, match=f"{WARNING}, and no diagram"):
        fit(data, [diagram])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1.png", "3.png"]


@pytest.mark.parametrize("own", [False, True])
def test_gammas_stay(own, data):
    loss = kc.losses.AdaFocalLoss(num_bins=4, from_logits=True)
    schedule = kc.callbacks.AdaFocalSchedule(data if own else None)
    with pytest.warns(UserWarning, match=f"{WARNING}, and the gammas stay"):
        history = fit(data, [schedule], loss=loss).history
    means = [1.0, *[schedule.gammas[0].mean()] * 2]
    assert history["mean_gamma"] == pytest.approx(means, rel=1e-6)
    assert len(schedule.gammas) == len(schedule.gaps) == 2
    assert np.isfinite(schedule.gammas).all()


def test_training_goes_on_with_the_labels(data):
    x, y = data
    cape = kc.callbacks.EmpiricalTargets(
        x, y, num_classes=10, cycle=1, from_logits=True
    )
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(cape.data.arrays[1])
    )
    with pytest.warns(UserWarning, match=f"{WARNING}, and training goes on"):
        fit(data, [cape, look], x=(cape.data,), validation_data=None)
    np.testing.assert_array_equal(seen[1], np.eye(10)[y])
    for targets in (seen[0], seen[2]):
        assert (targets != np.eye(10)[y]).any()
        assert np.isfinite(targets).all()


def test_an_epoch_without_numbers_is_not_restored(data):
    monitor = kc.callbacks.CalibrationMonitor(refinement=True, from_logits=True)
    restore = kc.callbacks.RestoreCalibrated(max_accuracy_loss=1.0)
    with pytest.warns(UserWarning, match=WARNING):
        history = fit(data, [monitor, restore]).history
    assert restore.best_epoch in (0, 2)
    assert restore.best == np.nanmin(history["val_refinement_loss"])
    assert history["restored_val_refinement_loss"] == [restore.best] * EPOCHS


def test_nothing_but_nan_restores_nothing(data):
    monitor = kc.callbacks.CalibrationMonitor(refinement=True, from_logits=True)
    restore = kc.callbacks.RestoreCalibrated()
    options = {"epochs": 2, "initial_epoch": 1, "loss": LOSS}
    with pytest.warns(UserWarning, match="or look for NaN in the logs"):
        history = fit(data, [monitor, restore], **options).history
    assert restore.best is None
    assert np.isnan(history["restored_val_refinement_loss"]).all()


def test_samples_are_dropped_by_confidences_that_are_numbers(data):
    x, y = data
    pruning = kc.callbacks.DataPruning(
        x, y, every=1, fraction=0.25, min_per_class=0
    )
    watch = kc.callbacks.CorrectnessHistory()
    model = kc.models.SampleHistoryModel(network(), num_samples=len(x))
    history = fit(
        data,
        [pruning, watch],
        model,
        x=(pruning.data,),
        validation_data=None,
    ).history
    assert history["kept_samples"] == [48, 36, 27]
    assert np.isfinite(history["mean_correctness"]).all()
    found = model.sample_history()
    assert np.isfinite(found["confidence"]).all()
    assert (found["average_confidence"] > 0).all()


def test_no_sample_is_dropped_without_any_number(data):
    x, y = data
    pruning = kc.callbacks.DataPruning(x, y, every=1, fraction=0.25)
    model = kc.models.SampleHistoryModel(network(), num_samples=len(x))

    class Later(Diverged):
        """Only from the second batch on: the first one is checked."""

        def on_train_batch_end(self, batch, logs=None):
            self.on_epoch_begin(1)

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                super().on_epoch_begin(epoch)

    model.compile(keras.optimizers.SGD(1e-2), LOSS)
    history = model.fit(
        pruning.data,
        epochs=1,
        callbacks=[Later(), pruning],
        verbose=0,
    ).history
    found = model.sample_history()
    assert (found["seen"] == 1).all()
    assert (found["confidence"] > 0).sum() == 32
    # A quarter of those that have a confidence.
    assert history["kept_samples"] == [56]
    assert (found["confidence"][pruning.dropped] > 0).all()


@pytest.mark.parametrize("own", [False, True])
def test_a_step_that_is_too_large(own, data):
    model = network()
    model.compile(keras.optimizers.SGD(1e30), LOSS)
    held = data if own else None
    for _ in range(2):  # the second call begins with NaN
        monitor = kc.callbacks.CalibrationMonitor(held, from_logits=True)
        end = keras.callbacks.TerminateOnNaN()
        with pytest.warns(UserWarning, match="not finite from epoch 1 on"):
            history = model.fit(
                *data,
                epochs=3,
                validation_data=data,
                callbacks=[end, monitor],
                verbose=0,
            ).history
        assert np.isnan(history["val_brier_score"]).all()
        assert len(history["val_brier_score"]) == 1


def test_what_contradicts_from_logits_is_an_error_beside_nan(data):
    class Plain(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(10)

        def call(self, x):
            nan = keras.ops.where(x[:, :1] > 1e3, float("nan"), 0.0)
            return self.dense(x) + nan

    x = data[0].copy()
    x[3] = 1e6
    for own in (False, True):
        model = Plain()
        model.compile("sgd", kc.losses.FocalLoss(from_logits=True))
        monitor = kc.callbacks.CalibrationMonitor((x, data[1]) if own else None)
        with pytest.raises(ValueError, match=r"Received: (NaN|values from)"):
            model.fit(
                *data,
                validation_data=(x, data[1]),
                callbacks=[monitor],
                verbose=0,
            )
