"""Files of calibrated models, served by a process without Keras."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

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
    "torch": {"serving": "torch", "torch": None},
}
ENDINGS = {
    "onnx": "onnx",
    "tf_saved_model": "folder",
    "openvino": "xml",
    "litert": "tflite",
    "torch": "pt2",
}
# A process that can import neither this package nor Keras.
SERVE = """
import json, pathlib, sys
import numpy as np

needed = {"tf_saved_model": "tensorflow", "torch": "torch"}.get(sys.argv[1])
for name in {"keras", "keras_calib", "tensorflow", "torch", "jax"} - {needed}:
    sys.modules[name] = None


def onnx(path, x):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    return session.run(None, {session.get_inputs()[0].name: x})


def tf_saved_model(path, x):
    import tensorflow as tf

    model = tf.saved_model.load(str(path))  # holds the variables
    found = model.serve(x)
    return [np.asarray(each) for each in tf.nest.flatten(found)]


def openvino(path, x):
    import openvino

    # Some processors would compute in 16 bits.
    exact = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    model = openvino.Core().compile_model(path, "CPU", exact)
    found = model(x)
    return [found[output] for output in model.outputs]


def litert(path, x):
    from ai_edge_litert.interpreter import Interpreter

    model = Interpreter(model_path=str(path))
    (given,) = model.get_input_details()
    model.resize_tensor_input(given["index"], x.shape)
    model.allocate_tensors()
    model.set_tensor(given["index"], x)
    model.invoke()
    outputs = model.get_output_details()
    return [model.get_tensor(output["index"]) for output in outputs]


def torch(path, x):
    import torch

    program = torch.export.load(path).module()
    # As Keras 3.15 exports it, for one sample at a time.
    rows = [program(torch.from_numpy(row)) for row in np.split(x, len(x))]
    return [
        torch.cat(parts).numpy(force=True)
        for parts in zip(*(torch.utils._pytree.tree_leaves(r) for r in rows))
    ]


for path in map(pathlib.Path, json.loads(sys.argv[2])):
    found = globals()[sys.argv[1]](path, np.load(path.with_suffix(".npy")))
    np.savez(path.with_suffix(".npz"), *found)
"""


def require_packages(format):
    """Skip the test where this backend or its packages cannot write a file."""
    needed = NEEDED[format]
    if BACKEND not in needed:
        pytest.skip(f"Keras does not export to {format} from {BACKEND}")
    for package in (needed["serving"], needed[BACKEND]):
        if package is not None:
            pytest.importorskip(package)


def check_served(models, format, folder):
    """Files of models give what the models give.

    Args:
        models: yields `(name, model, x, signature)`; `signature` is `None` or
            the shape of `x` that the converter needs.
        format: see `keras.Model.export`.
        folder: an empty folder.

    Returns:
        The number of models.
    """
    expected, paths = {}, []
    for name, model, x, signature in models:
        path = folder / f"{name}.{ENDINGS[format]}"
        model(x[:1])  # JAX exports what was called, `predict` is not enough.
        given = {}
        if signature is not None:
            spec = keras.InputSpec(shape=signature, dtype=x.dtype)
            given["input_signature"] = [spec]
        model.export(str(path), format=format, verbose=False, **given)
        x = x[:20] if format == "torch" else x
        np.save(path.with_suffix(".npy"), x)
        expected[name] = keras.tree.flatten(model.predict(x, verbose=0))
        paths.append(str(path))
    done = subprocess.run(
        [sys.executable, "-c", SERVE, format, json.dumps(paths)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, values in expected.items():
        with np.load(folder / f"{name}.npz") as file:
            served = {}
            # Exporters number the outputs, in an order of their own.
            for array in file.values():
                served.setdefault(_kind(array), array)
        # OpenVINO adds sizes that the graph of a layer computes.
        if format != "openvino":
            assert len(served) == len(values), name
        for value in map(np.asarray, values):
            np.testing.assert_allclose(
                np.asarray(served[_kind(value)], "float64"),
                np.asarray(value, "float64"),
                atol=1e-5,
                err_msg=name,
            )
    return len(expected)


def _kind(array):
    return array.dtype.kind, array.shape
