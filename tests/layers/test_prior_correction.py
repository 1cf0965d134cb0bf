"""The layer that `kc.adjust_prior` puts behind a model."""

import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import to_numpy
from tests.layers.generated import softmax


def test_probabilities_are_weighed_by_the_ratio_of_the_priors():
    source, target = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    layer = kc.layers.PriorCorrection(source_prior=source, target_prior=target)
    logits = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
    weighed = softmax(logits) * target / source
    expected = weighed / weighed.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        softmax(to_numpy(layer(logits))), expected, rtol=1e-5
    )


def test_priors_of_other_classes_are_refused():
    layer = kc.layers.PriorCorrection(
        source_prior=[0.5, 0.5], target_prior=[0.1, 0.9]
    )
    with pytest.raises(ValueError, match="The priors are those of 2 classes"):
        layer.build((None, 3))
    layer.build((None, 1))
    for source, target, message in (
        ([1.0], [1.0], "`source_prior` must be a probability for each class. "),
        ([0.5, 0.5], [0.2, 0.3, 0.5], "for each class, 2 of them"),
    ):
        with pytest.raises(ValueError, match=message):
            kc.layers.PriorCorrection(source_prior=source, target_prior=target)
