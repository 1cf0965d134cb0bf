"""One pass of a network over data: outputs, masks, weights."""

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

from keras_calib.data import predict
from keras_calib.inputs.predictions import as_samples
from keras_calib.keras_private import keras_mask
from tests.helpers import to_numpy

TOKENS = np.array([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0], [1, 1, 1, 1, 1]])


def embedding():
    return layers.Embedding(5, 4, mask_zero=True)


class Composite(layers.Layer):
    """Holds an embedding, and lets its mask through."""

    def __init__(self):
        super().__init__()
        self.embedding = embedding()

    def call(self, x):
        return self.embedding(x)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = embedding()
        self.head = layers.Dense(3)

    def call(self, x):
        return self.head(self.embedding(x))


class OwnMask(layers.Layer):
    def compute_mask(self, inputs, previous_mask=None):
        return ops.not_equal(inputs, 0)

    def call(self, x):
        return ops.one_hot(x, 5)


def sequential(*stages):
    return keras.Sequential([keras.Input((None,), dtype="int32"), *stages])


def features(mask):
    return keras.Sequential([keras.Input((5, 2)), mask, layers.Dense(4)])


MASKED = {
    "sequential": lambda: sequential(embedding(), layers.Dense(3)),
    "nested": lambda: sequential(
        sequential(embedding(), layers.Dense(3)), layers.Activation("softmax")
    ),
    "recurrent": lambda: sequential(
        embedding(), layers.GRU(3, return_sequences=True)
    ),
    "composite": lambda: sequential(Composite()),
    "own mask": lambda: sequential(OwnMask(), layers.Dense(3)),
    "subclassed": Subclassed,
}
UNMASKED = {
    "no zero": lambda: sequential(layers.Embedding(5, 4), layers.Dense(3)),
    "pooled": lambda: sequential(embedding(), layers.LSTM(3)),
}


@pytest.mark.parametrize("kind", MASKED)
def test_outputs_and_mask(kind):
    network = MASKED[kind]()
    expected = network(TOKENS)
    outputs, mask = predict.outputs_and_mask(network, TOKENS)
    np.testing.assert_allclose(outputs, to_numpy(expected), atol=1e-6)
    if kind == "recurrent" and keras_mask(expected) is None:
        assert mask is None  # recurrent layers of Keras 3.16 pass no mask on
        return
    assert isinstance(outputs, np.ndarray) and isinstance(mask, np.ndarray)
    np.testing.assert_array_equal(mask, TOKENS != 0)


@pytest.mark.parametrize("kind", UNMASKED)
def test_outputs_without_a_mask(kind):
    network = UNMASKED[kind]()
    outputs, mask = predict.outputs_and_mask(network, TOKENS)
    assert mask is None
    np.testing.assert_allclose(outputs, to_numpy(network(TOKENS)), atol=1e-6)


def test_masking_layer_masks_features():
    x = np.ones((2, 5, 2), "float32")
    x[0, 3:] = 0
    _, mask = predict.outputs_and_mask(features(layers.Masking()), x)
    np.testing.assert_array_equal(mask, [[1, 1, 1, 0, 0], [1] * 5])


def test_network_is_compiled_once_and_sees_new_weights(tmp_path):
    network = MASKED["sequential"]()
    first, _ = predict.outputs_and_mask(network, TOKENS)
    model = predict._with_mask(network)
    network.layers[-1].set_weights([np.ones((4, 3)), np.ones(3)])
    second, _ = predict.outputs_and_mask(network, TOKENS)
    assert predict._with_mask(network) is model
    np.testing.assert_allclose(second, to_numpy(network(TOKENS)), atol=1e-6)
    assert not np.allclose(first, second)
    # The network, its weights and its file are as they were.
    assert model not in network._flatten_layers()
    assert len(network.weights) == 3
    network.save(tmp_path / "a.keras")
    again = keras.saving.load_model(tmp_path / "a.keras")
    np.testing.assert_array_equal(
        to_numpy(again(TOKENS)), to_numpy(network(TOKENS))
    )
    assert len(keras.models.clone_model(network).weights) == 3


def test_masks_between_epochs():
    network = MASKED["sequential"]()
    network.compile("sgd", "mse")
    y = np.ones((3, 5, 3))
    found = []

    class Looks(keras.callbacks.Callback):
        def look(self):
            outputs, mask = predict.outputs_and_mask(self.model, TOKENS)
            now = to_numpy(self.model(TOKENS))
            found.append(np.abs(outputs - now).max())
            np.testing.assert_array_equal(mask, TOKENS != 0)

        def on_train_batch_end(self, batch, logs=None):
            self.look()

        def on_epoch_end(self, epoch, logs=None):
            self.look()

    before = to_numpy(network(TOKENS))
    network.fit(TOKENS, y, epochs=2, verbose=0, callbacks=[Looks()])
    assert len(found) == 4 and max(found) < 1e-6
    assert not np.allclose(before, to_numpy(network(TOKENS)))


def test_run_eagerly_is_kept():
    network = MASKED["sequential"]()
    network.compile("sgd", "mse", run_eagerly=True)
    _, mask = predict.outputs_and_mask(network, TOKENS)
    assert predict._with_mask(network).run_eagerly
    np.testing.assert_array_equal(mask, TOKENS != 0)


def test_mask_that_does_not_fit_is_refused():
    class Pooling(layers.Layer):
        def __init__(self):
            super().__init__()
            self.supports_masking = True

        def call(self, x):
            return ops.mean(x, axis=1)

    network = sequential(embedding(), Pooling())
    with pytest.raises(ValueError, match="compute_mask"):
        predict.outputs_and_mask(network, TOKENS)


def test_a_mask_with_a_last_axis_of_one():
    class Column(layers.Layer):
        def compute_mask(self, inputs, previous_mask=None):
            return ops.not_equal(inputs, 0)[..., None]

        def call(self, x):
            return ops.one_hot(x, 5)

    outputs, mask = predict.outputs_and_mask(sequential(Column()), TOKENS)
    assert outputs.shape == (3, 5, 5)
    np.testing.assert_array_equal(mask, TOKENS != 0)


def test_several_outputs_are_refused():
    inputs = keras.Input((5,), dtype="int32")
    tensor = embedding()(inputs)
    heads = {"a": layers.Dense(3)(tensor), "b": layers.Dense(2)(tensor)}
    with pytest.raises(ValueError, match=r"one output.*a dict of 2 outputs"):
        predict.outputs_and_mask(keras.Model(inputs, heads), TOKENS)


WEIGHTS = {
    "none": (None, np.ones((2, 3))),
    "sample": (np.array([2.0, 3.0]), np.array([[2.0] * 3, [3.0] * 3])),
    "column": (np.array([[2.0], [3.0]]), np.array([[2.0] * 3, [3.0] * 3])),
    "element": (np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3)),
    "element column": (
        np.arange(6.0).reshape(2, 3, 1),
        np.arange(6.0).reshape(2, 3),
    ),
}


def read(weight, mask):
    """Weights of the rows that count, and the numbers of these rows."""
    shape = np.asarray(mask).shape
    logits = np.zeros((*shape, 4))
    logits[..., 0] = np.arange(mask.size).reshape(shape)
    rows, _, weights, _, _ = as_samples(
        logits, np.zeros(shape, int), weight, mask=mask
    )
    return weights, rows[:, 0].astype(int)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_masked_weights(kind):
    weight, expected = WEIGHTS[kind]
    mask = np.array([[True, True, False], [True, False, False]])
    found, rows = read(weight, mask)
    expected = (expected * mask).reshape(-1)
    np.testing.assert_array_equal(rows, np.flatnonzero(expected))
    if weight is None:
        assert found is None
    else:
        np.testing.assert_array_equal(found, expected[rows])
        assert found.dtype == "float64"


def test_masked_weights_of_padding_do_not_matter():
    weight = np.array([[1.0, np.nan]])
    found, rows = read(weight, np.array([[True, False]]))
    np.testing.assert_array_equal(found, [1.0])
    np.testing.assert_array_equal(rows, [0])


def test_masked_weights_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        read(np.ones(4), np.ones((2, 3), bool))


def test_a_preprocessor_without_its_function_changes_nothing():
    network = keras.Sequential([keras.Input((2,)), keras.layers.Identity()])
    network.preprocessor = "of raw inputs"
    x = np.array([[1.0, 2.0]], "float32")
    np.testing.assert_array_equal(predict._preprocessed(network, x), x)
