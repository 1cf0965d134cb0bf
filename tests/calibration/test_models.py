"""`kc.calibrate` on the models that people have, and where they take them."""

import shutil

import keras
import numpy as np
import pytest
from keras import layers

import keras_calib as kc
from tests.calibration.networks import EXPECTED
from tests.calibration.networks import KERNEL
from tests.calibration.networks import LOGITS
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional
from tests.helpers import run_in_fresh_process
from tests.helpers import to_numpy

IMAGES = np.random.default_rng(1).uniform(size=(24, 32, 32, 3))
IMAGES = IMAGES.astype("float32")
LABELS = np.arange(24) % 3


def test_several_inputs(tmp_path):
    inputs = {"left": keras.Input((4,)), "right": keras.Input((4,))}
    joined = layers.Concatenate()([inputs["left"], inputs["right"]])
    model = built_head(keras.Model(inputs, dense("softmax")(joined)))
    x = {"left": X[:, :4], "right": X[:, 4:]}
    calibrated = kc.calibrate(model, x, Y, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["temperature"] == pytest.approx(EXPECTED, rel=1e-4)
    calibrated.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        again.predict(x, verbose=0), calibrated.predict(x, verbose=0)
    )


def built_head(model):
    model.layers[-1].set_weights([KERNEL])
    return model


def test_list_of_inputs():
    inputs = [keras.Input((4,)), keras.Input((4,))]
    model = keras.Model(inputs, dense("softmax")(layers.Concatenate()(inputs)))
    calibrated = kc.calibrate(
        built_head(model), [X[:, :4], X[:, 4:]], Y, verbose=0
    )
    record = kc.calibration_record(calibrated)
    assert record["temperature"] == pytest.approx(EXPECTED, rel=1e-4)


def classifier_of_keras_cv():
    keras_cv = pytest.importorskip("keras_cv")
    backbone = keras_cv.models.ResNetV2Backbone(
        stackwise_filters=[8, 16],
        stackwise_blocks=[2, 2],
        stackwise_strides=[1, 2],
        input_shape=(32, 32, 3),
        include_rescaling=False,
    )
    return keras_cv.models.ImageClassifier(backbone=backbone, num_classes=3)


def classifier_of_keras_hub(activation="softmax"):
    keras_hub = pytest.importorskip("keras_hub")
    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 64],
        stackwise_num_blocks=[1, 1],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
        image_shape=(32, 32, 3),
    )
    return keras_hub.models.ImageClassifier(
        backbone=backbone, num_classes=3, activation=activation
    )


ZOO = {
    "keras-cv": classifier_of_keras_cv,
    "keras-hub": classifier_of_keras_hub,
    "keras-hub, logits": lambda: classifier_of_keras_hub(None),
}


@pytest.mark.slow
@pytest.mark.parametrize("fuse", [False, True], ids=["layer", "fused"])
@pytest.mark.parametrize("kind", ZOO)
def test_classifiers_of_the_zoos(kind, fuse, tmp_path):
    model = ZOO[kind]()
    head = [w for w in model.weights if w.path.endswith("kernel")][-1]
    head.assign(np.random.default_rng(0).normal(size=head.shape) * 30)
    logits_out = kind.endswith("logits")
    outputs = model.predict(IMAGES, verbose=0)
    calibrated = kc.calibrate(
        model,
        IMAGES,
        LABELS,
        from_logits=logits_out or None,
        fuse=fuse,
        verbose=0,
    )
    record = kc.calibration_record(calibrated)
    assert record["temperature"] != 1
    logits = outputs if logits_out else np.log(outputs)
    expected = keras.ops.softmax(logits / np.float32(record["temperature"]))
    probabilities = calibrated.predict(IMAGES, verbose=0)
    np.testing.assert_allclose(probabilities, to_numpy(expected), atol=2e-4)
    calibrated.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_allclose(
        again.predict(IMAGES, verbose=0), probabilities, rtol=1e-6
    )


@pytest.mark.slow
def test_quantised_network(tmp_path):
    model = functional(layers.Dense(16, "relu"), dense("softmax"))
    model.quantize("int8")
    calibrated = kc.calibrate(model, X, Y, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["logits_source"] == "before softmax"
    outputs = model.predict(X, verbose=0)
    expected = keras.ops.softmax(
        np.log(outputs) / np.float32(record["temperature"])
    )
    probabilities = calibrated.predict(X, verbose=0)
    np.testing.assert_allclose(probabilities, to_numpy(expected), atol=1e-4)
    calibrated.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(again.predict(X, verbose=0), probabilities)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_body(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = built(functional(dense("softmax")))
    finally:
        keras.config.set_dtype_policy("float32")
    for fuse in (False, True):
        calibrated = kc.calibrate(model, X, Y, fuse=fuse, verbose=0)
        probabilities = calibrated.predict(X, verbose=0)
        assert probabilities.dtype == np.float32
        np.testing.assert_allclose(
            probabilities,
            to_numpy(keras.ops.softmax(LOGITS / np.float32(EXPECTED))),
            atol=0.03,  # the digits of the network's logits
        )


@pytest.mark.parametrize(
    "policy", ["float32", "mixed_bfloat16", "mixed_float16"]
)
def test_a_file_of_mixed_float16_loads_without_a_warning(
    policy, tmp_path, recwarn
):
    # Where the optimizer scales losses for float16, its variables are others.
    try:
        keras.config.set_dtype_policy("mixed_float16")
        model = built(functional(dense("softmax")))
        kc.calibrate(model, X, Y, verbose=0).save(tmp_path / "model.keras")
        keras.config.set_dtype_policy(policy)
        keras.saving.load_model(tmp_path / "model.keras")
    finally:
        keras.config.set_dtype_policy("float32")
    assert not [w for w in recwarn if "optimizer" in str(w.message)]


def test_one_forward_pass():
    calls = []

    class Counts(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            calls.append(i)
            part = slice(100 * i, 100 * (i + 1))
            return X[part], Y[part]

    kc.calibrate(built(functional(dense("softmax"))), Counts(), verbose=0)
    assert calls == [0, 1, 2]


def test_a_progress_bar_counts_batches(capsys):
    kc.calibrate(built(functional(dense())), X, Y, verbose=1)
    assert "10/10" in capsys.readouterr().out


def test_logits_larger_than_the_limit(monkeypatch):
    model = built(functional(dense("softmax")))
    expected = kc.calibration_record(kc.calibrate(model, X, Y, verbose=0))
    monkeypatch.setattr("keras_calib.data.collect.SPILL", 1000)
    spilled = kc.calibration_record(kc.calibrate(model, X, Y, verbose=0))
    assert spilled == expected


LOAD = """
import keras, numpy
import keras_calib as kc
model = keras.saving.load_model("model.keras", safe_mode=True)
numpy.save("loaded.npy", model.predict(numpy.load("x.npy"), verbose=0))
print(kc.calibration_record(model)["temperature"])
"""


@pytest.mark.slow
def test_the_file_in_a_fresh_process(tmp_path):
    calibrated = kc.calibrate(
        built(functional(dense("softmax"))), X, Y, verbose=0
    )
    calibrated.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    printed = run_in_fresh_process(LOAD, tmp_path)
    record = kc.calibration_record(calibrated)
    assert float(printed.split()[-1]) == record["temperature"]
    np.testing.assert_array_equal(
        np.load(tmp_path / "loaded.npy"), calibrated.predict(X, verbose=0)
    )


@pytest.mark.slow
def test_jit_compile():
    if keras.backend.backend() == "torch" and not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler")
    calibrated = kc.calibrate(
        built(functional(dense("softmax"))), X, Y, verbose=0
    )
    expected = calibrated.predict(X, verbose=0)
    calibrated.compile(jit_compile=True)
    np.testing.assert_allclose(
        calibrated.predict(X, verbose=0), expected, atol=1e-6
    )


@keras.saving.register_keras_serializable(package="tests")
class OwnSoftmax(layers.Layer):
    """A softmax that the graph does not show."""

    def call(self, x):
        return keras.ops.softmax(x)


@pytest.mark.filterwarnings("ignore:No final softmax")
def test_a_layer_that_has_the_name_of_one_that_is_added():
    network = built(functional(dense(name="log_probabilities"), OwnSoftmax()))
    calibrated = kc.calibrate(network, X, Y, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["logits_source"] == "log of probabilities"
    assert record["temperature"] == pytest.approx(EXPECTED, rel=1e-3)
    names = [layer.name for layer in calibrated.layers]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("built", [True, False])
def test_a_network_with_augmentation_stays_as_it_is(built):
    # Keras' augmentation layers ask for training if nothing is said.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(48, 6, 6, 2)).astype("float32")
    y = rng.integers(0, 3, 48)
    body = [keras.Input((6, 6, 2))] if built else []
    model = keras.Sequential(
        [
            *body,
            keras.layers.RandomFlip(),
            keras.layers.Conv2D(4, 3),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(3, "softmax"),
        ]
    )
    if not built:
        model.build((None, 6, 6, 2))
    before = model.get_weights()
    calibrated = kc.calibrate(model, x, y, guard=False, verbose=0)
    kc.adjust_prior(calibrated, x, source_prior=[0.3, 0.3, 0.4], verbose=0)
    for one, two in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
