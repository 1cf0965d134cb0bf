import keras
import numpy as np
import pytest

from keras_calib.inputs.rows import as_rows
from keras_calib.inputs.tensors import NARROW
from keras_calib.inputs.tensors import pick
from keras_calib.inputs.tensors import predicted_class
from keras_calib.ops.confidence import confidence_and_correct
from keras_calib.ops.confidence import entropy
from keras_calib.ops.confidence import first_largest
from keras_calib.ops.confidence import is_first_largest
from keras_calib.ops.confidence import top_label
from tests.helpers import value_and_gradient

WIDTHS = pytest.mark.parametrize("num_classes", [4, NARROW + 36])


def array(tensor):
    return keras.ops.convert_to_numpy(tensor)


@WIDTHS
def test_prediction_is_the_first_of_the_largest(num_classes):
    scores = np.zeros((4, num_classes), "float32")
    scores[1, [1, 3]] = 2.0
    scores[2] = -np.inf
    scores[2, 2] = -1e4
    scores[3, 0] = -0.0  # as large as 0.0
    index = predicted_class(keras.ops.convert_to_tensor(scores))
    assert keras.backend.standardize_dtype(index.dtype) == "int32"
    np.testing.assert_array_equal(array(index), [0, 1, 2, 0])


def test_the_first_of_the_largest_scores_of_each_array_s_own_kind():
    scores = np.array([[[-0.0, 0.0], [-1.0, 2.0]], [[5.0, 1.0], [3.0, 3.0]]])
    expected = [[0, 1], [0, 0]]
    found = first_largest(scores, np)
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, expected)
    found = first_largest(keras.ops.convert_to_tensor(scores, "float32"))
    np.testing.assert_array_equal(array(found), expected)
    mask = np.eye(2, dtype=bool)[np.array(expected)]
    np.testing.assert_array_equal(is_first_largest(scores, np), mask)
    found = is_first_largest(keras.ops.convert_to_tensor(scores, "float32"))
    np.testing.assert_array_equal(array(found), mask)


@WIDTHS
def test_prediction_agrees_with_numpy(num_classes):
    scores = np.random.default_rng(0).normal(size=(50, num_classes))
    index = predicted_class(keras.ops.convert_to_tensor(scores, "float32"))
    np.testing.assert_array_equal(array(index), scores.argmax(axis=-1))


def test_one_entry_of_each_row():
    scores = keras.ops.reshape(keras.ops.arange(6.0), (2, 3))
    np.testing.assert_array_equal(array(pick(scores, np.array([2, 0]))), [2, 3])


def test_logarithms_of_extreme_rows():
    z = np.array([[1e4, 1e4 - 10.0, 0.0], [-1e4, 0.0, 1e4]], "float32")
    rows = as_rows([0, 1], z)
    small = -np.log1p(np.exp(-10.0))
    np.testing.assert_allclose(
        array(rows.log_probability(rows.labels)), [small, -1e4], 1e-6, 1e-7
    )
    np.testing.assert_allclose(
        array(rows.log_probabilities),
        [[small, small - 10.0, small - 1e4], [-2e4, -1e4, 0.0]],
        rtol=1e-6,
        atol=1e-7,
    )
    p = np.exp(-10.0) / (1 + np.exp(-10.0))
    h = -p * np.log(p) - (1 - p) * np.log1p(-p)
    np.testing.assert_allclose(array(entropy(rows)), [h, 0.0], atol=1e-7)


@pytest.mark.parametrize("gap", [2.0, 18.0, 25.0])
def test_slope_of_the_entropy_of_sure_rows(gap):
    # -p (log p + H), in float64.
    z = np.array([gap, 0.0, -1.0, 1.0])
    log_p = z - np.log(np.exp(z).sum())
    h = -(np.exp(log_p) * log_p).sum()
    expected = -np.exp(log_p) * (log_p + h)
    _, found = value_and_gradient(
        lambda x: keras.ops.sum(entropy(as_rows([0], x))), z[None]
    )
    np.testing.assert_allclose(found[0], expected, rtol=2e-5)


def test_losses_and_metrics_see_the_same_prediction():
    # Two probabilities whose logarithms are one number.
    low = np.linspace(0.055, 0.06, 50, dtype="float32")
    p = np.repeat((1 - 2 * low[:, None]) / 18, 20, axis=1)
    p[:, 3], p[:, 7] = low, np.nextafter(low, np.float32(1))
    rows = as_rows(np.full(50, 7), p, from_logits=False)
    np.testing.assert_array_equal(array(top_label(rows)[1]), 1.0)
    np.testing.assert_array_equal(array(confidence_and_correct(rows)[1]), 1.0)
