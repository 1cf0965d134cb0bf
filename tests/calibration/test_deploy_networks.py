"""Networks of every kind, calibrated, in files served without this package."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_calib as kc
from tests.calibration.serving import NEEDED
from tests.calibration.serving import check_served
from tests.calibration.serving import require_packages

BACKEND = keras.backend.backend()
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(40, 8, 8, 4)).astype("float32")
STEPS = RNG.normal(size=(40, 6, 4)).astype("float32")
TOKENS = RNG.integers(1, 20, size=(40, 6)).astype("int32")
LENGTHS = 2 + np.arange(40) % 5
# The rest of each sequence is masked.
LEFT = np.arange(6) < LENGTHS[:, None]
WIDE = keras.initializers.RandomNormal(stddev=3.0, seed=1)


def scores(activation="softmax"):
    return layers.Dense(3, activation, kernel_initializer=WIDE)


def network(x, *stages, shape=None):
    shape = shape or x.shape[1:]
    tensor = inputs = keras.Input(shape, dtype=str(x.dtype))
    for stage in stages:
        tensor = stage(tensor)
    return keras.Model(inputs, tensor)


def convolutional():
    return network(
        IMAGES,
        layers.Conv2D(6, 3, padding="same"),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.SeparableConv2D(6, 3),
        layers.GlobalAveragePooling2D(),
        scores(),
    )


def of_pixels(size=8):
    stages = layers.Conv2D(6, 3, padding="same", activation="relu"), scores()
    return network(IMAGES, *stages, shape=(size, size, 4))


class Subclassed(keras.Model):
    """A convolution, and a recurrent layer over its rows of pixels."""

    def __init__(self):
        super().__init__()
        self.convolution = layers.Conv2D(6, 3)
        self.rows = layers.Reshape((36, 6))
        self.recurrent = layers.LSTM(6)
        self.scores = scores()

    def call(self, images):
        rows = self.rows(self.convolution(images))
        return self.scores(self.recurrent(rows))


def of_two_outputs():
    inputs = keras.Input(IMAGES.shape[1:])
    pooled = layers.GlobalAveragePooling2D()(inputs)
    outputs = {
        "kind": layers.Dense(3, "softmax", kernel_initializer=WIDE)(pooled),
        "other": layers.Dense(2)(pooled),
    }
    return keras.Model(inputs, outputs)


NETWORKS = {
    "convolutional": (convolutional, IMAGES),
    "of_pixels": (of_pixels, IMAGES),
    "local": (of_pixels, IMAGES),
    "local_of_any_size": (lambda: of_pixels(None), IMAGES),
    "lstm": (lambda: network(STEPS, layers.LSTM(6), scores()), STEPS),
    "unrolled": (
        lambda: network(STEPS, layers.LSTM(6, unroll=True), scores()),
        STEPS,
    ),
    "masked_gru": (
        lambda: network(STEPS, layers.Masking(), layers.GRU(6), scores()),
        STEPS * LEFT[..., None],
    ),
    "embedding": (
        lambda: network(
            TOKENS,
            layers.Embedding(20, 5, mask_zero=True),
            layers.Bidirectional(layers.LSTM(6)),
            scores(),
        ),
        TOKENS * LEFT,
    ),
    "of_steps": (
        lambda: network(
            STEPS, layers.SimpleRNN(6, return_sequences=True), scores()
        ),
        STEPS,
    ),
    "subclassed": (Subclassed, IMAGES),
    "heads_of_subclassed": (Subclassed, IMAGES),
    "two_outputs": (of_two_outputs, IMAGES),
    "ensemble": (
        lambda: kc.models.DeepEnsemble([of_pixels(), of_pixels()]),
        IMAGES,
    ),
}
RECURRENT = ("lstm", "masked_gru", "embedding", "of_steps", "subclassed")


def calibrated(name):
    """A calibrated network, or one with a head of its own; and its inputs."""
    make, x = NETWORKS[name]
    model = make()
    found = model.predict(x, verbose=0)
    p = found["kind"] if name == "two_outputs" else found
    labels = (
        np.log(p) / 2 + np.random.default_rng(1).gumbel(size=p.shape)
    ).argmax(-1)
    options = {"guard": False, "verbose": 0}
    if name == "two_outputs":
        options["output_name"] = "kind"
    if name.startswith("local"):
        options["method"] = kc.layers.LocalTemperatureScaling(epochs=2)
    if name.endswith("subclassed"):
        options["from_logits"] = False
    if not name.startswith("heads"):
        return kc.calibrate(model, x, labels, **options), x
    inner = kc.calibrate(model, x, labels, output="logits", **options)
    rows = inner.predict(x, verbose=0), labels
    sets = kc.layers.ConformalSets(coverage=0.9).adapt(*rows)
    accepted = kc.layers.RiskThreshold(target_risk=0.4).adapt(*rows)
    inputs = keras.Input(x.shape[1:])
    logits = inner(inputs)
    outputs = {
        "probabilities": layers.Softmax()(logits),
        "sets": sets(logits),
        "accepted": accepted(logits),
    }
    return keras.Model(inputs, outputs), x


def cannot(format, name):
    """Whether a converter cannot; the README has the reasons."""
    if BACKEND == "tensorflow" and format == "openvino":
        return name in RECURRENT
    if BACKEND == "tensorflow" and format == "litert":
        return name in (*RECURRENT, "heads_of_subclassed")
    if BACKEND == "torch" and format == "openvino":
        # A traced model of torch may not return a dictionary.
        return name in ("two_outputs", "heads_of_subclassed")
    if (BACKEND, format) == ("jax", "onnx"):
        return name in ("convolutional", "local_of_any_size", "embedding")
    if (BACKEND, format) == ("torch", "litert"):
        return name == "embedding"
    return False


def signature_of(format, name, x):
    if (BACKEND, format) == ("torch", "litert"):
        return x.shape
    if BACKEND == "torch" and name == "local_of_any_size":
        return (None, *x.shape[1:])  # Keras would take images of one pixel.
    return None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", NEEDED)
def test_files_of_networks_are_served_without_keras(format, request, tmp_path):
    require_packages(format)
    names = [name for name in NETWORKS if not cannot(format, name)]
    if request.config.getoption("share"):
        names = names[::3]

    def models():
        for name in names:
            keras.utils.set_random_seed(0)
            model, x = calibrated(name)
            yield name, model, x, signature_of(format, name, x)

    assert check_served(models(), format, tmp_path) == len(names) > 2
