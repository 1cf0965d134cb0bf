"""Ghosh et al., NeurIPS 2022: the update of the gammas, and who sees it."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.callbacks import _adafocal_schedule as adafocal_schedule
from tests.helpers import small_network
from tests.helpers import to_numpy


def compiled_network(learning_rate=1e-2, num_bins=15, wrap=None, **kwargs):
    loss = kc.losses.AdaFocalLoss(num_bins=num_bins, from_logits=True)
    model = small_network()
    model.compile(
        keras.optimizers.SGD(learning_rate),
        loss if wrap is None else wrap(loss),
        metrics=["accuracy", *loss.component_metrics()],
        **kwargs,
    )
    return model, loss


def test_update_rule():
    # The second gamma falls, the third and the last change sides, the fifth
    # and the sixth are clipped.
    before = [1.0, 1.0, 0.21, -0.3, -1.9, 19.5, -0.21]
    gaps = [0.1, -0.25, -0.2, 0.05, -0.3, 0.2, 0.1]
    after = adafocal_schedule.updated_gammas(before, np.array(gaps))
    expected = [
        1.10517092,
        0.77880078,
        -0.2,
        -0.28536883,
        -2.0,
        20.0,
        0.2,
    ]
    np.testing.assert_allclose(after, expected, rtol=1e-7)


def test_edges_hold_equally_many():
    confidence = np.array([0.94, 0.26, 0.53, 0.99, 0.61, 0.75])
    edges = adafocal_schedule.interpolated_edges(confidence, 3)
    np.testing.assert_allclose(edges, [0.26, 0.61, 0.94, 0.99])


def test_edges_hold_equally_much_weight():
    confidence = np.array([0.94, 0.26, 0.53, 0.99, 0.61, 0.75])
    weight = np.array([1.0, 3.0, 1.0, 2.0, 1.0, 1.0])
    edges = adafocal_schedule.interpolated_edges(confidence, 3, weight)
    # Weights before each sample: 0, 3, 4, 5, 6, 7; the cuts at 3 and 6.
    np.testing.assert_allclose(edges, [0.26, 0.53, 0.94, 0.99])
    ones = adafocal_schedule.interpolated_edges(confidence, 4)
    same = adafocal_schedule.interpolated_edges(confidence, 4, np.full(6, 0.3))
    np.testing.assert_allclose(same, ones, rtol=1e-12)


def test_weights_move_edges_and_gaps(digits):
    (x, y), (x_val, y_val), _ = digits
    model, _ = compiled_network(0.0, num_bins=4)
    logits = model.predict(x_val, verbose=0)
    confidence = to_numpy(keras.ops.softmax(logits)).max(axis=-1)
    weight = np.where(confidence > np.median(confidence), 3, 1)
    edges, gaps = [], []
    for validation in (
        (x_val, y_val, weight),
        (np.repeat(x_val, weight, 0), np.repeat(y_val, weight)),
        (x_val, y_val),
    ):
        schedule = kc.callbacks.AdaFocalSchedule(validation)
        model.fit(x[:32], y[:32], callbacks=[schedule], verbose=0)
        edges.append(schedule.edges)
        gaps.append(schedule.gaps[0])
    # As many samples, to about one in each bin.
    to_repeats, to_plain = (
        np.abs(edges[0] - other).max() for other in edges[1:]
    )
    assert to_repeats < to_plain / 3
    np.testing.assert_allclose(gaps[0], gaps[1], atol=2e-2)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("every", [1, 2])
def test_an_interrupted_run_resumes(every, first, digits, tmp_path):
    (x, y), validation, _ = digits

    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def run(*others):
        keras.utils.set_random_seed(0)
        model, loss = compiled_network(0.1, num_bins=4)
        callbacks = [kc.callbacks.AdaFocalSchedule(validation, every=every)]
        callbacks = [*others, *callbacks] if first else [*callbacks, *others]
        arguments = {"epochs": 4, "shuffle": False, "verbose": 0}
        model.fit(x[:128], y[:128], callbacks=callbacks, **arguments)
        return model, keras.ops.convert_to_numpy(loss.table.gammas)

    whole, gammas = run()
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        run(backup, Stop())
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    resumed, found = run(backup)
    np.testing.assert_allclose(found, gammas, rtol=1e-4)
    for ours, theirs in zip(
        resumed.get_weights(), whole.get_weights(), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_weights_that_were_saved_too_early(digits, tmp_path):
    (x, y), validation, _ = digits
    path = str(tmp_path / "latest.weights.h5")
    arguments = {"validation_data": validation, "verbose": 0}
    model, _ = compiled_network()
    saver = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    schedule = kc.callbacks.AdaFocalSchedule()
    model.fit(x, y, callbacks=[saver, schedule], **arguments)
    model.load_weights(path)
    with pytest.warns(UserWarning, match="Put AdaFocalSchedule before"):
        model.fit(
            x, y, callbacks=[schedule], epochs=2, initial_epoch=1, **arguments
        )


def test_a_loaded_model_has_one_table(digits, tmp_path):
    (x, y), _, _ = digits
    model, loss = compiled_network(num_bins=4)
    model.train_on_batch(x[:32], y[:32])
    loss.table.set([0.3, 0.5, 0.7], [3.0, -1.0, 0.5, 2.0])
    model.save(tmp_path / "model.keras")
    path = tmp_path / "model.keras"
    pair = [keras.models.load_model(path) for _ in range(2)]
    assert pair[0].loss.table is not pair[1].loss.table
    for again in pair:
        logs = again.evaluate(x, y, verbose=0, return_dict=True)
        assert logs["mean_gamma"] == pytest.approx(1.125)
    before = pair[0].evaluate(x, y, verbose=0, return_dict=True)["loss"]
    pair[0].loss.table.set([0.3, 0.5, 0.7], [0.0] * 4)
    after = pair[0].evaluate(x, y, verbose=0, return_dict=True)
    assert after["mean_gamma"] == 0.0 and after["loss"] != before
    logs = pair[1].evaluate(x, y, verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx(before, rel=1e-6)


def test_two_tables_become_that_of_the_metric(digits):
    # Configs without the number that makes loss and metric a pair.
    (x, y), validation, _ = digits
    given = kc.losses.AdaFocalLoss(num_bins=4, from_logits=True)
    configs = [part.get_config() for part in (given, given.table)]
    for config in configs:
        del config["pair"]
    loss = kc.losses.AdaFocalLoss.from_config(configs[0])
    table = type(loss.table).from_config(configs[1])
    assert table is not loss.table
    gammas = np.array([3.0, -1.0, 0.5, 2.0])
    loss.table.set([0.3, 0.5, 0.7], gammas)
    model = small_network()
    model.compile(keras.optimizers.SGD(0.0), loss, metrics=[table])
    schedule = kc.callbacks.AdaFocalSchedule(validation)
    options = {"epochs": 2, "callbacks": [schedule], "verbose": 0}
    logs = model.fit(x[:32], y[:32], **options).history
    assert loss.table is table
    expected = adafocal_schedule.updated_gammas(gammas, schedule.gaps[0])
    np.testing.assert_allclose(schedule.gammas[0], expected, rtol=1e-6)
    means = [gammas.mean(), expected.mean()]
    assert logs["mean_gamma"] == pytest.approx(means, rel=1e-6)
    assert logs["loss"][0] != logs["loss"][1]


def test_gap_of_each_bin():
    # Bins (.26, .61], (.61, .94], (.94, .99], the first with its lower edge.
    confidence = np.array([0.26, 0.53, 0.61, 0.75, 0.94, 0.99])
    correct = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    edges = np.array([0.26, 0.61, 0.94, 0.99])
    gaps = adafocal_schedule.bin_gaps(confidence, correct, edges)
    expected = [(1.4 - 1) / 3, (1.69 - 2) / 2, 0.99]
    np.testing.assert_allclose(gaps, expected)
    weight = np.array([1.0, 1.0, 2.0, 1.0, 0.0, 1.0])
    gaps = adafocal_schedule.bin_gaps(confidence, correct, edges, weight)
    expected = [(0.26 - 0.47 + 2 * 0.61) / 4, -0.25, 0.99]
    np.testing.assert_allclose(gaps, expected)


def test_an_empty_bin_has_no_gap():
    # Every confidence is 1: the bins between equal edges are empty.
    confidence, correct = np.ones(6), np.array([1.0, 1, 1, 1, 1, 0])
    edges = adafocal_schedule.interpolated_edges(confidence, 3)
    gaps = adafocal_schedule.bin_gaps(confidence, correct, edges)
    np.testing.assert_allclose(np.sort(gaps), [0, 0, 1 / 6])


@pytest.mark.parametrize("kind", ["plain", "primary"])
def test_the_compiled_step_sees_the_new_gammas(kind, digits):
    (x, y), validation, _ = digits
    wrap = None
    if kind == "primary":

        def wrap(loss):
            return kc.losses.MarginLabelSmoothing(
                primary=loss, weight=0.0, from_logits=True
            )

    # A model that does not learn: only the gammas can change the loss.
    model, _ = compiled_network(learning_rate=0.0, num_bins=5, wrap=wrap)
    schedule = kc.callbacks.AdaFocalSchedule(validation)
    logs = model.fit(
        x,
        y,
        epochs=3,
        validation_data=validation,
        callbacks=[schedule],
        verbose=0,
    ).history
    assert len(schedule.gammas) == 3
    logits = model.predict(x, verbose=0)

    def expected_loss(edges, gammas):
        values = kc.losses.ada_focal_loss(y, logits, edges=edges, gammas=gammas)
        return keras.ops.convert_to_numpy(values).mean()

    # The bins of a model that does not learn are always the same ones.
    edges = schedule.edges[1:-1]
    expected = [
        expected_loss(np.arange(1, 5) / 5, np.ones(5)),
        *(expected_loss(edges, gammas) for gammas in schedule.gammas[:2]),
    ]
    assert logs["loss"] == pytest.approx(expected, rel=1e-5)
    assert len(set(logs["loss"])) == 3
    # The mean gamma of each epoch is in the logs.
    means = [1.0, *(gammas.mean() for gammas in schedule.gammas[:2])]
    assert logs["mean_gamma"] == pytest.approx(means, rel=1e-5)
    assert logs["val_loss"][0] != logs["val_loss"][1]


def test_gaps_are_those_of_the_data(digits):
    _, (x, y), _ = digits
    model, _ = compiled_network(learning_rate=0.0, num_bins=4)
    schedule = kc.callbacks.AdaFocalSchedule((x, y))
    model.fit(x[:32], y[:32], callbacks=[schedule], verbose=0)
    p = to_numpy(keras.ops.softmax(model.predict(x, verbose=0)))
    confidence, correct = p.max(-1), p.argmax(-1) == y
    order = np.argsort(confidence)
    # 400 samples in 4 bins of 100; the upper edge is inside the lower bin.
    parts = np.split(order, [101, 201, 301])
    expected = [(confidence[part] - correct[part]).mean() for part in parts]
    np.testing.assert_allclose(schedule.gaps[0], expected, atol=1e-6)
    np.testing.assert_allclose(schedule.gammas[0], np.exp(expected), rtol=1e-5)


@pytest.mark.slow
def test_every_other_epoch(digits):
    (x, y), validation, _ = digits
    model, _ = compiled_network()
    schedule = kc.callbacks.AdaFocalSchedule(validation, every=2)
    model.fit(x, y, epochs=5, callbacks=[schedule], verbose=0)
    assert len(schedule.gammas) == 2


def test_epochs_are_counted_over_calls_of_fit(digits):
    (x, y), validation, _ = digits
    model, _ = compiled_network()
    schedule = kc.callbacks.AdaFocalSchedule(validation, every=2)
    for updates in (0, 1, 1, 2):
        model.fit(x[:64], y[:64], callbacks=[schedule], verbose=0)
        assert len(schedule.gammas) == updates


def fit_with(loss, data, model=None, before=(), **kwargs):
    """A model, or a new one, after `fit`, and the mean gammas of its epochs."""
    if model is None:
        keras.utils.set_random_seed(0)
        model = small_network()
        model.compile(
            keras.optimizers.SGD(1e-2), loss, metrics=loss.component_metrics()
        )
    schedule = kc.callbacks.AdaFocalSchedule(data)
    callbacks = [*before, schedule]
    history = model.fit(*data, callbacks=callbacks, verbose=0, **kwargs)
    return model, history.history["mean_gamma"]


def test_a_new_model_begins_with_the_first_gammas(digits):
    data = tuple(part[:64] for part in digits[1])
    loss = kc.losses.AdaFocalLoss(num_bins=4, gamma=1.5, from_logits=True)
    first, gammas = fit_with(loss, data, epochs=3)
    assert gammas[0] == 1.5
    assert len(set(gammas)) == 3
    second, again = fit_with(loss, data, epochs=3)
    assert again == pytest.approx(gammas, rel=1e-6)
    # What goes on keeps them: the model, also compiled anew.
    table = loss.table.gammas
    for _ in range(2):
        before = to_numpy(table).mean()
        _, found = fit_with(loss, data, second)
        assert found == [pytest.approx(before, rel=1e-6)]
        metrics = loss.component_metrics()
        second.compile("sgd", loss, metrics=metrics)
    # So do the layers and steps in another model, and one that begins later.
    before = to_numpy(table).mean()
    third = keras.Model(first.inputs[0], first.outputs[0])
    third.compile(first.optimizer, loss, metrics=loss.component_metrics())
    _, found = fit_with(loss, data, third)
    assert found == [pytest.approx(before, rel=1e-6)]
    before = to_numpy(table).mean()
    _, found = fit_with(loss, data, epochs=4, initial_epoch=3)
    assert found == [pytest.approx(before, rel=1e-6)]


def test_gammas_that_were_set_or_read_are_kept(digits, tmp_path):
    data = tuple(part[:64] for part in digits[1])
    loss = kc.losses.AdaFocalLoss(num_bins=4, from_logits=True)
    loss.table.set([0.3, 0.5, 0.7], [3.0, 1.0, 2.0, 4.0])
    model, found = fit_with(loss, data)
    assert found == [2.5]
    after = to_numpy(loss.table.gammas).mean()
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    _, found = fit_with(loaded.loss, data, loaded)
    assert found == [pytest.approx(after, rel=1e-6)]
    # Weights of the first model in a new one with the same loss.
    other = small_network()
    other.compile("adam", loss, metrics=loss.component_metrics())
    other.load_weights(tmp_path / "model.weights.h5")
    _, found = fit_with(loss, data, other)
    assert found == [pytest.approx(after, rel=1e-6)]


def test_a_new_model_resumes_with_the_gammas_of_its_backup(digits, tmp_path):
    data = tuple(part[:64] for part in digits[1])
    loss = kc.losses.AdaFocalLoss(num_bins=4, from_logits=True)

    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise RuntimeError("killed")

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path)

    _, whole = fit_with(loss, data, epochs=3, shuffle=False)
    with pytest.raises(RuntimeError, match="killed"):
        fit_with(
            loss,
            data,
            before=[backup(), Stop()],
            epochs=3,
            shuffle=False,
        )
    _, rest = fit_with(loss, data, before=[backup()], epochs=3, shuffle=False)
    assert rest == pytest.approx(whole[2:], rel=1e-5)


@pytest.mark.parametrize("source", ["arrays", "generator"])
@pytest.mark.parametrize("calls", [(1, 5), (3, 3, 3)])
def test_the_period_goes_on_with_the_predictions_of_fit(digits, calls, source):
    # The epochs that are read are not those that one call would read.
    (x, y), validation, _ = digits
    held = [part[:40] for part in validation]

    def gaps(own):
        keras.utils.set_random_seed(0)
        model, _ = compiled_network()
        schedule = kc.callbacks.AdaFocalSchedule(own, every=2)
        for epochs in calls:
            data = tuple(held)
            if source == "generator":
                data = ((held[0], held[1]) for _ in range(epochs))
            model.fit(
                x[:64],
                y[:64],
                epochs=epochs,
                shuffle=False,
                validation_data=data,
                validation_steps=1 if source == "generator" else None,
                batch_size=64,
                callbacks=[schedule],
                verbose=0,
            )
        return schedule.gaps

    found = gaps(None)
    assert len(found) == sum(calls) // 2
    np.testing.assert_allclose(found, gaps(tuple(held)), atol=1e-5)


def test_epochs_without_validation_keep_the_gammas(digits):
    (x, y), validation, _ = digits
    model, _ = compiled_network()
    schedule = kc.callbacks.AdaFocalSchedule()
    model.fit(
        x[:32],
        y[:32],
        epochs=3,
        validation_data=validation,
        validation_freq=2,
        callbacks=[schedule],
        verbose=0,
    )
    assert len(schedule.gammas) == len(schedule.gaps) == 1


@pytest.mark.slow
def test_save_and_load_in_mid_training(digits, tmp_path):
    (x, y), validation, _ = digits
    model, loss = compiled_network()
    schedule = kc.callbacks.AdaFocalSchedule(validation)
    model.fit(x, y, epochs=2, callbacks=[schedule], verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    gammas = keras.ops.convert_to_numpy(loss.table.gammas)
    np.testing.assert_array_equal(again.loss.table.gammas, gammas)
    assert again.evaluate(x, y, verbose=0)[0] == pytest.approx(
        model.evaluate(x, y, verbose=0)[0], rel=1e-6
    )
    # It goes on from there, and the compiled step sees it.
    arguments = {"epochs": 2, "shuffle": False, "verbose": 0}
    schedules = [kc.callbacks.AdaFocalSchedule(validation) for _ in range(2)]
    logs = [
        m.fit(x, y, callbacks=[s], **arguments).history["loss"]
        for m, s in zip((model, again), schedules, strict=True)
    ]
    assert logs[0] == pytest.approx(logs[1], rel=1e-5)
    np.testing.assert_allclose(
        schedules[0].gammas[-1], schedules[1].gammas[-1], rtol=1e-5
    )


def test_weights_files_hold_the_gammas(digits, tmp_path):
    (x, y), validation, _ = digits
    model, loss = compiled_network()
    schedule = kc.callbacks.AdaFocalSchedule(validation)
    path = str(tmp_path / "latest.weights.h5")
    model.fit(x, y, callbacks=[schedule], verbose=0)
    model.save_weights(path)
    other, other_loss = compiled_network()
    other.load_weights(path)
    gammas = keras.ops.convert_to_numpy(loss.table.gammas)
    assert not (gammas == 1).all()
    np.testing.assert_array_equal(other_loss.table.gammas, gammas)


@pytest.mark.slow
def test_with_a_history_model(digits):
    (x, y), validation, _ = digits
    loss = kc.losses.AdaFocalLoss(from_logits=True)
    model = kc.models.SampleHistoryModel(small_network(), num_samples=len(x))
    crl = kc.losses.CRL(primary=loss, from_logits=True)
    model.compile("adam", crl, metrics=loss.component_metrics())
    schedule = kc.callbacks.AdaFocalSchedule(validation)
    logs = model.fit(
        kc.add_sample_index(x), y, epochs=3, callbacks=[schedule], verbose=0
    ).history
    assert logs["penalty"][-1] > 0
    assert len(set(logs["mean_gamma"])) == 3


def test_what_is_missing(digits):
    (x, y), validation, _ = digits
    schedule = kc.callbacks.AdaFocalSchedule(validation)
    model = small_network()
    model.compile("sgd", kc.losses.FocalLoss(from_logits=True))
    with pytest.raises(ValueError, match="AdaFocalLoss"):
        model.fit(x, y, callbacks=[schedule], verbose=0)
    model.compile("sgd", kc.losses.AdaFocalLoss(from_logits=True))
    with pytest.raises(ValueError, match="component_metrics"):
        model.fit(x, y, callbacks=[schedule], verbose=0)
    model, _ = compiled_network()
    nothing = (*validation, np.zeros(len(validation[1])))
    schedule = kc.callbacks.AdaFocalSchedule(nothing)
    with pytest.raises(ValueError, match="has no sample to measure a gap on"):
        model.fit(x, y, callbacks=[schedule], verbose=0)
    with pytest.raises(ValueError, match="`every` must be at least 1"):
        kc.callbacks.AdaFocalSchedule(validation, every=0)
    with pytest.raises(ValueError, match="Gammas move between"):
        kc.callbacks.AdaFocalSchedule(validation, gamma_min=-0.1)


def test_the_loss_takes_the_gamma_of_the_bin_that_was_measured():
    # Equal confidences: every edge is 1/4, and one bin has all samples.
    x, y = np.ones((8, 2), "float32"), np.arange(8) % 4
    zeros = keras.layers.Dense(4, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((2,)), zeros])
    loss = kc.losses.AdaFocalLoss(num_bins=3, from_logits=True)
    model.compile(
        keras.optimizers.SGD(0.0), loss, metrics=[*loss.component_metrics()]
    )
    schedule = kc.callbacks.AdaFocalSchedule((x, 0 * y + 3))
    model.fit(x, y, callbacks=[schedule], verbose=0)
    (gap,) = schedule.gaps[0][schedule.gaps[0] != 0]
    assert gap == pytest.approx(0.25, abs=1e-6)
    found = model.evaluate(x, y, verbose=0, return_dict=True)["loss"]
    gamma = np.exp(0.25)
    assert found == pytest.approx(0.75**gamma * np.log(4), rel=1e-5)


def own_step(model, stateless):
    """A model with a `train_step` as in Keras' guide for JAX."""
    import jax

    class OwnStep(keras.Model):
        def loss_and_updates(self, trainable, non_trainable, metrics, x, y):
            y_pred, non_trainable = self.stateless_call(
                trainable, non_trainable, x, training=True
            )
            if stateless:
                loss, _ = self.stateless_compute_loss(
                    trainable, non_trainable, metrics, x=x, y=y, y_pred=y_pred
                )
            else:
                loss = self.compute_loss(x, y, y_pred)
            return loss, non_trainable

        def train_step(self, state, data):
            trainable, non_trainable, optimizer, metrics = state
            gradient = jax.value_and_grad(self.loss_and_updates, has_aux=True)
            (loss, non_trainable), gradients = gradient(
                trainable, non_trainable, metrics, *data
            )
            trainable, optimizer = self.optimizer.stateless_apply(
                optimizer, gradients, trainable
            )
            return {"loss": loss}, (
                trainable,
                non_trainable,
                optimizer,
                metrics,
            )

    return OwnStep(model.inputs, model.outputs)


@pytest.mark.backends("jax", reason="on others variables keep their values")
def test_a_step_of_ones_own_needs_the_state_of_the_table(digits):
    (x, y), validation, _ = digits
    found = []
    for make in (
        lambda model: model,
        lambda model: own_step(model, stateless=True),
        lambda model: own_step(model, stateless=False),
    ):
        keras.utils.set_random_seed(0)
        model = make(small_network())
        loss = kc.losses.AdaFocalLoss(num_bins=5, from_logits=True)
        metrics = loss.component_metrics()
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=metrics)
        schedule = kc.callbacks.AdaFocalSchedule(validation)

        def fit(model=model, schedule=schedule):
            model.fit(
                x, y, epochs=3, shuffle=False, callbacks=[schedule], verbose=0
            )

        if len(found) == 2:
            with pytest.raises(ValueError, match="stateless_compute_loss"):
                fit()
        else:
            fit()
            found.append([*model.get_weights(), schedule.gammas[-1]])
    for own, plain in zip(*found, strict=True):
        np.testing.assert_allclose(own, plain, rtol=1e-4, atol=1e-6)
