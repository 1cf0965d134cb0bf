"""A temperature per pixel: the formula, the fit, and what it never does."""

import math

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.layers import _local_fit
from keras_calib.solvers.temperature import fit_temperature
from tests.helpers import to_numpy
from tests.layers.generated import hashed


def convolve(x, kernel, bias):
    """A 5 x 5 convolution of `(height, width, channels)`, dilation 2."""
    height, width, _ = x.shape
    padded = np.pad(x, ((4, 4), (4, 4), (0, 0)), mode="reflect")
    out = np.full((height, width), bias)
    for i in range(5):
        for j in range(5):
            part = padded[2 * i : 2 * i + height, 2 * j : 2 * j + width]
            out += part @ kernel[i, j]
    return out


def mix(z, image, kernels, biases):
    """The paper's tree of gates, in float64."""
    t = [1 + convolve(z, kernels[i], biases[i]) for i in range(4)]
    g = [
        1 / (1 + np.exp(-convolve(z, kernels[i], biases[i])))
        for i in range(4, 8)
    ]
    left = g[0] * t[0] + (1 - g[0]) * t[1]
    right = g[1] * t[2] + (1 - g[1]) * t[3]
    inner = g[2] * left + (1 - g[2]) * right
    of_image = 1 + convolve(image, kernels[8], biases[8])
    return g[3] * inner + (1 - g[3]) * of_image


def example():
    z = 2 * (2 * hashed(192, 11).reshape(8, 8, 3) - 1)
    image = hashed(192, 12).reshape(8, 8, 3)
    kernels = [
        0.1 * (2 * hashed(75, 20 + i) - 1).reshape(5, 5, 3) for i in range(9)
    ]
    return z, image, kernels, 0.1 * (2 * hashed(9, 30) - 1)


def set_weights(layer, kernels, biases):
    layer.kernel.assign(np.stack(kernels[:8], axis=-1))
    layer.bias.assign(biases[:8])
    layer.image_kernel.assign(kernels[8][..., None])
    layer.image_bias.assign(biases[8:])


def temperatures(layer, image, z):
    found = layer.temperatures(
        ops.array(image[None], "float32"), ops.array(z[None], "float32")
    )
    return to_numpy(found)[0]


def test_the_formula_of_the_paper():
    z, image, kernels, biases = example()
    expected = mix(z, image, kernels, biases)
    # The released class: relu(mix + 1) + 1e-8.
    assert expected[0, 0] + 1 + 1e-8 == pytest.approx(1.87240049286, abs=1e-10)
    assert expected[3, 4] + 1 + 1e-8 == pytest.approx(2.0540327525, abs=1e-9)
    layer = kc.layers.LocalTemperatureScaling(normalize_logits=None)
    layer.build([(None, 8, 8, 3), (None, 8, 8, 3)])
    set_weights(layer, kernels, biases)
    found = temperatures(layer, image, z)
    assert found[0, 0] == pytest.approx(0.921302755825, abs=1e-5)
    assert found[3, 4] == pytest.approx(1.03447327833, abs=1e-5)
    assert found.mean() == pytest.approx(1.00285220746, abs=1e-5)
    softplus = np.logaddexp(0, expected - 1 + math.log(math.expm1(0.999)))
    np.testing.assert_allclose(found, softplus + 1e-3, atol=1e-5)
    # 12 classes, 3 channels: 2484 numbers.
    layer = kc.layers.LocalTemperatureScaling()
    layer.build([(None, 8, 8, 3), (None, 8, 8, 12)])
    assert sum(np.prod(w.shape) for w in layer.trainable_weights) == 2484


def test_an_image_unlike_all_others_keeps_every_class_possible():
    z, image, kernels, biases = example()
    layer = kc.layers.LocalTemperatureScaling(normalize_logits=None)
    layer.build([(None, 8, 8, 3), (None, 8, 8, 3)])
    set_weights(layer, kernels, biases - 30)
    np.testing.assert_allclose(temperatures(layer, image, z), 0.1, rtol=1e-6)


def test_no_images_give_no_logits():
    layer = kc.layers.LocalTemperatureScaling()
    shape = (0, 8, 8, 3)
    empty = np.zeros(shape, "float32")
    assert tuple(layer([empty, empty]).shape) == shape


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("size", [8, None])
@pytest.mark.backends("tensorflow", reason="its graphs")
def test_a_graph_of_any_number_of_images_takes_none(jit_compile, size):
    # Its convolutions with holes gave no images the shape of their inputs.
    import tensorflow as tf

    z, image, kernels, biases = example()
    layer = kc.layers.LocalTemperatureScaling()
    layer.build([(None, 8, 8, 3), (None, 8, 8, 3)])
    set_weights(layer, kernels, biases)
    signature = [[tf.TensorSpec((None, size, size, 3))] * 2]
    function = tf.function(layer, signature, jit_compile=jit_compile)
    given = [np.stack([part] * 2).astype("float32") for part in (image, z)]
    np.testing.assert_allclose(function(given), layer(given), atol=1e-5)
    found = function([part[:0] for part in given])
    assert found.shape == (0, 8, 8, 3)


@pytest.mark.parametrize("size", [4, 1])
def test_images_that_are_too_small_are_refused(size):
    # The layer is built for images of any size: the backend would refuse them.
    layer = kc.layers.LocalTemperatureScaling()
    layer.build([(None, None, None, 3), (None, None, None, 3)])
    small = np.zeros((2, size, 8, 3), "float32")
    with pytest.raises(ValueError, match="at least 5 x 5 pixels"):
        layer([small, small])
    whole = np.zeros((2, 8, 8, 3), "float32")
    with pytest.raises(ValueError, match="of one size"):
        layer([whole, whole[:, :7]])


def test_logits_are_taken_without_their_mean():
    z, image, kernels, biases = example()
    layer = kc.layers.LocalTemperatureScaling()
    layer.build([(None, 8, 8, 3), (None, 8, 8, 3)])
    set_weights(layer, kernels, biases)
    found = temperatures(layer, image, z)
    centered = z - z.mean(-1, keepdims=True)
    expected = mix(centered, image, kernels, biases) - 1
    expected = np.logaddexp(0, expected + math.log(math.expm1(0.999))) + 1e-3
    np.testing.assert_allclose(found, expected, atol=1e-5)
    shift = 30 * hashed(64, 40).reshape(8, 8, 1)
    np.testing.assert_allclose(
        temperatures(layer, image, z + shift), found, atol=1e-4
    )
    # A class that is ruled out changes no other number.
    ruled_out = np.concatenate([z, np.full((8, 8, 1), -np.inf)], axis=-1)
    layer = kc.layers.LocalTemperatureScaling()
    layer.build([(None, 8, 8, 3), (None, 8, 8, 4)])
    kernels = [np.pad(k, ((0, 0), (0, 0), (0, 1))) for k in kernels[:8]] + [
        kernels[8]
    ]
    set_weights(layer, kernels, biases)
    np.testing.assert_allclose(
        temperatures(layer, image, ruled_out), found, atol=1e-5
    )


def images(count=20, size=12, seed=0, num_classes=4):
    """Overconfident where the image is bright, sharp where it is dark."""
    rng = np.random.default_rng(seed)
    bright = rng.integers(2, size=(count, 1, 1, 1))
    x = 200.0 * bright + 20 * rng.normal(size=(count, size, size, 2))
    logits = 3 * rng.normal(size=(count, size, size, num_classes))
    noise = rng.gumbel(size=logits.shape)
    labels = (logits / np.where(bright, 4.0, 1.0) + noise).argmax(-1)
    return x.astype("float32"), logits.astype("float32"), labels


def small(**kwargs):
    return kc.layers.LocalTemperatureScaling(**{"epochs": 12, **kwargs})


def nll(logits, labels):
    z = to_numpy(logits).astype("float64")
    log_p = z - np.logaddexp.reduce(z, axis=-1)[..., None]
    return -np.take_along_axis(log_p, labels[..., None], -1)[..., 0].mean()


def test_the_fit_finds_where_the_network_is_overconfident():
    x, logits, labels = images(60, size=8)
    layer = small().adapt([x, logits], labels)
    record = layer.record
    assert record["kept"] == "local"
    plain = fit_temperature(logits.reshape(-1, 4), labels.reshape(-1))
    assert record["temperature"] == pytest.approx(plain.temperature, rel=1e-5)
    assert record["nll_after"] < plain.nll_after - 0.02
    assert record["held_out_nll"] < record["held_out_nll_temperature"] - 0.02
    assert record["num_images"] == 60
    assert record["num_held_out_images"] == 12
    # What the record says is what the layer does.
    assert nll(layer([x, logits]), labels) == pytest.approx(
        record["nll_after"], abs=1e-5
    )
    # On images that it never saw, too.
    x, logits, labels = images(60, seed=1, size=8)
    found = to_numpy(layer([x, logits]))
    tempered = logits / plain.temperature
    assert nll(found, labels) < nll(tempered, labels) - 0.02
    np.testing.assert_array_equal(found.argmax(-1), logits.argmax(-1))
    t = to_numpy(layer.temperatures(ops.array(x), ops.array(logits)))
    bright = x.mean((1, 2, 3)) > 100
    assert t[bright].mean() > 2 * t[~bright].mean()


def test_groups_are_held_out_as_a_whole():
    x, logits, labels = images(12, size=8)
    group = np.arange(12) % 6
    rows = _local_fit.Maps(x, logits, labels, np.ones(labels.shape), group)
    units = _local_fit._units(rows, seed=0)
    assert sorted(map(tuple, units)) == [(i, i + 6) for i in range(6)]
    layer = small(epochs=1).adapt([x, logits], labels, groups=group)
    assert layer.record["num_groups"] == 6
    assert layer.record["num_held_out_images"] == 4
    # A group for each image is no group at all.
    one = small(epochs=2).adapt([x, logits], labels, groups=np.arange(12))
    none = small(epochs=2).adapt([x, logits], labels)
    assert one.record == {**none.record, "num_groups": 12}
    few = small(epochs=1).adapt([x, logits], labels, groups=group // 2)
    assert few.record["kept"] == "temperature"
    assert few.record["reason"] == "fewer than 5 groups"


def test_standard_error_draws_groups_as_a_whole():
    # Copies of an image tell nothing new.
    rng = np.random.default_rng(0)
    difference, weights = rng.normal(size=8), rng.uniform(1, 2, size=8)
    alone = _local_fit._standard_error(difference, weights, np.arange(8))
    copies = _local_fit._standard_error(
        np.tile(difference, 3), np.tile(weights, 3), np.tile(np.arange(8), 3)
    )
    assert copies == pytest.approx(alone, rel=1e-12)
    # By hand: deviations from the mean 2 are -1 and 1.
    found = _local_fit._standard_error(
        np.array([1.0, 3.0]), np.ones(2), np.array([5, 9])
    )
    assert found == pytest.approx(np.sqrt(2 / 1 * 2) / 2)


def test_the_same_seed_gives_the_same_layer():
    x, logits, labels = images(8, size=8)
    first, again = (
        small(epochs=2).adapt([x, logits], labels) for _ in range(2)
    )
    assert first.record == again.record
    for a, b in zip(first.weights, again.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


@pytest.mark.parametrize("count", [4, 12])
def test_without_a_gain_it_is_temperature_scaling(count):
    # One temperature is right everywhere; 4 images are too few to tell.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 8, 8, 1)).astype("float32")
    logits = 3 * rng.normal(size=(count, 8, 8, 3)).astype("float32")
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(-1)
    layer = small(epochs=3).adapt([x, logits], labels)
    record = layer.record
    assert record["kept"] == "temperature"
    assert ("fewer than 5" in record["reason"]) == (count == 4)
    plain = fit_temperature(logits.reshape(-1, 3), labels.reshape(-1))
    assert record["nll_after"] == pytest.approx(plain.nll_after, abs=1e-6)
    np.testing.assert_allclose(
        to_numpy(layer([x, logits])), logits / plain.temperature, rtol=1e-5
    )


def test_a_fit_that_diverges_is_temperature_scaling():
    x, logits, labels = images(12, size=8)
    layer = small(learning_rate=1e30).adapt([x, logits], labels)
    record = layer.record
    assert record["kept"] == "temperature"
    assert record["epochs"] < 12
    tempered = logits / record["temperature"]
    np.testing.assert_allclose(
        to_numpy(layer([x, logits])), tempered, rtol=1e-5
    )


def test_a_loss_that_is_no_number_ends_the_fit(monkeypatch):
    x, logits, labels = images(12, size=8)
    nll_of, calls = _local_fit._nll, []

    def broken(losses):
        calls.append(0)
        return nll_of(losses) if len(calls) < 3 else np.nan

    monkeypatch.setattr(_local_fit, "_nll", broken)
    record = small().adapt([x, logits], labels).record
    # The start, one epoch, and the one that failed.
    assert (len(calls), record["epochs"]) == (3, 2)
    assert record["best_epoch"] <= 1


def test_a_gain_on_held_out_images_alone_is_not_enough(monkeypatch):
    x, logits, labels = images(40, size=8)
    of_all, losses = [], _local_fit._losses

    def worse_on_all(layer, model, maps, index):
        found = losses(layer, model, maps, index)
        if len(index) < 40:
            return found
        of_all.append(index)
        return found[0] + 10.0 * found[1], found[1]

    expected = small().adapt([x, logits], labels).record
    assert expected["kept"] == "local"
    monkeypatch.setattr(_local_fit, "_losses", worse_on_all)
    record = small().adapt([x, logits], labels).record
    assert len(of_all) == 1
    assert record["kept"] == "temperature"
    assert record["reason"] == "the NLL of all images is not lower"
    assert record["temperature"] == expected["temperature"]
    tempered = nll(logits / record["temperature"], labels)
    assert record["nll_after"] == pytest.approx(tempered, abs=1e-5)


def test_a_layer_for_other_images_stays_as_it_is():
    x, logits, labels = images(12, size=8)
    layer = small(epochs=1).adapt([x, logits], labels)
    before = layer.record
    with pytest.raises(ValueError, match="built for other images or logits"):
        layer.adapt([x[..., :1], logits], labels)
    assert layer.record == before


def test_void_pixels_and_weights():
    x, logits, labels = images(10, size=8)
    void = labels.copy()
    void[:, :2] = 255
    weight = np.ones(labels.shape)
    weight[:, :2] = 0
    weight[3] = 0
    void[3] = 255
    expected = small(epochs=2).adapt([x, logits], void, ignore_class=255)
    found = small(epochs=2).adapt([x, logits], labels, 1e3 * weight)
    assert found.record["num_images"] == 9
    for key in ("temperature", "nll_after", "held_out_nll"):
        assert found.record[key] == pytest.approx(
            expected.record[key], rel=1e-4
        ), key


def test_one_sigmoid_unit_is_two_classes():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 8, 8, 1)).astype("float32")
    z = 3 * rng.normal(size=(4, 8, 8, 1)).astype("float32")
    labels = (z[..., 0] / 2 + rng.logistic(size=(4, 8, 8)) > 0).astype(int)
    layer = small().adapt([x, z], labels)
    two = np.concatenate([np.zeros_like(z), z], axis=-1).reshape(-1, 2)
    plain = fit_temperature(two, labels.reshape(-1))
    np.testing.assert_allclose(
        to_numpy(layer([x, z])), z / plain.temperature, rtol=1e-4
    )


def test_it_starts_as_the_identity_and_is_saved(tmp_path):
    x, logits, labels = images(4, size=8)
    layer = small(seed=3)
    np.testing.assert_allclose(to_numpy(layer([x, logits])), logits, rtol=1e-6)
    # Held-out images decide, and no rule on the number of samples.
    assert layer.degrees_of_freedom(4) == 1
    layer.adapt([x, logits], labels)
    inputs = [keras.Input((8, 8, 2)), keras.Input((8, 8, 4))]
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_allclose(
        to_numpy(again([x, logits])), to_numpy(model([x, logits])), rtol=1e-6
    )
    assert again.layers[-1].record == layer.record
    assert again.layers[-1].get_config() == layer.get_config()


def test_bad_input_changes_nothing():
    x, logits, labels = images(6, size=8)
    layer = small()
    for arguments, kwargs, message in (
        (([x[:, :4], logits], labels), {}, "one size"),
        (([x[..., 0], logits], labels), {}, "one size"),
        (([x[:2], logits], labels), {}, "as many"),
        (([x, logits[:2]], labels[:2]), {}, "as many"),
        (([x[:, :4, :4], logits[:, :4, :4]], labels), {}, "at least"),
        (([x, logits], labels + 9), {}, "from 9 to 12"),
        (([x, logits], labels), {"objective": "ece"}, "minimizes the NLL"),
        (([x, logits * np.nan], labels), {}, "finite"),
        (([x, logits], 0 * labels), {"ignore_class": 0}, "no calibration"),
    ):
        with pytest.raises(ValueError, match=message):
            layer.adapt(*arguments, **kwargs)
        assert not layer.built
        assert layer.record is None
    for name in ("epochs", "patience", "batch_size"):
        with pytest.raises(ValueError, match=f"`{name}` must be at least 1"):
            small(**{name: 0})
    with pytest.raises(ValueError, match="`learning_rate` must be positive"):
        small(learning_rate=0)
    with pytest.raises(ValueError, match="normalize_logits"):
        small(normalize_logits="log_softmax")


def test_images_may_look_like_probabilities():
    # Shares of red, green and blue; and what a sigmoid returns in a graph.
    x, logits, _ = images(2, size=8)
    shares = np.abs(x) / np.abs(x).sum(axis=-1, keepdims=True)
    layer = small()
    assert layer([shares, logits]).shape == logits.shape
    inputs = keras.Input(x.shape[1:])
    scores = keras.Input(logits.shape[1:])
    image = keras.layers.Activation("sigmoid")(inputs)
    assert layer([image, scores]).shape == (None, *logits.shape[1:])
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    with pytest.raises(ValueError, match="pass the logarithm"):
        layer([x, p])
    with pytest.raises(ValueError, match="takes logits"):
        layer([image, keras.layers.Softmax()(scores)])
