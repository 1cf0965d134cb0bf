"""Which rows enter a history, and once each."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import to_numpy

SIZE = 24


def build(loss):
    keras.utils.set_random_seed(2)
    network = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model = kc.models.SampleHistoryModel(network, num_samples=SIZE)
    model.compile(keras.optimizers.SGD(0.0), loss)
    return model


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SIZE, 5)).astype("float32")
    return x, rng.integers(0, 3, SIZE)


def test_a_sample_twice_in_a_batch(data):
    x, y = data
    chosen = np.array([0, 1, 1, 2, 3, 3, 3, 4])
    inputs = {"inputs": x[chosen], "sample_index": chosen.astype("int32")}
    model = build(kc.losses.CRL(from_logits=True))
    for _ in range(3):
        model.fit(inputs, y[chosen], batch_size=8, verbose=0)
    p = to_numpy(keras.ops.softmax(model.predict(x, verbose=0)))
    found = model.sample_history()
    visits = 3 * np.bincount(chosen, minlength=SIZE)
    np.testing.assert_array_equal(found["seen"], visits)
    np.testing.assert_array_equal(
        found["correct"], visits * (p.argmax(axis=-1) == y)
    )
    np.testing.assert_allclose(
        found["confidence"], np.where(visits > 0, p.max(axis=-1), 0), atol=1e-6
    )


LOSSES = {
    "keras": lambda **kwargs: keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, **kwargs
    ),
    "ours": lambda **kwargs: kc.losses.FocalLoss(from_logits=True, **kwargs),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_void_labels_have_no_history(kind, data):
    x, y = data
    y = np.where(np.arange(SIZE) < 8, 255, y)
    model = build(LOSSES[kind](ignore_class=255))
    model.fit(kc.add_sample_index(x), y, verbose=0)
    seen = model.sample_history()["seen"]
    np.testing.assert_array_equal(seen, np.arange(SIZE) >= 8)


def test_tokens_have_no_history():
    network = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(5, 3, mask_zero=True),
            keras.layers.Dense(3),
        ]
    )
    model = kc.models.SampleHistoryModel(network, num_samples=SIZE)
    model.compile("sgd", LOSSES["ours"]())
    x = np.ones((SIZE, 4), "int32")
    with pytest.raises(ValueError, match="no meaning for pixels or tokens"):
        model.fit(kc.add_sample_index(x), np.zeros((SIZE, 4)), verbose=0)


@pytest.mark.parametrize("form", ["plain", "list", "dict"])
def test_a_loss_in_a_list_is_the_loss(data, form):
    x, y = data
    y = np.where(np.arange(SIZE) % 5, y, 255)
    loss = kc.losses.CRL(from_logits=True, ignore_class=255)
    given = {"plain": loss, "list": [loss], "dict": {"dense": loss}}[form]
    model = build(given)
    logs = model.fit(kc.add_sample_index(x), y, verbose=0).history
    assert set(logs) == {"loss", "primary_loss", "penalty"}
    p = to_numpy(keras.ops.softmax(model.predict(x, verbose=0)))
    found = model.sample_history()
    counts = y != 255
    np.testing.assert_array_equal(found["seen"], counts)
    np.testing.assert_allclose(
        found["confidence"][counts], p.max(axis=-1)[counts], atol=1e-6
    )


def test_a_function_as_loss_leaves_logits_to_the_model(data):
    x, y = data
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = build(lambda labels, scores: cross_entropy(labels, scores))
    model.fit(kc.add_sample_index(x), y, verbose=0)
    p = to_numpy(keras.ops.softmax(model.predict(x, verbose=0)))
    np.testing.assert_allclose(
        model.sample_history()["confidence"], p.max(axis=-1), atol=1e-6
    )


def test_losses_that_do_not_tell_enough():
    loss = kc.losses.CRL(from_logits=True)
    for given in (None, [loss, loss], []):
        with pytest.raises(ValueError, match="needs one loss"):
            build(given)
    network = keras.Sequential([keras.layers.Dense(3)])
    model = kc.models.SampleHistoryModel(network, num_samples=SIZE)
    with pytest.raises(ValueError, match="Neither the loss nor the model"):
        model.compile("sgd", lambda labels, scores: 0.0)


@pytest.mark.parametrize("from_logits", [False, True])
def test_a_loss_that_contradicts_the_model(from_logits):
    end = "softmax" if from_logits else None
    network = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(2, activation=end)]
    )
    model = kc.models.SampleHistoryModel(network, num_samples=4)
    loss = kc.losses.CRL(from_logits=from_logits)
    given = "probabilities" if from_logits else "logits"
    with pytest.raises(ValueError, match=f"a model that gives {given}"):
        model.compile("sgd", loss)
    assert not model.compiled
