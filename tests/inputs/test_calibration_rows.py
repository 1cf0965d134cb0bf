"""Samples as the rows that a map is fitted to."""

import numpy as np
import pytest

from keras_calib.inputs.calibration_rows import checked_rows

pytestmark = pytest.mark.one_backend


def test_a_soft_label_is_a_row_for_each_class_that_it_holds():
    logits = np.array([[1.0, 2.0], [3.0, 4.0]], "float32")
    soft = np.array([[0.25, 0.75], [1.0, 0.0]])
    group = np.array([3, 5])
    for weights, relative in ((None, [1.0, 1.0]), ([1.0, 3.0], [0.5, 1.5])):
        weights = None if weights is None else np.array(weights)
        found = checked_rows(logits, soft, weights, group)
        np.testing.assert_array_equal(found.logits, logits[[0, 0, 1]])
        np.testing.assert_array_equal(found.labels, [0, 1, 0])
        np.testing.assert_array_equal(found.group, group[[0, 0, 1]])
        np.testing.assert_allclose(
            found.weights,
            np.array(relative)[[0, 0, 1]] * [0.25, 0.75, 1.0],
        )
        assert found.num_samples == 2


def test_minus_infinity_rules_out_a_class_of_several_not_of_a_sigmoid():
    logits, labels = np.array([[0.3], [-np.inf]]), np.array([1, 0])
    with pytest.raises(ValueError, match="finite for one sigmoid unit") as e:
        checked_rows(logits, labels)
    assert "minus infinity for" not in str(e.value)
    pair = np.concatenate([np.zeros((2, 1)), logits], axis=1)
    assert checked_rows(pair, labels).num_samples == 2
