"""Every map and every head in files that are served without this package."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.calibration._methods import METHODS
from tests.calibration.networks import KERNEL
from tests.calibration.networks import LOGITS
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional
from tests.calibration.test_methods import network_and_labels

BACKEND = keras.backend.backend()
# What Keras exports with, by backend, and what serves the file.
NEEDED = {
    "onnx": {
        "serving": "onnxruntime",
        "tensorflow": "tf2onnx",
        "jax": "jax2onnx",
        "torch": "onnxscript",
    },
    "tf_saved_model": {
        "serving": "tensorflow",
        "tensorflow": None,
        "jax": None,
    },
    "openvino": {"serving": "openvino", "tensorflow": None, "torch": None},
    "litert": {
        "serving": "ai_edge_litert",
        "tensorflow": None,
        "torch": "litert_torch",
    },
}
ENDINGS = {
    "onnx": "onnx",
    "tf_saved_model": "folder",
    "openvino": "xml",
    "litert": "tflite",
}
# A process that can import neither this package nor Keras.
SERVE = """
import json, pathlib, sys
import numpy as np

for name in ("keras", "keras_calib", "tensorflow", "torch", "jax"):
    if (name, sys.argv[1]) != ("tensorflow", "tf_saved_model"):
        sys.modules[name] = None
x = np.load("x.npy")


def onnx(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    return session.run(None, {session.get_inputs()[0].name: x})


def tf_saved_model(path):
    import tensorflow as tf

    model = tf.saved_model.load(str(path))  # holds the variables
    found = model.serve(x)
    return [np.asarray(each) for each in tf.nest.flatten(found)]


def openvino(path):
    import openvino

    # Some processors would compute in 16 bits.
    exact = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    model = openvino.Core().compile_model(path, "CPU", exact)
    found = model(x)
    return [found[output] for output in model.outputs]


def litert(path):
    from ai_edge_litert.interpreter import Interpreter

    model = Interpreter(model_path=str(path))
    (given,) = model.get_input_details()
    model.resize_tensor_input(given["index"], x.shape)
    model.allocate_tensors()
    model.set_tensor(given["index"], x)
    model.invoke()
    outputs = model.get_output_details()
    return [model.get_tensor(output["index"]) for output in outputs]


for path in map(pathlib.Path, json.loads(sys.argv[2])):
    np.savez(path.with_suffix(".npz"), *globals()[sys.argv[1]](path))
"""
# New inputs: the sample that a threshold was fitted to is exactly at it, and
# the last digit of its logits decides. Multiples of 1 / 64, of which the logits
# are exact, since the `u` of a randomized set is a hash of their digits.
NEW = np.random.default_rng(1).normal(size=(200, 8)).astype("float32")
NEW = np.round(64 * NEW) / 64
WHOLE_KERNEL = np.round(64 * KERNEL) / 64
# Classes that tie.
NEW[:3] = 0
SORTED = [
    f"{method}{randomized}"
    for method in ("aps", "raps")
    for randomized in ("", "_randomized")
]
HEADS = ("three_heads", "meta_cal", "risk_of_logit_norm", *SORTED)
WHOLE_MODELS = ("mixture", "adjusted_prior", "multi_label")


@pytest.fixture
def names(request):
    """All models; with `--share` some, since converters take seconds each."""
    every = (*METHODS, "order_invariant", *WHOLE_MODELS, *HEADS)
    return every[::5] if request.config.getoption("share") else every


def model_named(name):
    """A calibrated model, or one with a head of its own."""
    if name in METHODS or name == "order_invariant":
        method = name
        if name == "order_invariant":
            method = kc.layers.IntraOrderPreserving(
                family="order_invariant", iterations=20
            )
        model, labels = network_and_labels(name)
        return kc.calibrate(
            model, X, labels, method=method, guard=False, verbose=0
        )
    if name in WHOLE_MODELS:
        return whole_model(name)
    logits = built(functional(dense()))
    logits.set_weights([WHOLE_KERNEL])
    tensor = logits.output
    sets, risk = kc.layers.ConformalSets, kc.layers.RiskThreshold
    if name == "three_heads":
        outputs = {
            "probabilities": keras.layers.Softmax()(tensor),
            "sets": sets(coverage=0.9).adapt(LOGITS, Y)(tensor),
            "accepted": risk(target_risk=0.15).adapt(LOGITS, Y)(tensor),
        }
    elif name == "meta_cal":
        layer = kc.layers.MetaCal(max_miscoverage=0.1)
        scores, accepted = layer.adapt(LOGITS, Y)(tensor)
        outputs = {"scores": scores, "accepted": accepted}
    elif name == "risk_of_logit_norm":
        layer = risk(target_risk=0.15, score="logit_norm")
        outputs = layer.adapt(LOGITS, Y)(tensor)
    else:
        method, _, randomized = name.partition("_")
        layer = sets(
            method=method, randomized=bool(randomized), allow_empty=False
        )
        outputs = layer.adapt(LOGITS, Y)(tensor)
    return keras.Model(logits.input, outputs)


def whole_model(name):
    """What `kc.calibrate` and `kc.adjust_prior` return, beside one map."""
    model, labels = network_and_labels("temperature")
    if name == "mixture":
        return kc.calibrate(
            model, X, labels, method="auto", mixture=True, verbose=0
        )
    if name == "adjusted_prior":
        calibrated = kc.calibrate(model, X, labels, verbose=0)
        return kc.adjust_prior(calibrated, NEW, verbose=0)
    scores = keras.layers.Dense(3, activation="sigmoid")(
        model.layers[-2].output
    )
    several = keras.Model(model.input, scores)
    labels = np.random.default_rng(2).integers(2, size=(len(X), 3))
    return kc.calibrate(several, X, labels, multi_label=True, verbose=0)


def cannot(format, name):
    """Whether a converter cannot; the README has the reasons."""
    if BACKEND == "torch" and format == "openvino":
        # A traced model of torch may not return a dictionary.
        return name in ("three_heads", "meta_cal")
    if (BACKEND, format) == ("jax", "tf_saved_model"):
        # Its `top_k` is newer than what TensorFlow 2.21 reads.
        return name in ("parameterized_temperature", "mixture")
    if (BACKEND, format) != ("torch", "litert"):
        return False
    # Sorts, and indices of 64 bits that it takes for such of 32.
    return name in SORTED or name in (
        "parameterized_temperature",
        "order_preserving",
        "order_invariant",
        "spline",
        "isotonic",
        "histogram",
        "mixture",
        "meta_cal",
    )


def export(model, path, format, name):
    model(NEW[:1])  # JAX exports what was called, `predict` is not enough.
    arguments = {}
    if (BACKEND, format) == ("torch", "litert") or (
        (BACKEND, format) == ("jax", "onnx") and name.endswith("_randomized")
    ):
        # These converters need the number of samples, here.
        shape = keras.InputSpec(shape=NEW.shape, dtype="float32")
        arguments["input_signature"] = [shape]
    model.export(str(path), format=format, verbose=False, **arguments)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", NEEDED)
def test_files_are_served_without_keras(format, names, tmp_path):
    needed = NEEDED[format]
    if BACKEND not in needed:
        pytest.skip(f"Keras does not export to {format} from {BACKEND}")
    for package in (needed["serving"], needed[BACKEND]):
        if package is not None:
            pytest.importorskip(package)
    expected, paths = {}, []
    for name in names:
        if cannot(format, name):
            continue
        keras.utils.set_random_seed(0)
        model = model_named(name)
        paths.append(tmp_path / f"{name}.{ENDINGS[format]}")
        export(model, paths[-1], format, name)
        found = model.predict(NEW, verbose=0)
        expected[name] = list(keras.tree.flatten(found))
    assert len(expected) >= len(names) // 2
    np.save(tmp_path / "x.npy", NEW)
    command = [sys.executable, "-c", SERVE, format]
    done = subprocess.run(
        [*command, json.dumps([str(path) for path in paths])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, values in expected.items():
        with np.load(tmp_path / f"{name}.npz") as file:
            served = {array.dtype.kind: array for array in file.values()}
        # Exporters number the outputs, in an order of their own.
        assert len(served) == len(values)
        for value in values:
            value = np.asarray(value)
            np.testing.assert_allclose(
                np.asarray(served[value.dtype.kind], "float64"),
                np.asarray(value, "float64"),
                atol=1e-5,
                err_msg=name,
            )


@pytest.mark.backends("torch", reason="a trace of torch")
def test_a_traced_graph_keeps_no_product_of_its_sample():
    # `tensor * array` was traced as a constant: each sample had the `u` of the
    # one that the graph was traced with.
    import torch

    sets = kc.layers.ConformalSets(method="aps", randomized=True)
    expected = sets._uniform(LOGITS.astype("float32"), np)
    assert len(np.unique(expected)) > 290

    class Uniform(torch.nn.Module):
        def forward(self, logits):
            return sets._uniform(logits, keras.ops)

    logits = keras.ops.convert_to_tensor(LOGITS)
    traced = torch.jit.trace(Uniform(), (logits[:1],), check_trace=False)
    np.testing.assert_allclose(
        traced(logits).cpu().numpy(), expected, atol=1e-6
    )
