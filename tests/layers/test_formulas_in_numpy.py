"""The formulas that folds use: those of the layers, in NumPy."""

import numpy as np
import pytest

from keras_calib.layers._formula import FormulaCalibration
from tests.helpers import to_numpy
from tests.layers.test_weights import MAPS
from tests.layers.test_weights import data

WITH_FORMULA = [n for n in MAPS if isinstance(MAPS[n](), FormulaCalibration)]


def test_which_maps_have_one():
    assert len(WITH_FORMULA) >= 36  # a new map need not count itself


def log_q(layer, logits):
    scores = to_numpy(layer(logits)).astype("float64")
    scores -= scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def weights(layer):
    return {w.name: to_numpy(w) for w in layer.weights}


@pytest.mark.parametrize("name", WITH_FORMULA)
def test_numpy_agrees_with_the_layer(name):
    logits, labels = data(name, 300)[:2]
    layer = MAPS[name]().adapt(logits, labels)
    rows = np.arange(0, len(labels), 3)
    np.testing.assert_allclose(
        layer._log_q_with(weights(layer), logits, labels, rows),
        log_q(layer, logits)[rows, labels[rows]],
        atol=2e-5,
    )


@pytest.mark.parametrize("name", WITH_FORMULA)
def test_a_weight_that_is_no_number_is_refused(name):
    logits, labels = data(name, 100)[:2]
    layer = MAPS[name]().adapt(logits, labels)
    found, last = weights(layer), layer.weights[-1].name
    found[last] = np.full_like(found[last], np.nan)
    with pytest.raises(ValueError, match="not a finite number"):
        layer._log_q_with(found, logits, labels, np.arange(3))


@pytest.mark.parametrize(
    "name",
    ["spline", "isotonic", "diagonal", "histogram", "ensemble", "vector plain"],
)
def test_large_and_ruled_out_logits(name):
    logits = np.zeros((3, 5), "float32")
    logits[:, :3] = [[90, -90, 0], [-np.inf, 1, 0], [3, 3, -1e4]]
    layer = MAPS[name]().adapt(*data(name, 300)[:2])
    rows = np.arange(3)
    for labels in ([1, 2, 0], [0, 1, 2]):
        np.testing.assert_allclose(
            layer._log_q_with(weights(layer), logits, np.array(labels), rows),
            log_q(layer, logits)[rows, labels],
            rtol=1e-5,
            atol=2e-5,
        )
