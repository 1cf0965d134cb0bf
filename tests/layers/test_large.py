"""A fit to logits in files has the numbers of one to logits in memory."""

import tracemalloc

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.inputs import large
from keras_calib.solvers import isotonic
from tests.layers.test_maps import MAPS

layers = kc.layers
AFFINE = {
    "class temperature": layers.ClassTemperatureScaling,
    "vector": layers.VectorScaling,
    "matrix": layers.MatrixScaling,
    "matrix of means": lambda: layers.MatrixScaling(
        regularization="structured", normalize_logits="mean"
    ),
    "dirichlet": layers.DirichletScaling,
}


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*MAPS, *AFFINE])
def test_a_fit_from_files_has_the_same_numbers(name, monkeypatch):
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(600, 4)).astype("float32")
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    make = {**MAPS, **AFFINE}[name]
    expected = make().adapt(logits, labels)
    monkeypatch.setattr(large, "LIMIT", 1 << 10)
    monkeypatch.setattr(large, "BLOCK", 1 << 8)
    monkeypatch.setattr(isotonic, "ENTRIES", 1 << 8)
    found = make().adapt(logits, labels)
    for one, other in zip(
        found.get_weights(), expected.get_weights(), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)


# Largest memory of a fit by the size of its logits. Before large arrays went
# to files it was 4.6, 3.3, 24.5, 3.3 and 1.3. Of vector scaling's, 2 are
# logits in float64, which those above 64 MiB are not.
MEMORY = {
    "vector": (layers.VectorScaling, 2.5),
    "spline": (layers.SplineCalibration, 1.5),
    "isotonic": (lambda: layers.IsotonicCalibration(shrinkage=None), 1.5),
    "isotonic per class": (MAPS["isotonic per class plain"], 0.6),
    "matrix": (
        lambda: layers.MatrixScaling(regularization="structured"),
        0.5,
    ),
}


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MEMORY)
def test_memory_of_a_fit_stays_near_that_of_some_numbers_a_row(
    name, monkeypatch
):
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(20_000, 100)).astype("float32")
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    monkeypatch.setattr(large, "LIMIT", 1 << 16)
    monkeypatch.setattr(large, "BLOCK", 1 << 14)
    monkeypatch.setattr(isotonic, "ENTRIES", 1 << 16)
    make, most = MEMORY[name]
    layer = make()
    layer.build((None, 100))
    tracemalloc.start()  # NumPy tells it of arrays, and not of files
    try:
        layer.adapt(logits, labels)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most * logits.nbytes
