"""Sparse matrices of SciPy, which `fit` of Keras takes, too."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import small_network

sparse = pytest.importorskip("scipy.sparse")
LOGITS = {"from_logits": True}
RNG = np.random.default_rng(0)
X = RNG.poisson(0.2, size=(48, 64)).astype("float32")
Y = np.arange(48) % 10
W = RNG.uniform(0.5, 2.0, 48).astype("float32")
FORMATS = ["csr_matrix", "csc_array", "coo_matrix"]


def compiled(model, loss):
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


def monitored(x):
    model = compiled(small_network(), kc.losses.FocalLoss(**LOGITS))
    monitor = kc.callbacks.CalibrationMonitor((x, Y, W), **LOGITS)
    return model, model.fit(X, Y, callbacks=[monitor], verbose=0)


def with_targets(x):
    cape = kc.callbacks.EmpiricalTargets(
        x, Y, W, num_classes=10, seed=0, **LOGITS
    )
    model = compiled(small_network(), kc.losses.FocalLoss(**LOGITS))
    return model, model.fit(cape.data, callbacks=[cape], verbose=0)


def pruned(x):
    pruning = kc.callbacks.DataPruning(x, Y, W, every=1, seed=0)
    model = kc.models.SampleHistoryModel(small_network(), num_samples=48)
    model = compiled(model, kc.losses.FocalLoss(**LOGITS))
    return model, model.fit(
        pruning.data, epochs=2, callbacks=[pruning], verbose=0
    )


def interleaved(x):
    model = kc.models.InterleavedTraining(small_network())
    model = compiled(model, kc.losses.MMCE(**LOGITS))
    return model, model.fit(
        x, Y, sample_weight=W, validation_split=0.25, verbose=0
    )


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    "train", [monitored, with_targets, pruned, interleaved]
)
def test_sparse_inputs_count_as_the_array_that_they_are(train, kind):
    found = []
    for x in (X, getattr(sparse, kind)(X)):
        keras.utils.set_random_seed(0)
        model, history = train(x)
        found.append((history.history, model.get_weights()))
    (expected, weights), (logs, others) = found
    assert set(logs) == set(expected)
    for key, values in expected.items():
        assert logs[key] == pytest.approx(values, rel=1e-5), key
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.one_backend
def test_sparse_labels_and_predictions_are_refused():
    rows = sparse.csr_matrix(np.eye(10)[Y])
    with pytest.raises(ValueError, match=r"`.toarray\(\)`.*csr_matrix of sha"):
        kc.callbacks.EmpiricalTargets(X, rows, num_classes=10)
    with pytest.raises(ValueError, match=r"`.toarray\(\)`.*csr_matrix of sha"):
        kc.metrics.calibration_errors(Y, rows)
