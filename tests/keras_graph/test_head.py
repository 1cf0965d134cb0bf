"""What the end of a graph says, and that a model without it is the same."""

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_calib as kc
from keras_calib.keras_graph.class_axis import refuse_another_class_axis
from keras_calib.keras_graph.endings import output_kind
from keras_calib.keras_graph.endings import refuse_several_sigmoids
from keras_calib.keras_graph.head import find_head
from keras_calib.keras_graph.without_activation import WithoutActivation
from tests.calibration.networks import KERNEL
from tests.calibration.networks import LOGITS
from tests.calibration.networks import Subclassed
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional
from tests.helpers import to_numpy

SEQUENCES = np.random.default_rng(3).normal(size=(40, 6, 8)).astype("float32")


def average(activation):
    inputs = keras.Input((8,))
    parts = [dense(activation)(inputs), dense(activation)(inputs)]
    return keras.Model(inputs, layers.Average()(parts))


def timed(layer):
    inputs = keras.Input((6, 8))
    return keras.Model(inputs, layers.TimeDistributed(layer)(inputs))


def stepwise(*after):
    inputs = keras.Input((6, 8))
    tensor = layers.TimeDistributed(dense())(inputs)
    for layer in after:
        tensor = layers.TimeDistributed(layer)(tensor)
    return keras.Model(inputs, tensor)


def recurrent(kind, **kwargs):
    inputs = keras.Input((6, 8))
    return keras.Model(inputs, kind(3, **kwargs)(inputs))


class OwnCall(layers.Dense):
    def call(self, x):
        return 2 * super().call(x)


class OwnHead(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = dense()
        self.activation = keras.activations.softmax

    def call(self, x):
        return self.activation(self.dense(x)) ** 2


nested = [keras.Input((8,)), dense("softmax")]
KINDS = {
    "probabilities": {
        "dense": lambda: functional(dense("softmax")),
        "operation as activation": lambda: functional(dense(ops.softmax)),
        "layer as activation": lambda: functional(dense(layers.Softmax())),
        "sigmoid": lambda: functional(layers.Dense(1, "sigmoid")),
        "softmax layer": lambda: functional(dense(), layers.Softmax()),
        "softmax operation": lambda: functional(dense(), ops.softmax),
        "activation": lambda: functional(dense(), layers.Activation("softmax")),
        "nested": lambda: functional(keras.Sequential(nested)),
        "cast": lambda: functional(
            dense("softmax"), layers.Activation("linear", dtype="float32")
        ),
        "cast operation": lambda: functional(
            dense("softmax"), lambda x: ops.cast(x, "float16")
        ),
        "dropout": lambda: functional(dense("softmax"), layers.Dropout(0.5)),
        "reshape": lambda: functional(
            dense("softmax"),
            layers.Reshape((1, 1, 3)),
            layers.Permute((2, 1, 3)),
        ),
        "time distributed": lambda: timed(dense("softmax")),
        "softmax of each step": lambda: stepwise(layers.Softmax()),
        "softmax of each step, axis": lambda: stepwise(layers.Softmax(axis=1)),
        "activation of each step": lambda: stepwise(
            layers.Activation("softmax"), layers.Dropout(0.5)
        ),
        "average": lambda: average("softmax"),
        "flattened": lambda: functional(
            dense("softmax"), layers.Reshape((1, 3)), layers.Flatten()
        ),
        "einsum": lambda: functional(
            layers.EinsumDense("ab,bc->ac", 3, activation="softmax")
        ),
    },
    "logits": {
        "dense": lambda: functional(dense()),
        "nested": lambda: functional(
            keras.Sequential([keras.Input((8,)), dense()])
        ),
        "log_softmax": lambda: functional(dense("log_softmax")),
        "dropout": lambda: functional(dense(), layers.Dropout(0.5)),
        "average": lambda: average(None),
        "time distributed": lambda: timed(dense()),
        "a map": lambda: functional(dense(), kc.layers.TemperatureScaling()),
    },
    None: {
        "subclassed": lambda: built(Subclassed("softmax")),
        "relu": lambda: functional(dense("relu")),
        "simple rnn": lambda: recurrent(layers.SimpleRNN, activation="softmax"),
        "lstm": lambda: recurrent(layers.LSTM, activation="softmax"),
        "gru": lambda: recurrent(layers.GRU, activation="softmax"),
        "own call": lambda: functional(OwnCall(3, "softmax")),
        "own head": lambda: functional(OwnHead()),
        "rescaling": lambda: functional(
            dense("softmax"), layers.Rescaling(2.0)
        ),
        "lambda": lambda: functional(
            dense(), layers.Lambda(lambda x: ops.softmax(x))
        ),
        "another axis of each step": lambda: stepwise(
            layers.Reshape((3, 1)), layers.Softmax(axis=1)
        ),
        "another axis": lambda: functional(
            dense(), layers.Reshape((1, 3)), layers.Softmax(axis=1)
        ),
        "flattened, channels first": lambda: functional(
            dense("softmax"),
            layers.Reshape((1, 3)),
            layers.Flatten(data_format="channels_first"),
        ),
        "softmax with a mask": lambda: masked_softmax(),
        "reshape across classes": lambda: functional(
            layers.Dense(4, "softmax"), layers.Reshape((2, 2))
        ),
        "average of both": lambda: mixed_average(),
        "channels first": lambda: channels_first(),
    },
}
CASES = [(kind, name) for kind, makers in KINDS.items() for name in makers]


def masked_softmax():
    inputs = keras.Input((8,))
    logits = dense()(inputs)
    return keras.Model(inputs, layers.Softmax()(logits, mask=logits > 0))


def mixed_average():
    inputs = keras.Input((8,))
    parts = [dense("softmax")(inputs), dense()(inputs)]
    return keras.Model(inputs, layers.Average()(parts))


def channels_first():
    inputs = keras.Input((8, 4, 4))
    head = layers.Conv2D(
        3, 1, activation="softmax", data_format="channels_first"
    )
    return keras.Model(inputs, head(inputs))


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_output_kind(kind, name):
    model = KINDS[kind][name]()
    assert output_kind(model) == kind
    assert output_kind(keras.Sequential([*_input_of(model), model])) == kind


def _input_of(model):
    if not getattr(model, "inputs", None):
        return []
    return [keras.Input(model.inputs[0].shape[1:])]


def test_output_kind_of_a_calibrated_model():
    for make in (lambda: functional(dense("softmax")), Subclassed):
        for output in ("logits", "probabilities"):
            model = kc.calibrate(built(make()), X, Y, output=output, verbose=0)
            assert output_kind(model) == output


def test_output_kind_that_a_model_declares():
    class Says(Subclassed):
        output_kind = "probabilities"

    assert output_kind(Says("softmax")) == "probabilities"


def test_output_kind_of_an_overridden_call():
    class Squares(keras.Model):
        def call(self, x):
            return super().call(x) ** 2

    inputs = keras.Input((8,))
    model = Squares(inputs, dense("softmax")(inputs))
    assert output_kind(model) is None


def test_several_sigmoids_are_refused():
    with pytest.raises(ValueError, match="multi-label"):
        refuse_several_sigmoids(functional(dense("sigmoid")))
    with pytest.raises(ValueError, match="multi-label"):
        kc.calibrate(functional(dense("sigmoid")), X, Y, verbose=0)
    with pytest.raises(ValueError, match="multi-label"):
        kc.calibrate(built(Subclassed("sigmoid")), X, Y, verbose=0)
    with pytest.raises(ValueError, match="multi-label"):
        kc.calibrate(
            built(Subclassed("sigmoid")), X, Y, from_logits=False, verbose=0
        )
    refuse_several_sigmoids(functional(layers.Dense(1, "sigmoid")))
    refuse_several_sigmoids(functional(dense("softmax")))
    refuse_several_sigmoids(Subclassed())


REMOVABLE = [
    name
    for name in KINDS["probabilities"]
    if name not in ("average", "sigmoid")
]


@pytest.mark.parametrize("name", REMOVABLE)
def test_softmax_of_the_found_logits_is_the_output(name):
    model = KINDS["probabilities"][name]()
    x = SEQUENCES if len(model.inputs[0].shape) == 3 else X
    head = find_head(model)
    assert head.activation == "softmax"
    assert output_kind(model) == "probabilities"
    logits = to_numpy(keras.Model(head.inputs, head.tensor)(x))
    expected = to_numpy(model(x)).astype("float32")
    atol = 1e-3 if name == "cast operation" else 1e-6
    np.testing.assert_allclose(
        to_numpy(ops.softmax(logits)), expected, atol=atol
    )


CONVOLUTIONS = {
    "Conv1D": (6, 8),
    "Conv2D": (6, 6, 8),
    "Conv3D": (4, 4, 4, 8),
    "Conv1DTranspose": (6, 8),
    "Conv2DTranspose": (6, 6, 8),
    "Conv3DTranspose": (4, 4, 4, 8),
    "SeparableConv1D": (6, 8),
    "SeparableConv2D": (6, 6, 8),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_without_activation(name):
    shape = CONVOLUTIONS[name]
    inputs = keras.Input(shape)
    layer = getattr(layers, name)(3, 2, activation="softmax")
    model = keras.Model(inputs, layer(inputs))
    x = np.random.default_rng(0).normal(size=(2, *shape)).astype("float32")
    head = find_head(model)
    logits = keras.Model(head.inputs, head.tensor)(x)
    np.testing.assert_allclose(
        to_numpy(ops.softmax(logits)), to_numpy(model(x)), atol=1e-5
    )


@pytest.mark.parametrize("name", ["DepthwiseConv1D", "DepthwiseConv2D"])
def test_depthwise_convolutions_without_activation(name):
    shape = (6, 3) if name.endswith("1D") else (6, 6, 3)
    layer = getattr(layers, name)(2, activation="softmax")
    x = np.random.default_rng(0).normal(size=(2, *shape)).astype("float32")
    expected = to_numpy(layer(x))
    np.testing.assert_allclose(
        to_numpy(ops.softmax(WithoutActivation(layer)(x))), expected, atol=1e-5
    )


def test_a_layer_that_is_not_built_is_built_without_its_activation():
    x = np.ones((2, 4), "float32")
    layer = layers.Dense(3, "softmax")
    logits = to_numpy(WithoutActivation(layer)(x))
    assert layer.built
    # One that was built in the meantime stays as it is.
    other = layers.Dense(3, "softmax")
    linear = WithoutActivation(other)
    other(x)
    weights = other.get_weights()
    linear(x)
    np.testing.assert_array_equal(other.get_weights()[0], weights[0])
    np.testing.assert_allclose(
        logits, x @ to_numpy(layer.kernel) + to_numpy(layer.bias), rtol=1e-5
    )


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_calibrated_model_shares_the_weights_of_the_head(policy, tmp_path):
    keras.config.set_dtype_policy(policy)
    try:
        model = built(functional(dense("softmax")))
    finally:
        keras.config.set_dtype_policy("float32")
    calibrated = kc.calibrate(model, X, Y, output="logits", verbose=0)
    temperature = kc.calibration_record(calibrated)["temperature"]
    assert any(weight is model.weights[0] for weight in calibrated.weights)
    model.weights[0].assign(KERNEL[::-1])
    expected = X @ KERNEL[::-1] / temperature
    atol = 1e-5 if policy == "float32" else 0.2
    np.testing.assert_allclose(
        calibrated.predict(X, verbose=0), expected, atol=atol
    )
    calibrated.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(
        again.predict(X, verbose=0), calibrated.predict(X, verbose=0)
    )


def test_training_the_model_trains_the_calibrated_one():
    model = built(functional(dense("softmax")))
    calibrated = kc.calibrate(model, X, Y, verbose=0)
    temperature = kc.calibration_record(calibrated)["temperature"]
    model.compile(keras.optimizers.SGD(1.0), "sparse_categorical_crossentropy")
    model.fit(X, Y, epochs=1, verbose=0)
    kernel = to_numpy(model.weights[0])
    assert np.abs(kernel - KERNEL).max() > 0.1
    expected = ops.softmax(X @ kernel / np.float32(temperature))
    np.testing.assert_allclose(
        calibrated.predict(X, verbose=0), to_numpy(expected), atol=1e-5
    )


def test_what_does_not_compute_the_same_is_not_used():
    # A layer whose `call` is changed on the object.
    model = built(functional(dense("softmax")))
    last = model.layers[-1]
    plain = last.call
    last.call = lambda x, training=None: plain(x * 0.5)
    expected = to_numpy(model(X))
    with (
        pytest.warns(UserWarning, match="does not compute"),
        pytest.warns(UserWarning, match="logarithm of its probabilities"),
    ):
        calibrated = kc.calibrate(model, X, Y, guard=False, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["logits_source"] == "log of probabilities"
    sharper = expected ** (1 / record["temperature"])
    np.testing.assert_allclose(
        calibrated.predict(X, verbose=0),
        sharper / sharper.sum(-1, keepdims=True),
        atol=1e-5,
    )
    with pytest.raises(ValueError, match="does not compute its outputs"):
        kc.calibrate(model, X, Y, fuse=True, verbose=0)


@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU"])
def test_recurrent_end_is_not_taken_for_a_softmax(kind):
    model = recurrent(getattr(layers, kind), activation="softmax")
    outputs = model.predict(SEQUENCES, verbose=0)
    y = outputs.argmax(-1)
    y[::3] = (y[::3] + 1) % 3
    calibrated = kc.calibrate(
        model,
        SEQUENCES,
        y,
        from_logits=None if kind == "SimpleRNN" else True,
        output="logits",
        verbose=0,
    )
    # A simple RNN ends in its softmax, the others multiply it by a gate.
    if kind == "SimpleRNN":
        outputs = np.log(outputs)
    record = kc.calibration_record(calibrated)
    if not record["rejected"]:
        outputs = outputs / record["temperature"]
    np.testing.assert_allclose(
        calibrated.predict(SEQUENCES, verbose=0), outputs, rtol=1e-4, atol=1e-4
    )


def test_attention_pooling_is_calibrated_as_it_is():
    class Pooling(layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.activation = keras.activations.softmax
            self.score = layers.Dense(1)
            self.head = layers.Dense(3)

        def call(self, x):
            share = ops.softmax(self.score(x), axis=1)
            return self.head(ops.sum(share * x, axis=1))

    inputs = keras.Input((6, 8))
    model = keras.Model(inputs, Pooling()(inputs))
    y = np.arange(40) % 3
    calibrated = kc.calibrate(model, SEQUENCES, y, output="logits", verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["logits_source"] == "logits"
    np.testing.assert_allclose(
        calibrated.predict(SEQUENCES, verbose=0),
        model.predict(SEQUENCES, verbose=0) / record["temperature"],
        rtol=1e-4,
        atol=1e-6,
    )


def test_unknown_end_is_asked_for():
    with pytest.raises(ValueError, match="It is not known what the model"):
        kc.calibrate(KINDS[None]["rescaling"](), X, Y, verbose=0)
    model = functional(layers.Dense(1), layers.Lambda(lambda x: ops.sigmoid(x)))
    with pytest.raises(ValueError, match="It is not known whether"):
        kc.calibrate(model, X, Y > 0, verbose=0)
    kc.calibrate(model, X, Y > 0, from_logits=False, verbose=0)


def test_from_logits_that_contradicts_the_graph_is_refused():
    with pytest.raises(ValueError, match="its graph ends in a softmax"):
        kc.calibrate(
            functional(dense("softmax")), X, Y, from_logits=True, verbose=0
        )
    with pytest.raises(ValueError, match="says that it gives logits"):
        kc.calibrate(
            built(Subclassed("softmax")), X, Y, from_logits=True, verbose=0
        )
    with pytest.raises(ValueError, match="from_logits=True"):
        kc.calibrate(functional(dense()), X, Y, from_logits=False, verbose=0)


def test_softmax_over_one_unit_is_refused():
    with pytest.raises(ValueError, match="single unit gives 1"):
        kc.calibrate(
            functional(layers.Dense(1, "softmax")), X, Y > 0, verbose=0
        )


def test_logits_are_those_of_the_kernel():
    head = find_head(built(functional(dense("softmax"))))
    logits = keras.Model(head.inputs, head.tensor)(X)
    np.testing.assert_allclose(to_numpy(logits), LOGITS, rtol=1e-4, atol=1e-5)


def used_twice():
    inputs = keras.Input((8,))
    classifier = keras.Sequential([keras.Input((8,)), dense("softmax")])
    between = layers.Dense(8)(classifier(inputs))
    return keras.Model(inputs, classifier(between))


def test_a_nested_model_that_is_used_twice_can_be_loaded(tmp_path):
    # Keras cannot load layers that two nested models share.
    model = used_twice()
    with pytest.warns(UserWarning, match="logarithm"):
        calibrated = kc.calibrate(model, X, Y, verbose=0)
    calibrated.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert np.allclose(
        loaded.predict(X, verbose=0), calibrated.predict(X, verbose=0)
    )
    with pytest.raises(ValueError, match="used in two places"):
        kc.calibrate(model, X, Y, fuse=True, verbose=0)


def test_a_nested_model_on_the_same_input_loses_its_softmax():
    inputs = keras.Input((8,))
    nested_model = keras.Model(inputs, dense("softmax")(inputs))
    model = keras.Model(inputs, nested_model(inputs))
    assert find_head(model).activation == "softmax"
    assert find_head(model, twin=True).layer is not None


@pytest.mark.parametrize(
    "ends",
    [
        [layers.Conv2D(4, 1, data_format="channels_first")],
        [
            layers.UpSampling2D(2, data_format="channels_first"),
            layers.Activation("relu"),
            layers.Dropout(0.1),
        ],
        [layers.Softmax(axis=1)],
        [layers.Softmax(axis=-3)],
    ],
)
def test_classes_on_another_axis_are_refused(ends):
    # The width of the image is the number of classes, too.
    model = keras.Sequential([keras.Input((4, 4, 4)), *ends])
    outer = keras.Sequential([keras.Input((4, 4, 4)), model])
    for each in (model, outer):
        with pytest.raises(ValueError, match=r"axis 1.*Permute\(\(2, 3, 1\)\)"):
            kc.calibrate(each, np.zeros((2, 4, 4, 4)), np.zeros((2, 4, 4)))
    moved = keras.Sequential([*outer.layers, layers.Permute((2, 3, 1))])
    refuse_another_class_axis(moved)
    refuse_another_class_axis(functional(dense("softmax")))
    refuse_another_class_axis(Subclassed())


@pytest.mark.parametrize("sequential", [True, False])
def test_a_subclassed_model_may_come_last(sequential):
    last, inputs = built(Subclassed("softmax")), keras.Input((8,))
    expected = kc.calibrate(last, X, Y, verbose=0).predict(X, verbose=0)
    model = keras.Model(inputs, last(inputs))
    if sequential:
        model = keras.Sequential([inputs, last])
    found = kc.calibrate(model, X, Y, verbose=0)
    np.testing.assert_allclose(
        found.predict(X, verbose=0), expected, rtol=1e-5, atol=1e-6
    )


def test_a_later_output_of_a_nested_model():
    # The first output has its classes elsewhere, and other logits.
    inputs = keras.Input((4, 8))
    first = layers.Softmax(axis=1)(layers.Dense(3)(inputs))
    second = layers.Dense(3)(layers.Flatten()(inputs))
    nested_model = keras.Model(inputs, [first, second])
    outer_inputs = keras.Input((4, 8))
    model = keras.Model(outer_inputs, nested_model(outer_inputs)[1])
    x, y = SEQUENCES[:, :4], np.arange(40) % 3
    logits = nested_model.predict(x, verbose=0)[1]
    options = {"from_logits": True, "verbose": 0}
    for fuse in (False, True):
        found = kc.calibrate(model, x, y, fuse=fuse, **options)
        temperature = kc.calibration_record(found)["temperature"]
        np.testing.assert_allclose(
            found.predict(x, verbose=0),
            to_numpy(ops.softmax(logits / temperature)),
            rtol=1e-4,
            atol=1e-6,
        )


@pytest.mark.parametrize("activation", [None, "softmax"])
def test_one_output_in_a_list(activation):
    plain = functional(dense(activation))
    listed = keras.Model(plain.input, [plain.output])
    for options in ({}, {"fuse": True}, {"stream": True}):
        expected = kc.calibrate(plain, X, Y, verbose=0, **options)
        found = kc.calibrate(listed, X, Y, verbose=0, **options)
        np.testing.assert_allclose(
            found.predict(X, verbose=0),
            expected.predict(X, verbose=0),
            rtol=1e-6,
        )
    prior = {"prior": [0.5, 0.3, 0.2], "source_prior": [0.2, 0.3, 0.5]}
    np.testing.assert_allclose(
        kc.adjust_prior(listed, **prior).predict(X, verbose=0),
        kc.adjust_prior(plain, **prior).predict(X, verbose=0),
        rtol=1e-6,
    )
    with pytest.raises(ValueError, match="with a list of one output"):
        kc.models.MonteCarloDropout(listed)
