"""Exported models of several networks, and around one, predict the same."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_calib as kc
from tests.helpers import to_numpy

BACKEND = keras.backend.backend()
X = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
Y = np.arange(12) % 3


def network(seed=0, rate=0.0):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8, "relu"),
            layers.Dropout(rate),
            layers.Dense(3),
        ]
    )


class Subclassed(keras.Model):
    def __init__(self, rate=0.0):
        super().__init__()
        self.dropout = layers.Dropout(rate)
        self.dense = layers.Dense(3)

    def call(self, x, training=None):
        return self.dense(self.dropout(x, training=training))


def fitted(model, loss, x=X):
    model.compile("sgd", loss)
    model.fit(x, Y, verbose=0)
    return model


def ensemble():
    return kc.models.DeepEnsemble([network(0), network(1)])


def interleaved(inner=None):
    loss = kc.losses.MDCA(from_logits=True)
    inner = network() if inner is None else inner
    return fitted(kc.models.InterleavedTraining(inner), loss)


def with_history():
    model = kc.models.SampleHistoryModel(network(), num_samples=len(X))
    loss = kc.losses.CRL(weight=1.0, from_logits=True)
    return fitted(model, loss, kc.add_sample_index(X))


def served(model, folder):
    """A function that predicts from an exported file."""
    if BACKEND == "torch":
        import torch

        path = folder / "model.pt2"
        model.export(path, format="torch", verbose=False)
        program = torch.export.load(path).module()

        def run(x):
            # As Keras 3.15 exports it, for one sample at a time.
            rows = [program(torch.tensor(x[i : i + 1])) for i in range(len(x))]
            return torch.cat(rows).numpy(force=True)

        return run
    tf = pytest.importorskip("tensorflow")
    model.export(folder / "saved", verbose=False)
    loaded = tf.saved_model.load(folder / "saved")
    return lambda x: loaded.serve(x).numpy()


EXACT = {
    "ensemble": ensemble,
    "ensemble of subclassed": lambda: kc.models.DeepEnsemble(
        [Subclassed(), Subclassed()], from_logits=True
    ),
    "ensemble of ensembles": lambda: kc.models.DeepEnsemble(
        [ensemble(), kc.models.DeepEnsemble([network(2)])]
    ),
    "interleaved": interleaved,
    "interleaved subclassed": lambda: interleaved(Subclassed()),
    "history": with_history,
}


@pytest.mark.parametrize("name", EXACT)
def test_an_exported_model_predicts_the_same(name, tmp_path):
    model = EXACT[name]()
    expected = to_numpy(model(X))
    found = served(model, tmp_path)(X)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_an_ensemble_from_a_file_is_exported(tmp_path):
    ensemble().save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    found = served(model, tmp_path)(X)
    np.testing.assert_allclose(found, to_numpy(ensemble()(X)), atol=1e-6)


@pytest.mark.backends("tensorflow", reason="a signature of TensorFlow")
def test_an_ensemble_is_exported_with_the_signature_that_is_passed(tmp_path):
    tf = pytest.importorskip("tensorflow")
    signature = [keras.InputSpec(dtype="float32", shape=(2, X.shape[1]))]
    model = ensemble()
    model.export(tmp_path / "two", verbose=False, input_signature=signature)
    loaded = tf.saved_model.load(tmp_path / "two")
    expected = to_numpy(model(X[:2]))
    np.testing.assert_allclose(loaded.serve(X[:2]), expected, atol=1e-6)
    with pytest.raises((TypeError, ValueError)):
        loaded.serve(X[:3])


def test_exported_inputs_have_the_type_of_the_networks(tmp_path):
    members = []
    for seed in range(2):
        keras.utils.set_random_seed(seed)
        members.append(
            keras.Sequential(
                [
                    keras.Input((4,), dtype="int32"),
                    layers.Embedding(5, 8),
                    layers.GlobalAveragePooling1D(),
                    layers.Dense(3),
                ]
            )
        )
    model = kc.models.DeepEnsemble(members)
    tokens = np.array([[1, 2, 3, 0], [4, 0, 0, 0]], "int32")
    found = served(model, tmp_path)(tokens)
    np.testing.assert_allclose(found, to_numpy(model(tokens)), atol=1e-6)


@pytest.mark.parametrize("kind", ["functional", "subclassed"])
def test_exported_dropout_draws_new_masks_in_each_call(kind, tmp_path):
    inner = network(rate=0.5) if kind == "functional" else Subclassed(0.5)
    model = kc.models.MonteCarloDropout(inner, num_masks=400, from_logits=True)
    expected = to_numpy(model(X[:2]))
    run = served(model, tmp_path)
    first, second = run(X[:2]), run(X[:2])
    assert np.abs(first - second).max() > 0
    # Means of 400 probabilities: standard errors below 0.5 / sqrt(400).
    np.testing.assert_allclose(first, expected, atol=0.12)
    np.testing.assert_allclose(second, expected, atol=0.12)


@pytest.mark.parametrize("format", ["onnx", "openvino", "litert"])
def test_formats_that_lose_the_masks_are_refused(format, tmp_path):
    sampled = kc.models.MonteCarloDropout(network(rate=0.5), num_masks=2)
    calibrated = kc.calibrate(sampled, X, Y, verbose=0)
    for model in (sampled, calibrated, kc.models.DeepEnsemble([sampled])):
        model(X)
        with pytest.raises(ValueError, match="tf_saved_model and torch"):
            model.export(tmp_path / "model", format=format)
