import numpy as np
import pytest
from keras import ops

from keras_calib.inputs.arrays import concrete_value
from keras_calib.inputs.rows import as_rows
from keras_calib.ops.confidence import top_label
from tests.helpers import compiled
from tests.helpers import to_numpy


def test_the_first_of_equal_logits_is_the_prediction():
    tied, later = [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]
    rows = as_rows([0, 1, 1, 2], [tied, tied, later, later])
    confidence, correct = top_label(rows)
    np.testing.assert_array_equal(to_numpy(correct), [1.0, 0.0, 1.0, 0.0])
    expected = np.e / (2 * np.e + 1)
    np.testing.assert_allclose(to_numpy(confidence), expected, rtol=1e-6)


def test_one_sigmoid_unit_becomes_two_classes():
    logit = np.array([[-2.0], [0.5], [3.0]], "float32")
    probability = 1 / (1 + np.exp(-logit))
    expected = np.concatenate([1 - probability, probability], axis=1)
    for given, from_logits in ((logit, True), (probability, False)):
        for labels in ([0, 1, 1], [[0], [1], [1]]):
            rows = as_rows(labels, given, from_logits=from_logits)
            np.testing.assert_allclose(
                to_numpy(rows.probabilities), expected, rtol=1e-6
            )
            np.testing.assert_array_equal(to_numpy(rows.labels), [0, 1, 1])


def test_a_unit_a_little_outside_of_probabilities_is_at_their_end():
    given = np.array([[-5e-4], [1 + 5e-4]], "float32")
    rows = as_rows([0, 1], given, from_logits=False)
    np.testing.assert_array_equal(to_numpy(rows.probabilities), np.eye(2))
    exact = np.array([[0.0], [1.0]], "float32")
    ends = as_rows([0, 1], exact, from_logits=False)
    np.testing.assert_array_equal(to_numpy(rows.logits), to_numpy(ends.logits))


@pytest.mark.parametrize("axis", [1, -2])
def test_classes_may_be_on_another_axis(axis):
    logits = np.arange(24, dtype="float32").reshape(2, 3, 4)
    labels = np.array([[0, 1, 2, 0], [2, 1, 0, 1]])
    expected = np.moveaxis(logits, 1, 2).reshape(8, 3)
    one_hot = np.moveaxis(np.eye(3, dtype="float32")[labels], 2, 1)
    for given in (labels, one_hot):
        rows = as_rows(given, logits, axis=axis)
        np.testing.assert_array_equal(to_numpy(rows.logits), expected)
        np.testing.assert_array_equal(to_numpy(rows.labels), labels.ravel())


def test_weights_broadcast_from_the_left():
    labels = np.zeros((2, 3, 4), "int32")
    logits = np.zeros((2, 3, 4, 5), "float32")
    rows = as_rows(labels, logits, sample_weight=np.array([1.0, 2.0]))
    np.testing.assert_array_equal(
        to_numpy(rows.weights), np.repeat([1.0, 2.0], 12)
    )
    each = np.arange(24.0).reshape(2, 3, 4)
    for given in (each, each[..., None]):
        rows = as_rows(labels, logits, sample_weight=given)
        np.testing.assert_array_equal(to_numpy(rows.weights), np.arange(24))


def test_a_constant_is_seen_and_a_symbol_is_not():
    assert concrete_value(ops.ones(2)) is not None
    found = []

    def function(x):
        found.append(concrete_value(x))
        return x

    compiled(function)(ops.ones(2))
    if compiled(function) is not function:
        assert found == [None]


def test_an_empty_batch_has_mean_zero():
    rows = as_rows(np.zeros(0, "int32"), np.zeros((0, 3), "float32"))
    assert float(rows.mean(rows.weights)) == 0.0


def test_a_float64_batch_keeps_its_digits():
    rows = as_rows(np.zeros(1, "int32"), np.zeros((1, 3)))
    assert rows.logits.shape == (1, 3)


def test_an_empty_class_axis():
    with pytest.raises(ValueError, match="class axis of known size"):
        as_rows(np.zeros(1), np.zeros((1, 0)))
