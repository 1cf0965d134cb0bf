"""Several sigmoid units: which entries count, and what belongs together."""

import numpy as np
import pytest

from keras_calib.inputs.label_arrays import as_label_samples
from keras_calib.inputs.label_arrays import read_labels

pytestmark = pytest.mark.one_backend
SCORES = np.array(
    [
        [[1.0, -2.0], [0.5, 3.0], [4.0, 5.0]],
        [[6.0, 7.0], [8.0, 9.0], [2.5, 1.5]],
    ]
)
LABELS = np.array([[[1, 0], [-1, -1], [1, 1]], [[0, -1], [1, 0], [-1, -1]]])


def test_rows_are_those_with_an_entry_that_counts():
    # Two samples of three tokens; -1 is a label that nobody knows.
    scores, labels, weights, unit, units = as_label_samples(
        SCORES, LABELS, [2.0, 3.0], -1, None
    )
    np.testing.assert_array_equal(
        scores, [[1.0, -2.0], [4.0, 5.0], [6.0, 7.0], [8.0, 9.0]]
    )
    expected = [[2, 2], [2, 2], [3, 0], [3, 3]]
    np.testing.assert_array_equal(weights, expected)
    known = weights > 0
    np.testing.assert_array_equal(labels[known], [1, 0, 1, 1, 0, 1, 0])
    np.testing.assert_array_equal(unit, [0, 0, 1, 1])
    assert units == 2


def test_a_batch_without_samples_has_no_rows():
    scores, labels, weights, unit, units = as_label_samples(
        np.zeros((0, 3)), np.zeros((0, 3), int), None, None, None
    )
    assert scores.shape == labels.shape == weights.shape == (0, 3)
    assert (len(unit), units) == (0, 0)


def test_a_mask_leaves_out_whole_rows():
    mask = np.array([[True, False, False], [False, True, True]])
    data = read_labels(SCORES, np.ones((2, 3, 2)), mask=mask)
    assert data.num_labels == 2
    np.testing.assert_array_equal(
        data.weights, mask.reshape(-1, 1) * np.ones((1, 2))
    )


def test_weights_may_be_of_labels():
    weights = [[1.0, 0.0], [0.0, 2.0]]
    data = read_labels([[1.0, 2.0], [3.0, 4.0]], [[0, 1], [1, 0]], weights)
    np.testing.assert_array_equal(data.weights, weights)


def test_one_label_is_one_sigmoid_unit_with_the_entries_that_count():
    data = read_labels(SCORES, LABELS, [2.0, 1.0], ignore_class=-1)
    rows = data.of_label(1, np.arange(6))
    np.testing.assert_array_equal(rows.logits, [[-2.0], [5.0], [9.0]])
    np.testing.assert_array_equal(rows.labels, [0, 1, 0])
    # Their sum is the number of samples.
    np.testing.assert_allclose(rows.weights, np.array([2, 2, 1]) * 3 / 5)
    np.testing.assert_array_equal(rows.group, [0, 2, 4])
    assert data.of_label(1, None).group is None


def test_a_label_that_nobody_knows_has_no_rows():
    data = read_labels([[1.0, 2.0]], [[1, -1]], ignore_class=-1)
    assert data.of_label(1, None) is None
    assert len(data.of_label(0, None).labels) == 1


def test_an_error_names_the_label():
    data = read_labels([[1.0, np.nan], [1.0, 2.0]], [[1, 0], [0, 1]])
    assert len(data.of_label(0, None).labels) == 2
    with pytest.raises(ValueError, match=r"^Label 1: .*Received"):
        data.of_label(1, None)


@pytest.mark.parametrize(
    ("scores", "labels"),
    [((4,), (4,)), ((4, 1), (4, 1)), ((4, 3), (4,)), ((4, 3), (4, 2))],
)
def test_other_shapes_are_refused(scores, labels):
    with pytest.raises(ValueError, match="with two labels or more"):
        read_labels(np.ones(scores), np.ones(labels, int))
