import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_calib as kc
from tests.calibration.networks import KERNEL
from tests.calibration.networks import Affine
from tests.calibration.networks import Subclassed
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional
from tests.helpers import to_numpy

MATRIX = [[1.5, 0.1, 0.0], [0.0, 0.8, -0.2], [0.3, 0.0, 1.1]]


def heads():
    nested = keras.Sequential([keras.Input((8,)), dense("softmax")])
    return {
        "logits": functional(dense()),
        "fused softmax": functional(dense("softmax")),
        "softmax layer": functional(dense(), layers.Softmax()),
        "softmax operation": functional(dense(), ops.softmax),
        "cast": functional(dense(), layers.Activation("linear")),
        "sequential": keras.Sequential([keras.Input((8,)), dense("softmax")]),
        "nested": functional(nested),
        "nested, softmax outside": functional(
            keras.Sequential([keras.Input((8,)), dense()]), layers.Softmax()
        ),
    }


@pytest.mark.parametrize("kind", heads())
@pytest.mark.parametrize("method", ["temperature", "any affine map"])
def test_fusing_equals_the_layer(kind, method):
    if method != "temperature":
        method = Affine(MATRIX)
    model = built(heads()[kind])
    outputs = to_numpy(model(X))
    # What the map does is tested here, not whether it is a good one.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras_calib.calibration._fit.is_worse", lambda *_: False)
        fused = kc.calibrate(model, X, Y, method=method, fuse=True, verbose=0)
        if not isinstance(method, str):
            method = Affine(MATRIX)
        whole = kc.calibrate(model, X, Y, method=method, verbose=0)
    np.testing.assert_allclose(
        fused.predict(X, verbose=0),
        whole.predict(X, verbose=0),
        rtol=2e-5,
        atol=1e-6,
    )
    np.testing.assert_array_equal(to_numpy(model(X)), outputs)
    for layer in fused._flatten_layers():
        assert not type(layer).__module__.startswith("keras_calib")
    assert (
        kc.calibration_record(fused)["nll_after"]
        == kc.calibration_record(whole)["nll_after"]
    )


def test_convolutional_head():
    inputs = keras.Input((5, 2, 8))
    head = layers.Conv2D(3, 1, activation="softmax")
    model = keras.Model(inputs, head(inputs))
    head.set_weights([KERNEL[None, None], np.ones(3)])
    x, y = X.reshape(30, 5, 2, 8), Y.reshape(30, 5, 2)
    fused = kc.calibrate(model, x, y, fuse=True, verbose=0)
    whole = kc.calibrate(model, x, y, verbose=0)
    np.testing.assert_allclose(
        fused.predict(x, verbose=0), whole.predict(x, verbose=0), atol=1e-6
    )


def test_convolutional_head_of_groups():
    inputs = keras.Input((5, 2, 8))
    head = layers.Conv2D(4, 1, groups=2)
    model = keras.Model(inputs, head(inputs))
    kernel = np.concatenate([KERNEL[:4, :2], KERNEL[4:, 1:]], axis=1)
    head.set_weights([kernel[None, None], np.ones(4)])
    x, y = X.reshape(30, 5, 2, 8), Y.reshape(30, 5, 2)
    fused = kc.calibrate(
        model, x, y, method="matrix", fuse=True, guard=False, verbose=0
    )
    loss = fused.evaluate(x, y, verbose=0)
    loss = loss[0] if isinstance(loss, list) else loss
    record = kc.calibration_record(fused)
    assert loss == pytest.approx(record["nll_after"], rel=1e-4)


def test_one_sigmoid_unit():
    model = functional(layers.Dense(1, "sigmoid"))
    model.layers[-1].set_weights([KERNEL[:, :1], np.array([0.5])])
    y = (Y > 0).astype("int32")
    fused = kc.calibrate(model, X, y, fuse=True, verbose=0)
    whole = kc.calibrate(model, X, y, verbose=0)
    np.testing.assert_allclose(
        fused.predict(X, verbose=0), whole.predict(X, verbose=0), atol=1e-6
    )


LOAD = """
import sys
sys.modules["keras_calib"] = None  # an import would fail
import keras, numpy
model = keras.saving.load_model("fused.keras", safe_mode=True)
numpy.save("loaded.npy", model.predict(numpy.load("x.npy"), verbose=0))
"""


def test_the_file_needs_nothing_but_keras(tmp_path):
    model = built(functional(dense("softmax")))
    fused = kc.calibrate(model, X, Y, fuse=True, verbose=0)
    fused.save(tmp_path / "fused.keras")
    np.save(tmp_path / "x.npy", X)
    subprocess.run([sys.executable, "-c", LOAD], cwd=tmp_path, check=True)
    np.testing.assert_array_equal(
        np.load(tmp_path / "loaded.npy"), fused.predict(X, verbose=0)
    )


def average():
    inputs = keras.Input((8,))
    return keras.Model(inputs, layers.Average()([dense()(inputs)] * 2))


def quantized():
    model = built(functional(dense("softmax")))
    model.quantize("int8")
    return model


class NotAffine(Affine):
    as_affine = kc.layers.CalibrationLayer.as_affine


REFUSED = {
    "no dense layer": (lambda: built(average()), {}, "come from Average"),
    "quantized": (quantized, {}, "quantized"),
    "subclassed": (lambda: built(Subclassed()), {}, "Functional or Sequential"),
    "map": (
        lambda: built(functional(dense())),
        {"method": NotAffine()},
        "not affine",
    ),
    "probabilities": (
        lambda: built(functional(dense())),
        {"from_logits": False},
        "needs the logits",
    ),
    "another activation": (
        lambda: built(functional(dense("relu"))),
        {},
        "come from Dense",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_fused_is_refused(case):
    make, arguments, message = REFUSED[case]
    model = make()
    with pytest.raises(ValueError, match=message):
        kc.calibrate(model, X, Y, fuse=True, verbose=0, **arguments)


def test_a_head_that_is_used_twice_is_copied_for_its_last_call():
    inputs = keras.Input((6,))
    shared = keras.layers.Dense(6, "softmax")
    outputs = shared(keras.layers.Rescaling(5.0)(shared(inputs)))
    model = keras.Model(inputs, outputs)
    x = np.random.default_rng(0).normal(size=(300, 6)).astype("float32")
    y = np.arange(300) % 6
    plain = kc.calibrate(model, x, y, verbose=0)
    fused = kc.calibrate(model, x, y, verbose=0, fuse=True)
    np.testing.assert_allclose(
        fused.predict(x, verbose=0), plain.predict(x, verbose=0), atol=1e-6
    )
