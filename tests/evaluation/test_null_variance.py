"""Variances of losses that predictions promise."""

import numpy as np
import pytest

from keras_calib.evaluation.null_variance import difference_variance
from keras_calib.evaluation.null_variance import loss_variance
from keras_calib.inputs.predictions import read_predictions

pytestmark = pytest.mark.one_backend


def predictions(n, num_classes, seed, **options):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(num_classes), size=n)
    return read_predictions(np.zeros(n, int), p, **options)


def test_the_variance_of_a_loss_is_that_of_its_labels():
    data = predictions(20, 5, 0)
    p, losses = data.probabilities, -np.log(data.probabilities)
    mean = (p * losses).sum(axis=1)
    expected = (p * (losses - mean[:, None]) ** 2).sum(axis=1)
    np.testing.assert_allclose(loss_variance(data), expected, rtol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_labels_between_two_models_find_both_as_good(weighted):
    weights = np.linspace(0.1, 3.0, 40) if weighted else None
    one, other = (
        predictions(40, 4, seed, sample_weight=weights) for seed in (1, 2)
    )
    p, other_p = one.probabilities, other.probabilities
    difference = np.log(p) - np.log(other_p)
    w = np.ones(40) if weights is None else weights

    def mean_of(share):
        q = (1 - share) * p + share * other_p
        return w @ (q * difference).sum(axis=1)

    low, high = 0.0, 1.0
    assert mean_of(low) > 0 > mean_of(high)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of(middle) > 0 else (low, middle)
    q = (1 - low) * p + low * other_p
    mean = (q * difference).sum(axis=1)
    expected = (q * difference**2).sum(axis=1) - mean**2
    found = difference_variance(one, other)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(difference_variance(other, one), found)


def test_probabilities_of_zero_have_finite_variances():
    p = np.array([[1.0, 0.0], [0.7, 0.3]])
    one = read_predictions([0, 0], p)
    other = read_predictions([0, 0], p[::-1])
    assert loss_variance(one)[0] == 0
    found = difference_variance(one, other)
    assert np.isfinite(found).all() and found.min() > 0
    # Equal models have nothing to tell.
    np.testing.assert_array_equal(difference_variance(one, one), 0.0)


def test_soft_labels_are_not_drawn():
    p = np.array([[0.6, 0.4], [0.7, 0.3]])
    data = read_predictions(p, p)
    assert loss_variance(data) is None
    assert difference_variance(data, data) is None
