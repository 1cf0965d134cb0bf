"""`RestoreCalibrated`: the best epoch among those that are accurate."""

import errno
import gc
import os
import subprocess
import sys
import tempfile
import warnings

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.callbacks import _restore_calibrated as module
from tests.helpers import small_network

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = np.arange(32) % 3


class Script(keras.callbacks.Callback):
    """Logs and weights of each epoch, as written down."""

    def __init__(self, values, accuracies, key="val_refinement_loss"):
        super().__init__()
        self.rows = list(zip(values, accuracies, strict=True))
        self.key = key

    def on_epoch_end(self, epoch, logs=None):
        value, accuracy = self.rows[epoch]
        logs |= {self.key: value, "val_accuracy": accuracy}
        for variable in self.model.weights:
            variable.assign(keras.ops.full(variable.shape, epoch + 1.0))


class Files(keras.callbacks.Callback):
    """How many epochs have their weights on the disk."""

    def __init__(self, restore):
        super().__init__()
        self.restore, self.counts = restore, []

    def on_epoch_end(self, epoch, logs=None):
        kept = self.restore._candidates
        assert not any(each.weights._file.closed for each in kept)
        self.counts.append(len(kept))


def network(outputs=3, **kwargs):
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(outputs)], **kwargs
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), loss, metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def model():
    return network()


def run(model, values, accuracies, restore=None, before=(), after=()):
    restore = restore or kc.callbacks.RestoreCalibrated()
    script = Script(values, accuracies, restore.monitor)
    history = model.fit(
        X,
        Y,
        epochs=len(values),
        verbose=0,
        callbacks=[script, *before, restore, *after],
    ).history
    return restore, history


def epoch_of(model):
    """The epoch that the weights are of, by their values."""
    values = {float(np.max(w)) for w in model.get_weights()}
    assert len(values) == 1
    return values.pop() - 1


@pytest.mark.parametrize(
    ("values", "accuracies", "arguments", "best"),
    [
        # The lowest value, but not where the network still guesses.
        ([0.1, 0.5, 0.4, 0.6], [0.1, 0.9, 0.9, 0.9], {}, 2),
        # Within 0.01 of the best accuracy, also by the rounding of float32.
        ([0.3, 0.4], [float(np.float32(0.95)), float(np.float32(0.96))], {}, 0),
        ([0.3, 0.4], [0.949, 0.96], {}, 1),
        ([0.3, 0.4], [0.949, 0.96], {"max_accuracy_loss": 0.05}, 0),
        ([0.3, 0.4], [0.95, 0.951], {"max_accuracy_loss": 0}, 1),
        # An epoch that leads loses its place to a more accurate network.
        ([0.2, 0.5, 0.6, 0.7], [0.5, 0.5, 0.9, 0.905], {}, 2),
        # Of equal values the more accurate, then the first.
        ([0.3, 0.3, 0.3], [0.9, 0.905, 0.905], {}, 1),
        # What is no number cannot win.
        ([float("nan"), 0.4, 0.3], [0.9, 0.9, float("nan")], {}, 1),
        ([0.3, 0.4, 0.2], [0.9, 0.9, 0.9], {"mode": "max"}, 1),
    ],
    ids=[
        "guessing",
        "rounding",
        "too inaccurate",
        "more allowed",
        "nothing allowed",
        "overtaken",
        "ties",
        "nan",
        "max",
    ],
)
def test_restores_the_best_of_the_accurate_epochs(
    model, values, accuracies, arguments, best
):
    restore, _ = run(
        model,
        values,
        accuracies,
        kc.callbacks.RestoreCalibrated(**arguments),
    )
    assert epoch_of(model) == best == restore.best_epoch
    assert restore.best == values[best]
    assert restore.best_accuracy == accuracies[best]


def test_what_is_kept_is_what_can_still_win():
    # By brute force over what may follow: any later epoch may raise the limit.
    rng = np.random.default_rng(0)
    for _ in range(50):
        all_of_them = [
            module.Candidate(epoch, value, accuracy)
            for epoch, (value, accuracy) in enumerate(
                rng.integers(0, 8, (12, 2)) / 100
            )
        ]
        kept = []
        for each in all_of_them:
            kept = module.still_needed([*kept, each], 0.03)
        # A later epoch with a hopeless value, at each accuracy.
        winners = set()
        for accuracy in np.arange(0, 12) / 100:
            last = module.Candidate(99, 1.0, accuracy)
            allowed = max(c.accuracy for c in [*all_of_them, last]) - 0.03
            able = [c for c in all_of_them if c.accuracy >= allowed - 1e-9]
            if able:
                winners.add(
                    min(able, key=lambda c: (c.value, -c.accuracy, c.epoch))
                )
        assert set(kept) == winners


def test_only_needed_weights_are_on_the_disk(model):
    restore = kc.callbacks.RestoreCalibrated()
    files = Files(restore)
    # Worse and no more accurate; better; more accurate; beyond the limit.
    values = [0.5, 0.6, 0.4, 0.45, 0.7]
    accuracies = [0.90, 0.90, 0.90, 0.905, 0.93]
    run(model, values, accuracies, restore, after=[files])
    assert files.counts == [1, 1, 1, 2, 1]
    assert restore._candidates == []


def test_weights_are_not_in_memory_and_files_have_no_name(
    model, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            stored = self.restore._candidates[0].weights
            seen.append(os.fstat(stored._file.fileno()).st_size)
            arrays = [
                value
                for value in vars(stored).values()
                if isinstance(value, np.ndarray | bytes)
            ]
            assert not arrays
            if os.name == "posix":
                assert not os.listdir(tmp_path)

    look = Look()
    look.restore = kc.callbacks.RestoreCalibrated()
    run(model, [0.5], [0.9], look.restore, after=[look])
    assert seen == [(4 * 3 + 3) * 4]  # bytes of float32
    assert not os.listdir(tmp_path)


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyboardInterrupt


def test_a_failure_leaves_no_file_and_the_next_fit_starts_afresh(
    model, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    restore = kc.callbacks.RestoreCalibrated()
    with pytest.raises(KeyboardInterrupt):
        run(model, [0.1], [0.9], restore, after=[Fails()])
    assert not os.listdir(tmp_path)
    (old,) = restore._candidates
    run(model, [0.7, 0.6], [0.8, 0.8], restore)
    assert old.weights._file.closed
    assert (restore.best, restore.best_epoch) == (0.6, 1)
    assert not os.listdir(tmp_path)


def test_a_full_disk_is_told_and_leaves_the_candidates(model, monkeypatch):
    restore = kc.callbacks.RestoreCalibrated()
    opened = []
    temporary = tempfile.TemporaryFile

    class Full:
        def __init__(self, **kwargs):
            self.file = temporary(**kwargs)
            opened.append(self.file)

        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def close(self):
            self.file.close()
            self.write(b"")  # what is left is written as a file is closed

    class Fill(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch:
                monkeypatch.setattr(tempfile, "TemporaryFile", Full)

    told = "Weights do not fit into the temporary folder .*: No space left"
    with pytest.raises(OSError, match=told):
        run(model, [0.5, 0.4], [0.9, 0.9], restore, before=[Fill()])
    assert opened[0].closed
    assert [each.epoch for each in restore._candidates] == [0]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="names of temporary files")
def test_a_process_that_is_killed_leaves_no_file(tmp_path):
    code = (
        "import os, signal, numpy as np, keras\n"
        "from keras_calib.callbacks._restore_calibrated import StoredWeights\n"
        "stored = StoredWeights([keras.Variable(np.ones(9))])\n"
        "stored.restore()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", code], env=environment)
    assert found.returncode < 0
    left = [name for name in os.listdir(tmp_path) if "keras_calib" in name]
    assert not left


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "int32", "bool"]
)
def test_values_of_any_type_come_back(dtype):
    start = np.arange(6).reshape(2, 3)
    variables = [
        keras.Variable(start, dtype=dtype, trainable=False),
        keras.Variable(1, dtype=dtype, trainable=False),
    ]
    before = [keras.ops.convert_to_numpy(v).copy() for v in variables]
    stored = module.StoredWeights(variables)
    for variable in variables:
        variable.assign(keras.ops.zeros(variable.shape, dtype))
    stored.restore()
    for value, variable in zip(before, variables, strict=True):
        now = keras.ops.convert_to_numpy(variable)
        assert now.dtype == value.dtype and (now == value).all()
    stored.close()
    gc.collect()


def test_the_log_is_what_would_be_restored_and_ends_as_what_was(
    model, tmp_path
):
    path = tmp_path / "log.csv"
    values, accuracies = [0.1, 0.5, 0.4, 0.6], [0.1, 0.9, 0.9, 0.9]
    key = "restored_val_refinement_loss"
    _, history = run(
        model,
        values,
        accuracies,
        after=[keras.callbacks.CSVLogger(str(path))],
    )
    lines = [line.split(",") for line in path.read_text().splitlines()]
    column = lines[0].index(key)
    running = [float(line[column]) for line in lines[1:]]
    assert running == [0.1, 0.5, 0.4, 0.4]
    # A tuner takes the best epoch of a History: 0.1 was not restored.
    assert history[key] == [0.4] * 4
    best = min(range(4), key=lambda epoch: history[key][epoch])
    assert history[key][best] == 0.4


def test_missing_keys_are_told_at_once(model):
    def fit(*callbacks, validation=True, epochs=2):
        return model.fit(
            X,
            Y,
            validation_data=(X, Y) if validation else None,
            epochs=epochs,
            verbose=0,
            callbacks=list(callbacks),
        )

    restore = kc.callbacks.RestoreCalibrated()
    with pytest.raises(
        ValueError,
        match=r"no \['val_refinement_loss'\] after epoch 1.*before this one",
    ):
        fit(restore)
    monitor = kc.callbacks.CalibrationMonitor(
        refinement=True, metrics=[], from_logits=True
    )
    # In the wrong order.
    with pytest.raises(ValueError, match="before this one in the list"):
        fit(restore, monitor)
    wrong = kc.callbacks.RestoreCalibrated(accuracy_key="val_acc")
    with pytest.raises(ValueError, match=r"no \['val_acc'\].*accuracy_key"):
        fit(monitor, wrong)
    with pytest.raises(ValueError, match=r"\['val_nll', 'val_acc'\]"):
        fit(
            kc.callbacks.RestoreCalibrated("val_nll", accuracy_key="val_acc"),
        )
    before = model.get_weights()
    with pytest.warns(UserWarning, match="restored no weights"):
        fit(restore, validation=False)
    for old, new in zip(before, model.get_weights(), strict=True):
        assert (old == new).all()
    assert restore.best is None


def test_epochs_without_validation_are_skipped(model):
    monitor = kc.callbacks.CalibrationMonitor(
        refinement=True, metrics=[], from_logits=True
    )
    restore = kc.callbacks.RestoreCalibrated()
    history = model.fit(
        X,
        Y,
        validation_data=(X, Y),
        validation_freq=2,
        epochs=3,
        verbose=0,
        callbacks=[monitor, restore],
    ).history
    assert restore.best_epoch == 1
    assert history["restored_val_refinement_loss"] == [restore.best]


def test_bad_arguments():
    with pytest.raises(ValueError, match=r'"min" or "max".*auto'):
        kc.callbacks.RestoreCalibrated(mode="auto")
    for wrong in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="max_accuracy_loss"):
            kc.callbacks.RestoreCalibrated(max_accuracy_loss=wrong)


MODELS = {
    "DiffDML": lambda: kc.models.DiffDML(
        small_network(inputs=4, num_classes=3),
        small_network(inputs=4, num_classes=3),
    ),
    "SampleHistoryModel": lambda: kc.models.SampleHistoryModel(
        small_network(inputs=4, num_classes=3), num_samples=len(X)
    ),
    "InterleavedTraining": lambda: kc.models.InterleavedTraining(
        small_network(inputs=4, num_classes=3), penalty_split=0.25
    ),
}


class Keep(keras.callbacks.Callback):
    """Outputs of the model after each epoch."""

    def __init__(self):
        super().__init__()
        self.outputs = []

    def on_epoch_end(self, epoch, logs=None):
        outputs = self.model(X, training=False)
        self.outputs.append(keras.ops.convert_to_numpy(outputs))


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_around_networks_is_restored(kind):
    model = MODELS[kind]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if kind == "InterleavedTraining":
        loss = kc.losses.MDCA(from_logits=True)
    model.compile(keras.optimizers.SGD(1.0), loss, metrics=["accuracy"])
    x = kc.add_sample_index(X) if kind == "SampleHistoryModel" else X
    keep = Keep()
    # The first epoch is within reach, and has the lowest of these values.
    script = Scripted([0.2, 0.3, 0.4])
    restore = kc.callbacks.RestoreCalibrated("value", max_accuracy_loss=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(
            x,
            Y,
            validation_data=(X, Y),
            epochs=3,
            verbose=0,
            callbacks=[script, keep, restore],
        )
    assert restore.best_epoch == 0
    found = keras.ops.convert_to_numpy(model(X, training=False))
    assert found == pytest.approx(keep.outputs[0], abs=1e-6)
    assert np.abs(found - keep.outputs[2]).max() > 1e-3


class Scripted(keras.callbacks.Callback):
    """A value for each epoch."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def on_epoch_end(self, epoch, logs=None):
        logs["value"] = self.values[epoch]


def test_with_early_stopping_and_a_later_fit(digits):
    (x, y), validation, _ = digits
    model = small_network()
    model.compile(
        keras.optimizers.Adam(0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    restore = kc.callbacks.RestoreCalibrated()
    callbacks = [
        kc.callbacks.CalibrationMonitor(
            refinement=True, metrics=[], from_logits=True
        ),
        keras.callbacks.EarlyStopping(
            "val_refinement_loss", mode="min", patience=1, min_delta=10.0
        ),
        restore,
    ]
    for _ in range(2):
        history = model.fit(
            x[:200],
            y[:200],
            validation_data=validation,
            epochs=4,
            verbose=0,
            callbacks=callbacks,
        ).history
        assert len(history["val_refinement_loss"]) == 2
        scores = model.predict(validation[0], verbose=0)
        layer = kc.layers.TemperatureScaling().adapt(scores, validation[1])
        assert restore.best == pytest.approx(
            layer.record["nll_after"], rel=1e-5
        )
        assert restore.best in history["val_refinement_loss"]


def test_a_loop_without_a_history_is_restored(model):
    restore = kc.callbacks.RestoreCalibrated()
    restore.set_model(model)
    before = getattr(model, "history", None)
    model.history = None
    restore.on_train_begin()
    for epoch, value in enumerate([0.3, 0.2, 0.4]):
        for variable in model.weights:
            variable.assign(keras.ops.full(variable.shape, epoch + 1.0))
        logs = {"val_refinement_loss": value, "val_accuracy": 0.9}
        restore.on_epoch_end(epoch, logs)
    restore.on_train_end()
    model.history = before
    assert (restore.best_epoch, epoch_of(model)) == (1, 1)
