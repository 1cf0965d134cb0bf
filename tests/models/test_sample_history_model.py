"""The history of each sample: kept by training, and by nothing else."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import Pieces
from tests.helpers import small_network
from tests.helpers import to_numpy

SIZE = 120


def wrapped(
    num_samples=SIZE, loss=None, learning_rate=1e-2, activation=None, **kwargs
):
    network = small_network(activation=activation)
    model = kc.models.SampleHistoryModel(network, num_samples=num_samples)
    model.compile(
        keras.optimizers.Adam(learning_rate),
        kc.losses.CRL(from_logits=activation is None) if loss is None else loss,
        metrics=["accuracy"],
        **kwargs,
    )
    return model


@pytest.fixture
def data(digits):
    x, y = digits[0]
    return x[:SIZE], y[:SIZE]


def expected_history(network, x, y, epochs):
    """Of a network that does not learn."""
    p = to_numpy(keras.ops.softmax(network.predict(x, verbose=0)))
    return {
        "seen": np.full(len(x), epochs),
        "correct": epochs * (p.argmax(-1) == y),
        "confidence": p.max(-1),
    }


def check(model, x, y, epochs):
    found = model.sample_history()
    for name, expected in expected_history(model.model, x, y, epochs).items():
        np.testing.assert_allclose(found[name], expected, atol=1e-5)


def as_tf_data(x, y):
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((x, y))
    return (kc.add_sample_index(data).shuffle(200).batch(32),)


def as_loader(x, y):
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(
        torch.tensor(x), torch.tensor(y.astype("int64"))
    )
    return (
        kc.add_sample_index(
            torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
        ),
    )


FORMS = {
    "arrays": lambda x, y: (kc.add_sample_index(x), y),
    "tf_data": as_tf_data,
    "py_dataset": lambda x, y: (kc.add_sample_index(Pieces(x, y)),),
    "loader": as_loader,
}


@pytest.mark.parametrize("form", FORMS)
def test_each_sample_has_its_own_history_however_it_is_shuffled(form, data):
    model = wrapped(learning_rate=0.0)
    model.fit(*FORMS[form](*data), epochs=2, verbose=0)
    check(model, *data, epochs=2)


def test_validation_and_prediction_leave_it_alone(data, digits):
    model = wrapped(learning_rate=0.0)
    x, y = digits[1]
    history = model.fit(
        kc.add_sample_index(data[0]),
        data[1],
        epochs=2,
        validation_data=(x, y),
        verbose=0,
    ).history
    check(model, *data, epochs=2)
    # Also when validation data brings numbers.
    model.evaluate(kc.add_sample_index(x), y, verbose=0)
    model.evaluate(x, y, verbose=0)
    predicted = model.predict(x, verbose=0)
    np.testing.assert_array_equal(
        model.predict(kc.add_sample_index(x), verbose=0), predicted
    )
    check(model, *data, epochs=2)
    # Without a history the loss is the primary loss.
    assert history["val_penalty"] == [0.0, 0.0]
    assert history["val_loss"] == history["val_primary_loss"]


def test_the_loss_sees_the_history_before_the_step(data):
    # One batch of all samples, in order, and no learning: the penalty of
    # epoch e is that of the correctness after e - 1 epochs.
    model = wrapped(learning_rate=0.0)
    x, y = data
    logits = model.predict(x, verbose=0)
    correct = (logits.argmax(-1) == y).astype(float)
    history = model.fit(
        kc.add_sample_index(x),
        y,
        epochs=3,
        batch_size=SIZE,
        shuffle=False,
        verbose=0,
    ).history
    assert history["penalty"][0] == 0.0
    # h is 0 or e - 1, so (h - min h) / (e - 1 - min h) is 0 or 1.
    expected = float(kc.losses.crl(y, logits, correct))
    assert 0 < correct.mean() < 1 and expected > 0
    assert history["penalty"][1:] == pytest.approx([expected] * 2, rel=1e-5)
    for parts in zip(
        history["loss"],
        history["primary_loss"],
        history["penalty"],
        strict=True,
    ):
        assert parts[0] == pytest.approx(parts[1] + parts[2], rel=1e-6)


def test_numbers_are_exact_above_two_to_the_24(data):
    # 2^24 + 1 is no float32: it would fall on its neighbour.
    x, y = data[0][:4], data[1][:4]
    index = 2**24 + np.arange(4)
    model = wrapped(num_samples=2**24 + 4, learning_rate=0.0)
    model.fit({"inputs": x, "sample_index": index}, y, verbose=0)
    found = model.sample_history()["seen"]
    assert found[2**24 :].tolist() == [1, 1, 1, 1]
    assert found.sum() == 4


def test_repeated_numbers_all_count(data):
    x, y = data[0][:6], data[1][:6]
    index = np.array([1, 1, 1, 2, 2, 3])
    model = wrapped(num_samples=5, learning_rate=0.0)
    model.fit({"inputs": x, "sample_index": index}, y, batch_size=6, verbose=0)
    assert model.sample_history()["seen"].tolist() == [0, 3, 2, 1, 0]


def test_ignored_and_weightless_samples_have_no_history(data):
    x, y = data
    labels = np.where(np.arange(SIZE) % 3 == 0, 255, y)
    weights = (np.arange(SIZE) % 2).astype("float32")
    model = wrapped(loss=kc.losses.CRL(from_logits=True, ignore_class=255))
    model.fit(kc.add_sample_index(x), labels, sample_weight=weights, verbose=0)
    expected = (np.arange(SIZE) % 3 != 0) & (weights > 0)
    np.testing.assert_array_equal(model.sample_history()["seen"], expected)


def test_any_loss_of_keras_keeps_a_history(data):
    loss = "sparse_categorical_crossentropy"
    model = wrapped(loss=loss, activation="softmax")
    logs = model.fit(kc.add_sample_index(data[0]), data[1], verbose=0).history
    assert sorted(logs) == ["accuracy", "loss"]
    assert (model.sample_history()["seen"] == 1).all()
    confidence = model.sample_history()["confidence"]
    assert (0.1 <= confidence).all() and (confidence <= 1).all()


@pytest.mark.slow
def test_mixed_precision(data):
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = wrapped()
        model.fit(kc.add_sample_index(data[0]), data[1], epochs=3, verbose=0)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert model.seen.dtype == "float32"
    assert (model.sample_history()["seen"] == 3).all()


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", reason="minutes on torch")
def test_compiled(data):
    model = wrapped(learning_rate=0.0, jit_compile=True)
    model.fit(kc.add_sample_index(data[0]), data[1], epochs=2, verbose=0)
    check(model, *data, epochs=2)


@pytest.mark.slow
def test_save_and_load(data, tmp_path):
    model = wrapped()
    model.fit(kc.add_sample_index(data[0]), data[1], epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    for name, values in model.sample_history().items():
        np.testing.assert_array_equal(again.sample_history()[name], values)
    assert isinstance(again.loss, kc.losses.CRL)
    logs = again.fit(kc.add_sample_index(data[0]), data[1], verbose=0).history
    assert logs["penalty"][0] > 0
    # The network alone is a plain model.
    model.model.save(tmp_path / "network.keras")
    network = keras.models.load_model(tmp_path / "network.keras")
    np.testing.assert_array_equal(
        network.predict(data[0], verbose=0), model.predict(data[0], verbose=0)
    )


class Stop(keras.callbacks.Callback):
    """A run that is killed in its third epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_killed_run_resumes_with_its_history(data, tmp_path):
    def run(folder, *more):
        keras.utils.set_random_seed(3)
        model = wrapped()
        backup = keras.callbacks.BackupAndRestore(tmp_path / folder)
        model.fit(
            kc.add_sample_index(data[0]),
            data[1],
            epochs=4,
            shuffle=False,
            verbose=0,
            callbacks=[backup, *more],
        )
        return model

    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("killed", Stop())
    resumed = run("killed")
    for name, values in whole.sample_history().items():
        np.testing.assert_array_equal(resumed.sample_history()[name], values)
    for a, b in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_checkpoints_hold_it(data, tmp_path):
    path = str(tmp_path / "best.weights.h5")
    model = wrapped()
    checkpoint = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    model.fit(
        kc.add_sample_index(data[0]), data[1], verbose=0, callbacks=[checkpoint]
    )
    again = wrapped()
    again.load_weights(path)
    assert (again.sample_history()["seen"] == 1).all()
    with pytest.raises(ValueError, match="a history of"):
        wrapped(num_samples=SIZE + 1).load_weights(path)


def test_missing_numbers(data):
    with pytest.raises(ValueError, match="a number for each sample"):
        wrapped().fit(*data, verbose=0)


def test_floats_are_no_numbers(data):
    index = np.arange(SIZE, dtype="float32")
    with pytest.raises(ValueError, match="must hold integers"):
        wrapped().fit(
            {"inputs": data[0], "sample_index": index}, data[1], verbose=0
        )


def test_a_history_that_is_too_short(data):
    model = wrapped(num_samples=100)
    with pytest.raises(ValueError, match=r"holds 100 .* from 0 to 119"):
        model.fit(kc.add_sample_index(data[0]), data[1], verbose=0)
    # Where only the compiled step sees the numbers, the epoch ends with it.
    with pytest.raises(ValueError, match=r"[Hh]istory"):
        model.fit(kc.add_sample_index(Pieces(*data)), verbose=0)
    assert np.isfinite(model.get_weights()[0]).all()
    assert model.sample_history()["seen"].max() <= 1


def test_bad_arguments():
    for num_samples in (0, -1, 2.5, 2**31):
        with pytest.raises(ValueError, match="`num_samples` is the number"):
            kc.models.SampleHistoryModel(
                small_network(), num_samples=num_samples
            )


def test_pixels_have_no_history():
    network = keras.Sequential(
        [keras.Input((2, 2, 3)), keras.layers.Conv2D(4, 1)]
    )
    model = kc.models.SampleHistoryModel(network, num_samples=4)
    model.compile("sgd", kc.losses.FocalLoss(from_logits=True))
    with pytest.raises(ValueError, match="one history per sample"):
        model.fit(
            kc.add_sample_index(np.zeros((4, 2, 2, 3))),
            np.zeros((4, 2, 2)),
            verbose=0,
        )


def test_a_loss_that_is_refused_changes_nothing():
    rng = np.random.default_rng(0)
    x = kc.add_sample_index(rng.normal(size=(32, 64)).astype("float32"))
    model = kc.models.SampleHistoryModel(small_network(), num_samples=32)
    loss = keras.losses.SparseCategoricalCrossentropy
    model.compile("sgd", loss(from_logits=True))
    with pytest.raises(ValueError, match="must take what the model gives"):
        model.compile("sgd", loss())
    model.fit(x, np.arange(32) % 3, verbose=0)
    assert model.get_config() and int(np.sum(model.seen)) == 32


def test_several_numbers_of_a_sample_are_refused(data):
    x, y = data
    numbers = np.repeat(np.arange(SIZE, dtype="int32")[:, None], 3, axis=1)
    model = wrapped()
    with pytest.raises(ValueError, match="`batched=False`"):
        model.fit({"inputs": x, "sample_index": numbers}, y, verbose=0)
    model = wrapped()
    model.fit({"inputs": x, "sample_index": numbers[:, :1]}, y, verbose=0)
    assert np.all(model.sample_history()["seen"] == 1)
