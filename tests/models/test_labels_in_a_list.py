"""`fit(x, [y])`: labels and weights in a list of one, as Keras takes them."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import small_network

X = np.random.default_rng(0).normal(size=(32, 5)).astype("float32")
Y = X[:, :3].argmax(axis=1)
W = np.linspace(0.5, 1.5, 32).astype("float32")


def network():
    return small_network(num_classes=3, inputs=5)


def cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def plain(x):
    return network(), kc.losses.MDCA(from_logits=True), x


def mutual(x):
    pair = kc.models.MutualLearning(network(), [network()])
    return pair, cross_entropy(), x


def interleaved(x):
    model = kc.models.InterleavedTraining(network(), penalty_split=0.25, seed=0)
    return model, kc.losses.MDCA(from_logits=True), x


def with_history(x):
    model = kc.models.SampleHistoryModel(network(), num_samples=len(x))
    loss = kc.losses.CRL(from_logits=True)
    return model, loss, kc.add_sample_index(x)


@pytest.mark.parametrize("make", [plain, mutual, interleaved, with_history])
def test_labels_and_weights_in_a_list_of_one(make):
    losses = []
    for y, weight in ((Y, W), ([Y], [W]), ([Y], W)):
        keras.utils.set_random_seed(0)
        model, loss, x = make(X)
        metric = kc.metrics.BrierScore(from_logits=True)
        model.compile("sgd", loss, weighted_metrics=[metric])
        fitted = model.fit(
            x, y, sample_weight=weight, batch_size=8, shuffle=False, verbose=0
        )
        losses.append(
            [fitted.history[key][0] for key in ("loss", "brier_score")]
        )
    assert losses[0] == losses[1] == losses[2]


def test_batches_of_tuples_of_one():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, number):
            rows = slice(8 * number, 8 * number + 8)
            return (X[rows],), (Y[rows],), (W[rows],)

    losses = []
    for data in ((X, Y, W), (Batches(),)):
        keras.utils.set_random_seed(0)
        model, loss, _ = plain(X)
        model.compile("sgd", loss)
        x, y, weight = (*data, None, None)[:3]
        kwargs = {} if y is None else {"batch_size": 8}
        fitted = model.fit(
            x, y, sample_weight=weight, shuffle=False, verbose=0, **kwargs
        )
        losses.append(fitted.history["loss"])
    assert losses[0] == losses[1]
