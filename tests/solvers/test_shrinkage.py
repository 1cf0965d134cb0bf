"""The weight of a mixture with temperature scaling, and its folds."""

import itertools

import numpy as np
import pytest

from keras_calib.solvers.shrinkage import NUM_FOLDS
from keras_calib.solvers.shrinkage import fold_of_rows
from keras_calib.solvers.shrinkage import log_mixture
from keras_calib.solvers.shrinkage import mixture_weight
from keras_calib.solvers.shrinkage import ratio_by_fold


def weight_of(plain, rich, weights, caution):
    fold = np.arange(len(plain)) % NUM_FOLDS
    curve = ratio_by_fold(plain, rich, weights, fold).sum(axis=0)
    return mixture_weight(curve, caution)


def likelihoods(count, gain):
    rng = np.random.default_rng(0)
    plain = np.log(rng.uniform(0.2, 0.9, count))
    rich = plain + rng.normal(gain, 0.5, count)
    return plain, rich, rng.uniform(0.5, 1.5, count)


@pytest.mark.parametrize("caution", [1.0, 4.0])
@pytest.mark.parametrize("gain", [-0.3, 0.0, 0.3])
def test_weight_is_the_posterior_mean(gain, caution):
    plain, rich, weights = likelihoods(80, gain)
    # The definition on a fine grid, in probabilities.
    step = 1e-4
    c = np.arange(step / 2, 1, step)[:, None]
    mixed = (1 - c) * np.exp(plain) + c * np.exp(rich)
    likelihood = np.exp(np.log(mixed / np.exp(plain)) @ weights)
    density = caution * (1 - c[:, 0]) ** (caution - 1) / 2
    mass = step * density * likelihood
    expected = (mass @ c[:, 0]) / (0.5 + mass.sum())
    found = weight_of(plain, rich, weights, caution)
    assert found == pytest.approx(expected, abs=2e-3)


def test_weight_without_evidence_is_that_of_the_prior():
    plain, _, weights = likelihoods(80, 0.0)
    for caution in (1.0, 4.0):
        prior = 1 / (1 + caution) / 2
        found = weight_of(plain, plain, weights, caution)
        assert found == pytest.approx(prior, abs=1e-3)


def test_labels_that_a_map_rules_out_leave_temperature_scaling():
    plain, rich, weights = likelihoods(80, 0.1)
    assert weight_of(plain, rich, weights, 1.0) > 0.3
    rich[:10] = -1e30
    found = weight_of(plain, rich, weights, 1.0)
    assert 0 < found < 0.2
    # What both rule out decides nothing.
    plain[:10] = -1e30
    rest = weight_of(plain[10:], rich[10:], weights[10:], 1.0)
    assert weight_of(plain, rich, weights, 1.0) == pytest.approx(rest)


def test_ratios_of_each_fold_by_definition():
    plain, rich, weights = likelihoods(80, 0.5)
    fold = np.arange(80) % 3
    found = ratio_by_fold(plain, rich, weights, fold)
    for number, c in itertools.product(range(3), (0, 20, 49)):
        rows = fold == number
        share = (c + 0.5) / 50
        mixed = log_mixture(plain[rows], rich[rows], share)
        expected = weights[rows] @ (mixed - plain[rows])
        assert found[number, c] == pytest.approx(expected)


def test_log_mixture():
    plain, rich, _ = likelihoods(80, 0.5)
    expected = np.log(0.7 * np.exp(plain) + 0.3 * np.exp(rich))
    np.testing.assert_allclose(log_mixture(plain, rich, 0.3), expected)
    np.testing.assert_array_equal(log_mixture(plain, rich, 0.0), plain)


def test_folds_are_equal_in_size_and_in_every_call():
    logits = np.random.default_rng(0).normal(size=(53, 3))
    fold, sample = fold_of_rows(logits, np.ones(53))
    assert sample.tolist() == list(range(53))
    assert sorted(np.bincount(fold, minlength=NUM_FOLDS)) == [
        10,
        10,
        11,
        11,
        11,
    ]
    np.testing.assert_array_equal(fold, fold_of_rows(logits, np.ones(53))[0])


def test_rows_of_a_soft_label_share_a_fold():
    logits = np.random.default_rng(0).normal(size=(30, 3))
    rows = np.repeat(np.arange(30), 1 + np.arange(30) % 3)
    weights = (1 / (1 + np.arange(30) % 3))[rows]
    fold, sample = fold_of_rows(logits[rows], weights)
    np.testing.assert_array_equal(sample, rows)
    expected, _ = fold_of_rows(logits, np.ones(30))
    np.testing.assert_array_equal(fold, expected[rows])
    # Equal rows of whole samples are different samples.
    _, sample = fold_of_rows(logits[rows], np.ones(len(rows)))
    assert sample.tolist() == list(range(len(rows)))
