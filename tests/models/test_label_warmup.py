"""Diff-DML whose auxiliaries see labels at first."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import to_numpy

BATCH, STEPS, WARMUP = 8, 6, 3
CrossEntropy = keras.losses.SparseCategoricalCrossentropy


def network(seed=0):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(3),
        ]
    )


def build(label_warmup=0, count=1, **kwargs):
    model = kc.models.DiffDML(
        network(),
        [network(i + 1) for i in range(count)],
        label_warmup=label_warmup,
        **kwargs,
    )
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        CrossEntropy(from_logits=True),
        auxiliary_optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
    )
    return model


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    size = BATCH * STEPS
    x = rng.normal(size=(size, 4)).astype("float32")
    return x, rng.integers(0, 3, size)


def batches(data, first, last):
    for step in range(first, last):
        part = slice(step * BATCH, (step + 1) * BATCH)
        yield data[0][part], data[1][part]


def train(model, data, first=0, last=STEPS):
    for x, y in batches(data, first, last):
        model.train_on_batch(x, y)


def weights(model):
    return [w for part in model.networks for w in part.get_weights()]


def assert_equal(found, expected, **kwargs):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, **{"atol": 1e-6, **kwargs})


def optimizer_state(model):
    return [to_numpy(v) + 0 for v in model.optimizer.variables]


def test_first_with_labels_then_without(data):
    # By train_on_batch: the first steps are those of the ablation with
    # labels; from there on those of a plain Diff-DML with the same weights.
    warm = build(WARMUP)
    labelled = build(diversity_preserving=False)
    plain = build()
    train(warm, data, 0, WARMUP)
    train(labelled, data, 0, WARMUP)
    assert_equal(weights(warm), weights(labelled))
    train(plain, data, 0, 1)  # builds its optimizer
    for part, source in zip(plain.networks, warm.networks, strict=True):
        part.set_weights(source.get_weights())
    for variable, value in zip(
        plain.optimizer.variables, optimizer_state(warm), strict=True
    ):
        variable.assign(value)
    before = weights(plain)
    train(warm, data, WARMUP, STEPS)
    train(plain, data, WARMUP, STEPS)
    assert_equal(weights(warm), weights(plain))
    # And the labels would have made a difference.
    train(labelled, data, WARMUP, STEPS)
    moved = [
        np.abs(a - b).max()
        for a, b in zip(weights(warm), weights(labelled), strict=True)
    ]
    assert max(moved) > 1e-3
    assert not np.allclose(before[0], weights(plain)[0])


@pytest.mark.parametrize(
    ("fraction", "epochs", "steps"), [(0.25, 2, 3), (0.5, 1, 3), (0.01, 1, 0)]
)
def test_a_fraction_is_of_all_steps_of_fit(data, fraction, epochs, steps):
    found = []
    for label_warmup in (fraction, steps):
        model = build(label_warmup)
        model.fit(
            *data, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0
        )
        found.append(weights(model))
    assert_equal(*found)


def test_fit_is_train_on_batch(data):
    one, other = build(WARMUP, count=2), build(WARMUP, count=2)
    one.fit(*data, batch_size=BATCH, shuffle=False, verbose=0)
    train(other, data)
    assert_equal(weights(one), weights(other))


def test_labels_never_come_back(data):
    # A longer `fit` later: a fraction of its steps would be more than are done.
    warm, plain = build(0.5), build(0.5)
    settings = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    for model in (warm, plain):
        model.fit(*data, **settings)
    results = []
    for model, labels in ((warm, data[1]), (plain, (data[1] + 1) % 3)):
        # The primary is held: an auxiliary without labels follows it alone.
        model.primary.trainable = False
        model.compile(
            keras.optimizers.SGD(0.1),
            CrossEntropy(from_logits=True),
            auxiliary_optimizer=keras.optimizers.SGD(0.05),
        )
        model.fit(data[0], labels, epochs=20, **settings)
        results.append(model.auxiliaries[0].get_weights())
    assert_equal(*results)


@pytest.mark.parametrize("label_warmup", [WARMUP, 0.5])
@pytest.mark.parametrize("stop", [2, 4])
def test_a_file_in_the_middle_knows_where_it_is(
    data, label_warmup, stop, tmp_path
):
    settings = {"shuffle": False, "verbose": 0, "batch_size": BATCH}
    whole = build(label_warmup)
    whole.fit(*data, **settings)
    model = build(label_warmup)
    if isinstance(label_warmup, float):
        model._label_steps.assign(WARMUP)
    train(model, data, 0, stop)
    model.save(tmp_path / "pair.keras")
    again = keras.saving.load_model(tmp_path / "pair.keras")
    assert again.label_warmup == label_warmup
    assert int(to_numpy(again._steps_done)) == stop
    rest = tuple(part[stop * BATCH :] for part in data)
    again.fit(*rest, **settings)
    assert_equal(weights(again), weights(whole))


@pytest.mark.slow
def test_a_killed_run_resumes(data, tmp_path):
    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def fit(*callbacks):
        # 9 of 18 steps: the run stops inside of the warm-up.
        model = build(0.5)
        model.fit(
            *data,
            batch_size=BATCH,
            epochs=3,
            shuffle=False,
            verbose=0,
            callbacks=list(callbacks),
        )
        return weights(model)

    def backup():
        return keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))

    expected = fit()
    with pytest.raises(KeyboardInterrupt):
        fit(backup(), Kill())
    assert_equal(fit(backup()), expected)


def test_other_uses_do_not_count_as_steps(data):
    model = build(WARMUP)
    model.evaluate(*data, verbose=0)
    model.test_on_batch(*data)
    model.predict(data[0], verbose=0)
    train(model, data, 0, 1)
    model.evaluate(*data, verbose=0)
    assert int(to_numpy(model._steps_done)) == 1


@pytest.mark.slow
def test_mixed_precision(data):
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = build(WARMUP)
        found = []
        for x, y in batches(data, 0, STEPS):
            logs = model.train_on_batch(x, y, return_dict=True)
            found.append(logs["auxiliary_loss"])
    finally:
        keras.config.set_dtype_policy(policy)
    assert model.label_warmup == WARMUP
    assert int(to_numpy(model._steps_done)) == STEPS
    # The cross-entropy goes, the divergence stays.
    assert min(found[:WARMUP]) > 4 * max(found[WARMUP:])


def test_numpy_numbers_and_config():
    for given, kept in ((np.int64(5), 5), (np.float32(0.25), 0.25)):
        model = build(given)
        assert type(model.label_warmup) is type(kept)
        again = kc.models.DiffDML.from_config(model.get_config())
        assert again.label_warmup == kept


@pytest.mark.parametrize("given", [-1, -0.1, 1.0, 1.5, True, "0.1", None])
def test_bad_values(given):
    with pytest.raises(ValueError, match="`label_warmup` is a number"):
        build(given)


def test_a_fraction_needs_a_length(data):
    model = build(0.5)
    with pytest.raises(ValueError, match="Pass a number of steps"):
        model.train_on_batch(*data)

    def endless():
        while True:
            yield data

    with pytest.raises(ValueError, match="data of known length"):
        model.fit(endless(), epochs=1, verbose=0)
    model.fit(endless(), epochs=1, steps_per_epoch=4, verbose=0)
    assert int(to_numpy(model._label_steps)) == 2


def test_callbacks_in_every_form(data):
    calls = []

    class Count(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            calls.append(epoch)

    model = build(0.5)
    # Positional, as in Keras: batch_size, epochs, verbose, callbacks.
    model.fit(*data, BATCH, 1, 0, [Count()])
    assert int(to_numpy(model._label_steps)) == 3
    for callbacks in (
        Count(),
        [Count()],
        keras.callbacks.CallbackList(
            [Count()],
            add_history=True,
            model=build(),
            epochs=1,
            steps=STEPS,
            verbose=0,
        ),
    ):
        model = build(0.5)
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.set_model(model)
        model.fit(*data, batch_size=BATCH, verbose=0, callbacks=callbacks)
        assert int(to_numpy(model._label_steps)) == 3
    assert calls == [0] * 4
