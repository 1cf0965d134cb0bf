"""A canary for each private name of Keras, and a test that no other is used."""

import ast
import pathlib
import runpy
import warnings

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_calib
from keras_calib import keras_private

X = np.ones((4, 3), "float32")
Y = np.array([0, 1, 0, 1])
TOKENS = np.array([[1, 2, 0], [3, 0, 0]])


def network(activation=None):
    return keras.Sequential(
        [keras.Input((3,)), layers.Dense(2, activation, name="head")]
    )


def tagger():
    return keras.Sequential(
        [
            keras.Input((3,)),
            layers.Embedding(5, 4, mask_zero=True),
            layers.Dense(2),
        ]
    )


@pytest.fixture(params=["private", "public"])
def way(request, monkeypatch):
    """Keras as it is, and without the private names that have a fallback."""
    if request.param == "public":
        monkeypatch.setattr(keras_private, "_get_keras_mask", None)
    return request.param


def test_keras_mask_of_an_eager_tensor(way):
    mask = keras_private.keras_mask(tagger()(TOKENS))
    np.testing.assert_array_equal(ops.convert_to_numpy(mask), TOKENS != 0)
    assert keras_private.keras_mask(ops.ones((2, 3))) is None
    assert keras_private.keras_mask(X) is None


def test_keras_mask_of_a_symbolic_tensor(way):
    mask = keras_private.keras_mask(tagger().outputs[0])
    assert tuple(mask.shape) == (None, 3)
    assert keras_private.keras_mask(network().outputs[0]) is None


def test_keras_mask_in_compiled_code(way):
    class CountMasked(keras.losses.Loss):
        def __call__(self, y_true, y_pred, sample_weight=None):
            mask = keras_private.keras_mask(y_pred)
            return -1.0 if mask is None else ops.sum(ops.cast(mask, "float32"))

    model = tagger()
    model.compile("sgd", CountMasked())
    assert model.evaluate(TOKENS, TOKENS, verbose=0) == 3.0


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_carried_logits(activation):
    model = network(activation)
    logits = X @ ops.convert_to_numpy(model.layers[-1].kernel)
    carried = keras_private.carried_logits(model(X))
    np.testing.assert_allclose(ops.convert_to_numpy(carried), logits, rtol=1e-5)
    assert keras_private.carried_logits(network()(X)) is None


def test_in_symbolic_scope():
    seen = []

    class Asks(layers.Layer):
        def call(self, x):
            seen.append(keras_private.in_symbolic_scope())
            return x

    layer = Asks()
    layer(X)
    layer(keras.Input((3,)))
    assert seen[0] is False and seen[1:] and all(seen[1:])
    assert not keras_private.in_symbolic_scope()


def test_producer(monkeypatch):
    inputs = keras.Input((3,))
    dense = layers.Dense(3)
    first = dense(inputs)
    second = dense(first)
    inner = network()
    model = keras.Model(inputs, inner(second))
    walk = keras_private.producer
    assert walk(model, model.outputs[0])[0] is inner
    operation, arguments = walk(model, second)
    assert operation is dense and arguments == [first]

    # Without the history, first calls are still found.
    for tensor in (first, second, *model.outputs):
        monkeypatch.delattr(tensor, "_keras_history")
    operation, arguments = walk(model, first)
    assert operation is dense and arguments == [inputs]
    with pytest.raises(ValueError, match="not found in the graph"):
        walk(model, second)


def test_a_keras_without_the_private_function_of_masks(monkeypatch):
    from keras.src.backend.common import masking

    monkeypatch.delattr(masking, "get_keras_mask")
    other = runpy.run_path(keras_private.__file__)
    assert other["_get_keras_mask"] is None
    mask = other["keras_mask"](tagger()(TOKENS))
    np.testing.assert_array_equal(ops.convert_to_numpy(mask), TOKENS != 0)


def test_producers_that_tell_less(monkeypatch):
    model = network()
    tensor = model.outputs[0]
    head = model.layers[-1]
    # An operation without nodes, and one that was never called.
    monkeypatch.setattr(tensor, "_keras_history", (object(), 0))
    fresh = layers.Dense(2)
    monkeypatch.setattr(keras_private, "_operations", lambda _: [fresh, head])
    operation, arguments = keras_private.producer(model, tensor)
    assert operation is head and arguments == [model.inputs[0]]


def test_a_layer_whose_output_is_several_was_called():
    class Several(layers.Layer):
        @property
        def output(self):
            raise ValueError("several nodes")

    assert keras_private.called_symbolically(Several())


def test_called_symbolically():
    layer = layers.Dense(2)
    layer(X)
    assert not keras_private.called_symbolically(layer)
    layer(keras.Input((3,)))
    assert keras_private.called_symbolically(layer)
    layer(keras.Input((3,)))
    assert keras_private.called_symbolically(layer)


class Holder(layers.Layer):
    def __init__(self):
        super().__init__()
        self.parts = [layers.Dense(2), {"inner": layers.Dropout(0.5)}]


def test_flatten_layers(monkeypatch):
    holder = Holder()
    inner = keras.Sequential([keras.Input((3,)), holder.parts[0]])
    model = keras.Sequential([keras.Input((3,)), inner, holder])
    expected = {model, inner, holder, *inner.layers, *model.layers}
    expected |= {holder.parts[0], holder.parts[1]["inner"]}

    found = keras_private.flatten_layers(model)
    assert found[0] is model
    assert expected <= set(found) and len(found) == len(set(found))
    assert model not in keras_private.flatten_layers(model, include_self=False)
    ends = [found.index(layer) for layer in (holder.parts[0], holder)]
    assert found.index(inner) < ends[0] < ends[1]

    monkeypatch.delattr(keras.layers.Layer, "_flatten_layers")
    fallback = keras_private.flatten_layers(model)
    assert fallback[0] is model
    assert expected <= set(fallback)
    assert len(fallback) == len(set(fallback))


def test_input_signature(monkeypatch):
    [found] = keras_private.input_signature(tagger())
    assert found.shape == (None, 3)
    # Of a Sequential that is not built Keras knows no inputs.
    unbuilt = keras.Sequential([layers.Dense(2)])
    assert keras_private.input_signature(unbuilt) is None
    monkeypatch.setattr(keras_private, "_get_input_signature", None)
    assert keras_private.input_signature(tagger()) is None


def test_compile_loss_leaves_out_penalties():
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(2, kernel_regularizer="l2")]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    expected = float(loss(Y, model(X)))
    found = keras_private.compile_loss(model, Y, model(X))
    assert float(found) == pytest.approx(expected, rel=1e-6)

    penalty = float(sum(model.losses))
    assert penalty > 0
    found = keras_private.additional_loss(model, model.losses[0])
    assert float(found) == pytest.approx(penalty)
    assert float(model.compute_loss(X, Y, model(X))) == pytest.approx(
        expected + penalty, rel=1e-6
    )


def test_compile_loss_without_the_private_names():
    class Public:
        """What is seen of a model whose private names are gone."""

        losses = [ops.array([1.5, 0.5])]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return ops.array(5.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.Model, "compute_loss", compute_loss)
        found = keras_private.compile_loss(Public(), Y, X)
    assert float(found) == 3.0


@keras_private.lower_is_better
class Low(keras.metrics.Mean):
    pass


@keras_private.without_direction
class Neither(Low):
    pass


def test_directions_are_read_by_callbacks():
    def mode_of(metric):
        model = network()
        model.compile("sgd", "mse", metrics=[metric])
        model.evaluate(X, X[:, :2], verbose=0)
        stop = keras.callbacks.EarlyStopping("val_found", mode="auto")
        stop.set_model(model)
        stop._set_monitor_op()
        return stop.monitor_op

    assert mode_of(AsMetric(Low)) is ops.less
    with pytest.raises(ValueError, match="mode"):
        mode_of(AsMetric(Neither))


def AsMetric(kind):
    class Found(kind):
        def update_state(self, y_true, y_pred, sample_weight=None):
            super().update_state(y_pred)

    return Found(name="found")


def test_metrics_of_compile():
    metric, weighted = keras.metrics.Mean(), keras.metrics.Mean()
    for given in ([metric], {"head": metric}):
        model = network()
        model.compile("sgd", "mse", metrics=given, weighted_metrics=[weighted])
        found = keras_private.metrics_of_compile(model)
        assert any(one is metric for one in found)
        assert any(one is weighted for one in found)


def test_given_to_compile():
    model = network()
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["accuracy"])
    assert keras_private.given_to_compile(model, [False]) == ["mae"]
    assert keras_private.given_to_compile(model, [True]) == ["accuracy"]
    assert keras_private.given_to_compile(model) == ["mae", "accuracy"]


def test_validation_iterator():
    found = []

    class Looks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found.append(keras_private.validation_iterator(self.model))

    model = network()
    model.compile("sgd", "mse")
    y = X[:, :2]
    assert keras_private.validation_iterator(model) is None
    model.fit(X, y, validation_data=(X, y), verbose=0, callbacks=[Looks()])
    assert keras_private.validation_iterator(model) is None
    (iterator,) = found
    batches = list(iterator.data_adapter.get_numpy_iterator())
    np.testing.assert_array_equal(batches[0][0], X)
    assert iterator.steps_per_epoch is None


def test_dataset_inputs():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices(X)
    batched = data.batch(2)
    assert keras_private.dataset_inputs(batched) == [data]
    assert keras_private.dataset_inputs(data) == []
    assert keras_private.dataset_inputs([1, 2]) == []


PRIVATE = {
    "_aggregate_additional_loss",
    "_compile_loss",
    "_direction",
    "_distribute_strategy",
    "_eval_epoch_iterator",
    "_flatten_layers",
    "_inbound_nodes",
    "_inputs",
    "_keras_history",
    "_keras_logits",
    "_keras_mask",
    "_layers",
    "_outbound_nodes",
    "_user_metrics",
    "_user_weighted_metrics",
}
# Methods and functions of our own with one of these names.
OURS = {
    "layers/_affine.py": {"_inputs"},
    "layers/_class_temperature_scaling.py": {"_inputs"},
    "layers/_dirichlet_scaling.py": {"_inputs"},
    "layers/_matrix_scaling.py": {"_inputs"},
}
# Files that still have to move to `keras_private`.
WAITING = set()
PACKAGE = pathlib.Path(keras_calib.__file__).parent


def private_names(path):
    """Names of Keras' own that a file uses: attributes, strings, imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # escapes in docstrings
        tree = ast.parse(path.read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            modules = [alias.name for alias in node.names]
            modules.append(getattr(node, "module", None) or "")
            found |= {name for name in modules if name.startswith("keras.src")}
    return {
        name for name in found if name in PRIVATE or name[:9] == "keras.src"
    }


FILES = {
    path.relative_to(PACKAGE).as_posix(): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@pytest.mark.parametrize("name", sorted(set(FILES) - {"keras_private.py"}))
def test_private_names_of_keras_stand_in_one_file(name):
    found = private_names(FILES[name]) - OURS.get(name, set())
    if name in WAITING:
        assert found, f"{name} is clean: take it off the list `WAITING`"
    else:
        assert not found


def test_the_search_finds_private_names():
    assert private_names(FILES["keras_private.py"]) >= {
        "_flatten_layers",
        "_keras_history",
        "_keras_logits",
        "keras.src.backend.common.masking",
    }


def test_a_keras_without_the_private_function_of_signatures(monkeypatch):
    from keras.src.export import export_utils

    monkeypatch.delattr(export_utils, "get_input_signature")
    other = runpy.run_path(keras_private.__file__)
    assert other["_get_input_signature"] is None
