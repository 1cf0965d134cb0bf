"""`kc.calibrate(method="local_temperature")` on segmentation models."""

import itertools
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
from keras import layers

import keras_calib as kc
from keras_calib.calibration import _local
from keras_calib.layers import _local_fit
from keras_calib.solvers.temperature import fit_temperature
from tests.helpers import to_numpy

RNG = np.random.default_rng(0)
KERNEL = 3 * RNG.normal(size=(1, 1, 4, 3)).astype("float32")


def images(count=30, size=8, seed=0):
    """Images of which half are bright; labels are noisier on these."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, size, size, 4)).astype("float32")
    x[..., 3] = rng.integers(2, size=(count, 1, 1))
    z = x @ KERNEL[0, 0]
    noise = rng.gumbel(size=z.shape)
    labels = (z / np.where(x[..., 3:] > 0, 5.0, 1.0) + noise).argmax(-1)
    return x, labels, z


X, Y, Z = images()


def network(activation=None, units=3, size=8):
    inputs = keras.Input((size, size, 4))
    head = layers.Conv2D(units, 1, activation=activation, use_bias=False)
    model = keras.Model(inputs, head(inputs))
    head.kernel.assign(KERNEL[..., :units])
    return model


def local(**kwargs):
    return kc.layers.LocalTemperatureScaling(**{"epochs": 8, **kwargs})


def test_the_calibrated_model_takes_the_image(tmp_path):
    model = network("softmax")
    outputs = model.predict(X, verbose=0)
    calibrated = kc.calibrate(model, X, Y, method=local(), verbose=0)
    record = kc.calibration_record(calibrated)
    plain = fit_temperature(Z.reshape(-1, 3), Y.reshape(-1))
    assert record["kept"] == "local"
    assert record["temperature"] == pytest.approx(plain.temperature, rel=1e-4)
    assert record["nll_before"] == pytest.approx(plain.nll_before, rel=1e-4)
    assert record["nll_after"] < plain.nll_after - 0.02
    assert record["method"] == "LocalTemperatureScaling"
    assert record["num_samples"] == Y.size

    p = calibrated.predict(X, verbose=0)
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-5)
    np.testing.assert_array_equal(p.argmax(-1), outputs.argmax(-1))
    nll = -np.log(np.take_along_axis(p, Y[..., None], -1)).mean()
    assert nll == pytest.approx(record["nll_after"], abs=1e-4)
    loss, _ = calibrated.evaluate(X, Y, verbose=0)
    assert loss == pytest.approx(record["nll_after"], abs=1e-4)
    # On other images, too.
    x, y, z = images(seed=1)
    p = calibrated.predict(x, verbose=0)
    nll = -np.log(np.take_along_axis(p, y[..., None], -1)).mean()
    z = z.reshape(-1, 3) / plain.temperature
    log_p = z - np.logaddexp.reduce(z, axis=-1)[:, None]
    assert nll < -log_p[np.arange(y.size), y.reshape(-1)].mean() - 0.02

    path = tmp_path / "model.keras"
    calibrated.save(path)
    np.savez(tmp_path / "x.npz", x=x, p=p)
    code = f"""
import numpy as np, keras, keras_calib as kc
model = keras.saving.load_model({str(path)!r}, safe_mode=True)
data = np.load({str(tmp_path / "x.npz")!r})
found = model.predict(data["x"], verbose=0)
np.testing.assert_allclose(found, data["p"], atol=1e-6)
assert kc.calibration_record(model)["kept"] == "local"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_by_name_void_labels_and_files(monkeypatch, tmp_path):
    """Few images: temperature scaling is kept, as the record says."""
    monkeypatch.setattr(_local, "SPILL", 1000)
    y = Y[:4].copy()
    y[:, :3] = 255
    model = network("softmax")
    x = X[:4].copy()
    calibrated = kc.calibrate(
        model, x, y, method="local_temperature", ignore_class=255,
        batch_size=3, verbose=0,
    )  # fmt: skip
    record = kc.calibration_record(calibrated)
    ordinary = kc.calibrate(model, x, y, ignore_class=255, verbose=0)
    expected = kc.calibration_record(ordinary)
    assert record["kept"] == "temperature"
    assert record["reason"] == "fewer than 5 images"
    assert record["method"] == "local_temperature"
    for key in ("temperature", "nll_after", "ece_after", "nll_before"):
        assert record[key] == pytest.approx(expected[key], rel=1e-4), key
    for key in ("fingerprint", "num_samples", "logits_source"):
        assert record[key] == expected[key], key
    np.testing.assert_allclose(
        calibrated.predict(x, verbose=0),
        ordinary.predict(x, verbose=0),
        atol=1e-5,
    )
    with pytest.raises(ValueError, match="already been calibrated"):
        kc.calibrate(
            calibrated, x, y, method="local_temperature",
            ignore_class=255, verbose=0,
        )  # fmt: skip


@pytest.mark.filterwarnings("ignore:No final softmax")
def test_probabilities_without_their_logits():
    inputs = keras.Input((8, 8, 4))
    head = layers.Conv2D(3, 1, activation="softmax", use_bias=False)
    same = head(inputs)
    model = keras.Model(inputs, layers.Average()([same, same]))
    head.kernel.assign(KERNEL)
    x, y, z = X[:4], Y[:4], Z[:4]
    calibrated = kc.calibrate(model, x, y, method=local(), verbose=0)
    record = kc.calibration_record(calibrated)
    plain = fit_temperature(z.reshape(-1, 3), y.reshape(-1))
    assert record["logits_source"] == "log of probabilities"
    assert record["temperature"] == pytest.approx(plain.temperature, rel=1e-3)
    nll, _ = calibrated.evaluate(x, y, verbose=0)
    assert nll == pytest.approx(record["nll_after"], abs=1e-4)


def test_batches_of_a_long_fit_are_shown(capsys):
    for verbose, shown in ((1, True), ("auto", False), (0, False)):
        method = local(epochs=1)
        kc.calibrate(network(), X[:10], Y[:10], method=method, verbose=verbose)
        found = capsys.readouterr().out
        assert ("batch of images" in found) == shown


def test_weights_and_one_unit():
    """Pixels of weight 0 do not count, and a generator is read once."""
    weight = np.ones(Y.shape)
    weight[:, 5:] = 0
    y = (Y == 1).astype(int)
    model = network("sigmoid", units=1)
    data = ((X[i : i + 10], y[i : i + 10], weight[i : i + 10])
            for i in range(0, 30, 10))  # fmt: skip
    found = kc.calibrate(model, data, method=local(epochs=1), verbose=0)
    expected = kc.calibrate(model, X, y, weight, verbose=0)
    temperature = kc.calibration_record(expected)["temperature"]
    record = kc.calibration_record(found)
    assert record["temperature"] == pytest.approx(temperature, rel=1e-4)
    assert record["num_samples"] == 30 * 8 * 5
    assert found.predict(X, verbose=0).shape == (30, 8, 8, 1)


def test_a_failed_fit_changes_nothing(monkeypatch):
    layer = local(epochs=1)

    def fail(*arguments):
        raise RuntimeError("no")

    monkeypatch.setattr(_local, "before_and_after_in_blocks", fail)
    model = network()
    before = to_numpy(model(X[:2]))
    with pytest.raises(RuntimeError):
        kc.calibrate(model, X[:4], Y[:4], method=layer, verbose=0)
    assert layer.record is None
    identity = to_numpy(layer([X[:2], Z[:2]]))
    np.testing.assert_allclose(identity, Z[:2], rtol=1e-5)
    np.testing.assert_array_equal(to_numpy(model(X[:2])), before)


def test_groups_of_images_are_held_out_as_a_whole():
    model = network()
    # Three images of each drive, not side by side; one has no label at all.
    drives = np.array([f"drive {i % 10}" for i in range(30)])
    labels = Y.copy()
    labels[4] = 255
    calibrated = kc.calibrate(
        model,
        X,
        labels,
        method=local(epochs=2),
        ignore_class=255,
        groups=drives,
        batch_size=7,
        verbose=0,
    )
    record = kc.calibration_record(calibrated)
    layer = local(epochs=2)
    layer.adapt([X, Z], labels, ignore_class=255, groups=drives)
    assert record["num_groups"] == layer.record["num_groups"] == 10
    assert record["num_images"] == layer.record["num_images"] == 29
    for key in ("num_held_out_images", "held_out_nll_temperature"):
        assert record[key] == pytest.approx(layer.record[key], rel=1e-5)


def test_what_is_refused():
    model = network()
    flat = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    smaller = keras.Sequential(
        [keras.Input((8, 8, 4)), layers.Conv2D(3, 3, strides=2)]
    )
    for arguments, kwargs, message in (
        ((flat, X[:, 0, 0], Y[:, 0, 0]), {}, "from images"),
        ((smaller, X, Y[:, :3, :3]), {}, "at every pixel"),
        ((model, X, Y), {"objective": "ece"}, "minimizes the NLL"),
        ((model, X, Y), {"fuse": True}, "not affine"),
        ((model, X, Y), {"groups": np.arange(29)}, "one id per sample"),
        ((model, X, Y), {"stream": True}, "fits a temperature"),
        ((model, X, 0 * Y), {"ignore_class": 0}, "no calibration sample"),
        ((model, X, np.full((*Y.shape, 3), 1 / 3)), {}, "soft labels"),
    ):
        with pytest.raises(ValueError, match=message):
            kc.calibrate(
                *arguments, method="local_temperature", verbose=0, **kwargs
            )
    with pytest.raises(ValueError, match="one size"):
        kc.calibrate(
            network(size=None),
            [(X, Y), (X[:, :6], Y[:, :6])],
            method="local_temperature",
            verbose=0,
        )


def test_images_of_any_size_after_the_fit():
    """A fully convolutional network stays one."""
    calibrated = kc.calibrate(
        network(size=None), X[:4], Y[:4], method=local(), verbose=0
    )
    x, _, _ = images(2, size=12)
    assert calibrated.predict(x, verbose=0).shape == (2, 12, 12, 3)


def test_inputs_may_be_a_dict_or_a_list_of_one():
    found = []
    for wrap in (lambda x: x, lambda x: {"image": x}, lambda x: [x]):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((8, 8, 3), name="image")
        outputs = keras.layers.Conv2D(3, 1, activation="softmax")(inputs)
        model = keras.Model(wrap(inputs), outputs)
        rng = np.random.default_rng(0)
        x = rng.normal(size=(30, 8, 8, 3)).astype("float32")
        y = rng.integers(0, 3, (30, 8, 8))
        calibrated = kc.calibrate(
            model, wrap(x), y, method="local_temperature", verbose=0
        )
        found.append(calibrated.predict(wrap(x), verbose=0))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-5)


def test_the_time_is_over(monkeypatch):
    """The best epoch that was whole counts; without one, the temperature."""
    clock = itertools.count(1)
    ticking = types.SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr(_local_fit, "time", ticking)
    # Of 30 images 24 are fitted to, in batches of 8: three ticks an epoch.
    maps = _local_fit.Maps(X, Z, Y, np.ones(Y.shape, "float32"))
    layer = local(batch_size=8).adapt_to_maps(maps, deadline=7)
    short = local(batch_size=8, epochs=2).adapt([X, Z], Y)
    assert layer.record["epochs"] == 2
    assert layer.record["stop_reason"] == "max_seconds"
    assert layer.record["nll_after"] == short.record["nll_after"]
    for name in ("kept", "best_epoch", "held_out_nll"):
        assert layer.record[name] == short.record[name]
    monkeypatch.undo()
    found = kc.calibrate(
        network(), X, Y, method=local(), max_seconds=0, verbose=0
    )
    record = kc.calibration_record(found)
    assert (record["kept"], record["reason"]) == ("temperature", "max_seconds")
    assert record["epochs"] == 0
