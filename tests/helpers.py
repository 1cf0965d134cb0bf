"""What tests share: gradients on any backend, small networks, real files."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.evaluation.confidence_error import expected_calibration_error
from keras_calib.evaluation.events import sort_events
from keras_calib.ops.bin_errors import calibration_error
from tests import quick_jax

# Values of `jit_compile`. Torch compiles C++ for two minutes.
JIT_BUT_ON_TORCH = pytest.param(
    True,
    marks=pytest.mark.backends("tensorflow", "jax", reason="minutes on torch"),
)
JIT_COMPILE = (
    JIT_BUT_ON_TORCH,
    pytest.param(
        True,
        id="by_torch",
        marks=[
            pytest.mark.backends("torch"),
            pytest.mark.slow,
            pytest.mark.weekly,
            pytest.mark.skipif(not shutil.which("g++"), reason="needs g++"),
        ],
    ),
)


def run_in_fresh_process(code, folder=None):
    """What code prints in a Python of its own, which must not fail."""
    return run_python(["-c", code], folder)


def run_python(arguments, folder=None):
    """What a Python of its own prints, which must not fail."""
    root = pathlib.Path(__file__).parents[1]
    of_jax = os.environ.get("KERAS_BACKEND") == "jax"
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={
            **(quick_jax.SETTINGS if of_jax else {}),
            **os.environ,
            "PYTHONPATH": str(root),
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def example(place):
    """A script of `examples`, by its path from there, as a module.

    It finds the modules beside it, as where it is run.
    """
    path = pathlib.Path(__file__).parents[1] / "examples" / place
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def to_numpy(value):
    return np.asarray(ops.convert_to_numpy(value))


def exact_error(
    confidence, correct, num_bins=15, *, binning="width", norm=1, weights=None
):
    """Calibration error from whole arrays, over bins of either kind."""
    if binning == "mass":
        events = sort_events(confidence, correct, weights)
        bins = events.bins(events.mass_cuts(num_bins))
        return float(calibration_error(bins, norm))
    return expected_calibration_error(
        confidence, correct, num_bins, norm=norm, weights=weights
    )


def value_and_gradient(function, x, dtype="float32"):
    """A scalar function of an array, and its gradient, on any backend."""
    backend = keras.backend.backend()
    x = np.asarray(x, dtype)
    if backend == "tensorflow":
        import tensorflow as tf

        variable = tf.Variable(x)
        with tf.GradientTape() as tape:
            value = function(tf.convert_to_tensor(variable))
        gradient = tape.gradient(value, variable)
        gradient = np.zeros_like(x) if gradient is None else gradient
    elif backend == "jax":
        import jax

        value, gradient = jax.value_and_grad(function)(jax.numpy.asarray(x))
    else:
        variable = ops.convert_to_tensor(x).requires_grad_()
        value = function(variable)
        if value.requires_grad:
            value.backward()
        gradient = variable.grad
        gradient = np.zeros_like(x) if gradient is None else gradient
    return float(to_numpy(value)), to_numpy(gradient)


def compiled(function):
    """The function under the backend's compiler, where it has one to test."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    if backend == "jax":
        import jax

        return jax.jit(function)
    return function


def small_network(num_classes=10, inputs=64, activation=None):
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(num_classes, activation=activation),
        ]
    )


class Pieces(keras.utils.PyDataset):
    """Arrays in batches of 32, as a dataset that Keras shuffles by batch."""

    def __init__(self, *arrays):
        super().__init__()
        self.arrays = arrays

    def __len__(self):
        return -(-len(self.arrays[0]) // 32)

    def __getitem__(self, i):
        part = slice(i * 32, i * 32 + 32)
        return tuple(array[part] for array in self.arrays)


def read_predictions(folder, name):
    """Probabilities and labels of one file of real predictions."""
    with np.load(folder / "predictions" / f"{name}.npz") as file:
        return file["predictions"], file["ground_truth"].astype("int32")


# Layers that are bases, are made of fitted ones, have nothing to fit, or learn
# from more than one class per sample.
_NOT_FITTED = (
    *("CalibrationLayer", "CalibrationMixture", "DecisionLayer"),
    *("LocalTemperatureScaling", "LogProbabilities", "MultiLabelScaling"),
    "PriorCorrection",
)
_OF_TWO_CLASSES = ("BetaCalibration", "PlattScaling", "QuadraticScaling")


def fitted_layers(logits, labels):
    """Every other layer of `kc.layers`, fitted: name, layer, classes it has.

    Args:
        logits: `(n, 3)`; layers of two classes get the first two.
        labels: ids, `(n,)`; for those, 2 is 1.
    """
    for name in kc.layers.__all__:
        make = getattr(kc.layers, name)
        if not hasattr(make, "adapt") or name in _NOT_FITTED:
            continue
        layer = make(**({"max_miscoverage": 0.2} if name == "MetaCal" else {}))
        if name in _OF_TWO_CLASSES:
            yield name, layer.adapt(logits[:, :2], labels.clip(0, 1)), 2
        else:
            yield name, layer.adapt(logits, labels), 3
