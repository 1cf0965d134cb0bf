"""Layers that networks share are shared again in a model from a file."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_calib as kc

X = np.random.default_rng(0).normal(size=(24, 5)).astype("float32")


def adapted():
    layer = layers.Normalization()
    layer.adapt(X)
    return layer


def frozen_base():
    inputs = keras.Input((5,))
    base = keras.Model(inputs, layers.Dense(4)(inputs), name="base")
    base.trainable = False
    return base


SHARED = {
    "with state": adapted,
    "without variables": lambda: layers.Rescaling(2.0),
    "frozen layer": lambda: layers.Dense(4, trainable=False),
    "frozen base": frozen_base,
}
MODELS = {
    "ensemble": kc.models.DeepEnsemble,
    "pair": lambda networks: kc.models.DiffDML(networks[0], networks[1:]),
    "calibrated": lambda networks: kc.calibrate(
        kc.models.DeepEnsemble(networks),
        X,
        np.arange(len(X)) % 3,
        guard=False,
        verbose=0,
    ),
}


def networks(shared, number):
    def network(i):
        inputs = keras.Input((5,))
        outputs = layers.Dense(3, name=f"head_{i}")(shared(inputs))
        return keras.Model(inputs, outputs, name=f"network_{i}")

    return [network(i) for i in range(number)]


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.filterwarnings("ignore:The temperature was set")
def test_a_file_of_networks_that_share_a_layer(kind, shared, number, tmp_path):
    model = MODELS[kind](networks(SHARED[shared](), number))
    expected = model.predict(X, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(again.predict(X, verbose=0), expected)
    # Shared, and not copied.
    assert len(again.weights) == len(model.weights)


def test_an_ensemble_from_its_config():
    model = kc.models.DeepEnsemble(
        networks(layers.Dense(4, trainable=False), 3)
    )
    again = kc.models.DeepEnsemble.from_config(model.get_config())
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(
        again.predict(X, verbose=0), model.predict(X, verbose=0)
    )


def test_a_layer_shared_deeper_inside_is_refused_before_saving(tmp_path):
    shared = adapted()

    def network(i):
        inner = keras.Sequential([keras.Input((5,)), shared], name=f"inner_{i}")
        return keras.Sequential(
            [keras.Input((5,)), inner, layers.Dense(3)], name=f"network_{i}"
        )

    model = kc.models.DeepEnsemble([network(0), network(1)])
    with pytest.raises(ValueError, match="Save each network"):
        model.save(tmp_path / "model.keras")


@pytest.mark.parametrize("order", [(0, 0, 1), (0, 1, 0), (1, 0, 0)])
def test_a_layer_that_one_network_has_deeper_is_refused(order, tmp_path):
    shared = layers.Dense(4, trainable=False)
    inputs = keras.Input((5,))
    inner = keras.Model(inputs, shared(inputs), name="inner")
    base = shared, inner
    each = [networks(base[i], 3)[place] for place, i in enumerate(order)]
    model = kc.models.DeepEnsemble(each)
    with pytest.raises(ValueError, match="Save each network"):
        model.save(tmp_path / "model.keras")
