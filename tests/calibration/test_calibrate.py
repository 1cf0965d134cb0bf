import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_calib as kc
from keras_calib import _progress
from keras_calib.solvers.temperature import fit_temperature
from tests.calibration.networks import EXPECTED
from tests.calibration.networks import KERNEL
from tests.calibration.networks import LOGITS
from tests.calibration.networks import RNG
from tests.calibration.networks import Subclassed
from tests.calibration.networks import X
from tests.calibration.networks import Y
from tests.calibration.networks import built
from tests.calibration.networks import dense
from tests.calibration.networks import functional
from tests.helpers import to_numpy


def test_fit_of_the_calibrated_model_leaves_the_map():
    network = functional(layers.Dense(4, "relu"), dense("softmax"))
    calibrated = kc.calibrate(network, X, Y, method="vector", verbose=0)
    (scaling,) = (
        each
        for each in calibrated.layers
        if isinstance(each, kc.layers.VectorScaling)
    )
    before = scaling.get_weights(), network.get_weights()
    calibrated.compile("adam", "sparse_categorical_crossentropy")
    calibrated.fit(X, Y, verbose=0)
    for one, other in zip(scaling.get_weights(), before[0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(network.get_weights()[0], before[1][0])


def networks():
    nested = keras.Sequential([keras.Input((8,)), dense("softmax")])
    return {
        "logits": functional(dense()),
        "fused softmax": functional(dense("softmax")),
        "softmax activation": functional(dense(), layers.Activation("softmax")),
        "softmax layer": functional(dense(), layers.Softmax()),
        "softmax operation": functional(dense(), ops.softmax),
        "cast after softmax": functional(
            dense("softmax"), layers.Activation("linear", dtype="float32")
        ),
        "sequential": keras.Sequential([keras.Input((8,)), dense("softmax")]),
        "nested": functional(nested),
        "subclassed logits": Subclassed(),
        "subclassed softmax": Subclassed("softmax"),
        "average of softmaxes": _average(),
    }


def _average():
    inputs = keras.Input((8,))
    twice = [dense("softmax")(inputs), dense("softmax")(inputs)]
    return keras.Model(inputs, layers.Average()(twice))


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:No final softmax")
@pytest.mark.parametrize("kind", networks())
def test_kinds_of_networks(kind, tmp_path):
    model = built(networks()[kind])
    weights = [to_numpy(w).copy() for w in model.weights]
    outputs = to_numpy(model(X))
    calibrated = kc.calibrate(model, X, Y, verbose=0)

    record = kc.calibration_record(calibrated)
    assert record["temperature"] == pytest.approx(EXPECTED, rel=1e-4)
    probabilities = calibrated.predict(X, verbose=0)
    expected = to_numpy(ops.softmax(LOGITS / np.float32(EXPECTED)))
    np.testing.assert_allclose(probabilities, expected, atol=1e-4)
    np.testing.assert_array_equal(probabilities.argmax(-1), outputs.argmax(-1))
    # The model that came in is as it was.
    np.testing.assert_array_equal(to_numpy(model(X)), outputs)
    for weight, before in zip(model.weights, weights, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), before)

    loss, accuracy = calibrated.evaluate(X, Y, verbose=0)
    assert loss == pytest.approx(record["nll_after"], rel=1e-4)
    assert accuracy == pytest.approx((outputs.argmax(-1) == Y).mean())

    calibrated.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(again.predict(X, verbose=0), probabilities)
    assert kc.calibration_record(again) == record


def test_the_record_tells_before_and_after():
    calibrated = kc.calibrate(built(functional(dense())), X, Y, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["method"] == "temperature"
    assert record["objective"] == "nll"
    assert record["num_samples"] == 300
    assert record["num_classes"] == 3
    assert record["nll_after"] < record["nll_before"]
    metric = kc.metrics.ExpectedCalibrationError()
    metric.update_state(Y, calibrated.predict(X, verbose=0))
    assert record["ece_after"] == pytest.approx(
        float(metric.result()), abs=1e-6
    )
    metric = kc.metrics.ExpectedCalibrationError(from_logits=True)
    metric.update_state(Y, LOGITS)
    assert record["ece_before"] == pytest.approx(
        float(metric.result()), abs=1e-6
    )


def test_half_precision_network():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = functional(dense("softmax"))
    finally:
        keras.config.set_dtype_policy("float32")
    calibrated = kc.calibrate(built(model), X, Y, verbose=0)
    record = kc.calibration_record(calibrated)
    # Taken before the softmax: nothing is lost but the digits of float16.
    assert record["temperature"] == pytest.approx(EXPECTED, rel=1e-2)
    assert calibrated.predict(X, verbose=0).dtype == np.float32


def test_one_sigmoid_unit(tmp_path):
    kernel = KERNEL[:, :1] * 2
    logit = X @ kernel
    y = (logit[:, 0] / 2 + RNG.logistic(size=300) > 0).astype("int32")
    two = np.concatenate([np.zeros_like(logit), logit], axis=1)
    expected = fit_temperature(two.astype("float64"), y).temperature
    for activation in ("sigmoid", None):
        model = functional(layers.Dense(1, activation, use_bias=False))
        model.layers[-1].set_weights([kernel])
        calibrated = kc.calibrate(
            model, X, y, verbose=0, from_logits=activation is None or None
        )
        record = kc.calibration_record(calibrated)
        assert record["temperature"] == pytest.approx(expected, rel=1e-4)
        probabilities = calibrated.predict(X, verbose=0)
        np.testing.assert_allclose(
            probabilities, 1 / (1 + np.exp(-logit / expected)), atol=1e-4
        )


class Data(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        part = slice(100 * i, 100 * (i + 1))
        return X[part], Y[part]


def pairs():
    for i in range(3):
        yield X[100 * i : 100 * (i + 1)], Y[100 * i : 100 * (i + 1)]


def sources():
    found = {"PyDataset": Data(), "generator": pairs(), "list": list(pairs())}
    if keras.backend.backend() == "torch":
        import torch

        pair = torch.from_numpy(X), torch.from_numpy(Y)
        found["DataLoader"] = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(*pair), batch_size=64, shuffle=True
        )
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((X, Y))
        found["tf.data"] = data.shuffle(300).batch(64)
        found["endless tf.data"] = data.batch(100).repeat()
    return found


@pytest.mark.parametrize("kind", sources())
def test_kinds_of_data(kind):
    model = built(functional(dense()))
    steps = 3 if kind.startswith("endless") else None
    calibrated = kc.calibrate(model, sources()[kind], steps=steps, verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["num_samples"] == 300
    assert record["temperature"] == pytest.approx(EXPECTED, rel=1e-4)


def test_weights_and_one_hot_labels():
    weights = RNG.integers(0, 3, 300)
    repeated = np.repeat(np.arange(300), weights)
    expected = fit_temperature(LOGITS[repeated], Y[repeated]).temperature
    model = built(functional(dense()))
    for arguments in (
        {"x": X, "y": Y, "sample_weight": weights},
        {"x": X, "y": np.eye(3)[Y], "sample_weight": weights},
        {"x": [(X, Y, weights)]},
    ):
        calibrated = kc.calibrate(model, **arguments, verbose=0)
        record = kc.calibration_record(calibrated)
        assert record["temperature"] == pytest.approx(expected, rel=1e-4)


def test_output_logits():
    model = built(functional(dense("softmax")))
    calibrated = kc.calibrate(model, X, Y, output="logits", verbose=0)
    np.testing.assert_allclose(
        calibrated.predict(X, verbose=0), LOGITS / EXPECTED, rtol=1e-3
    )


def test_segmentation():
    labels = Y.reshape(30, 10).copy()
    labels[:, 9] = 255
    inputs = keras.Input((10, 8))
    head = dense("softmax")
    model = keras.Model(inputs, head(inputs))
    head.set_weights([KERNEL])
    calibrated = kc.calibrate(
        model, X.reshape(30, 10, 8), labels, ignore_class=255, verbose=0
    )
    keep = labels.reshape(-1) != 255
    expected = fit_temperature(LOGITS[keep], Y[keep]).temperature
    record = kc.calibration_record(calibrated)
    assert record["num_samples"] == 270
    assert record["temperature"] == pytest.approx(expected, rel=1e-4)


def test_a_layer_of_ones_own():
    layer = kc.layers.TemperatureScaling(name="mine")
    calibrated = kc.calibrate(
        built(functional(dense())), X, Y, method=layer, verbose=0
    )
    assert calibrated.get_layer("mine") is layer
    assert layer.temperature == pytest.approx(EXPECTED, rel=1e-4)


def test_all_correct_says_so_and_stays_sane():
    model = built(functional(dense()))
    with pytest.warns(UserWarning, match="predicted correctly"):
        calibrated = kc.calibrate(model, X, LOGITS.argmax(-1), verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["stop_reason"] == "all correct"
    assert 0.05 < record["temperature"] <= 1


BAD_INPUT = {
    "method": ({"method": "thermometer"}, "temperature"),
    "output": ({"output": "scores"}, '"logits"'),
    "labels out of range": ({"y": Y + 1}, "from 1 to 3"),
    "lengths": ({"y": Y[:-1]}, "same length"),
    "no labels": ({"y": None}, "data has no labels"),
    "no labels in a dataset": ({"x": [(X,)], "y": None}, "data has no labels"),
    "a pair": ({"x": (X, Y), "y": None}, "`x, y`, not `.x, y.`"),
    "empty dataset": ({"x": [], "y": None}, "empty"),
    "no samples": ({"x": X[:0], "y": Y[:0]}, "empty"),
    "NaN": ({"x": X * np.nan}, "finite"),
    "logits, not probabilities": ({"from_logits": False}, "from_logits=True"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(case):
    arguments, message = BAD_INPUT[case]
    model = built(functional(dense()))
    with pytest.raises(ValueError, match=message):
        kc.calibrate(model, **{"x": X, "y": Y, "verbose": 0, **arguments})


def test_several_outputs():
    inputs = keras.Input((8,))
    model = keras.Model(inputs, [dense()(inputs), dense()(inputs)])
    with pytest.raises(ValueError, match="one output"):
        kc.calibrate(model, X, Y, verbose=0)


@pytest.mark.backends("tensorflow", reason="tf.data")
def test_an_endless_dataset_needs_steps():
    with pytest.raises(ValueError, match="endless"):
        kc.calibrate(built(functional(dense())), sources()["endless tf.data"])


def test_a_model_without_a_map_has_no_record():
    with pytest.raises(ValueError, match="no calibration layer"):
        kc.calibration_record(functional(dense()))


@pytest.mark.parametrize("one_hot", [False, True], ids=["ids", "one-hot"])
def test_evaluate_a_model_of_logits(one_hot):
    labels = np.eye(3)[Y] if one_hot else Y
    calibrated = kc.calibrate(
        built(functional(dense())), X, labels, output="logits", verbose=0
    )
    loss, _ = calibrated.evaluate(X, labels, verbose=0)
    record = kc.calibration_record(calibrated)
    assert loss == pytest.approx(record["nll_after"], rel=1e-4)


def test_labels_in_a_list():
    model = built(functional(dense()))
    calibrated = kc.calibrate(model, X, Y.tolist(), verbose=0)
    record = kc.calibration_record(calibrated)
    assert record["temperature"] == pytest.approx(EXPECTED, rel=1e-4)


@pytest.mark.parametrize("end", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"stream": True},
        {"fuse": True},
        {"guard": False},
        {"method": "matrix"},
        {"method": "auto"},
    ],
    ids=str,
)
def test_one_input_that_is_not_a_number(end, arguments):
    units = 3 if end == "softmax" else 1
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(units, activation=end)]
    )
    x, y = np.array(X), Y % (2 if end == "sigmoid" else 3)
    x[7] = np.nan
    message = "NaN or infinity in 1 of .*, first in row 7"
    with pytest.raises(ValueError, match=message):
        kc.calibrate(model, x, y, verbose=0, **arguments)


def test_images_of_one_dtype_are_kept_together():
    model = keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            keras.layers.Conv2D(3, 1, activation="softmax"),
        ]
    )
    x = np.random.default_rng(0).random((8, 4, 4, 1)).astype("float32")
    y = np.zeros((4, 4, 4), int)
    batches = [(x[:4].astype("uint8"), y), (x[4:], y)]
    with pytest.raises(ValueError, match=r"float32.*uint8"):
        kc.calibrate(model, batches, method="local_temperature", verbose=0)


def test_labels_beside_a_dataset():
    model = built(functional(dense()))
    with pytest.raises(ValueError, match="brings its own labels"):
        kc.calibrate(model, iter([(X, Y)]), Y, verbose=0)
    with pytest.raises(ValueError, match="array with an axis"):
        kc.calibrate(model, [(X[:1], 1)], verbose=0)


class GivesDict(Subclassed):
    """A subclassed model whose output has a name."""

    def call(self, x):
        return {"logits": super().call(x)}


@pytest.mark.parametrize("from_logits", [None, False, True])
def test_a_softmax_of_a_softmax_is_refused(from_logits):
    model = built(functional(dense("softmax"), layers.Softmax()))
    with pytest.raises(ValueError, match="applied twice"):
        kc.calibrate(model, X, Y, from_logits=from_logits, verbose=0)


def test_a_dict_of_outputs_without_a_graph_is_refused():
    for function in (
        lambda: kc.calibrate(GivesDict(), X, Y, verbose=0),
        lambda: kc.adjust_prior(
            GivesDict(), X, source_prior=[0.3, 0.3, 0.4], verbose=0
        ),
    ):
        with pytest.raises(ValueError, match="one tensor of class scores"):
            function()


def test_tensors_and_arrays_in_one_dict():
    number = keras.Input((8,), name="number")
    other = keras.Input((8,), name="other")
    tensor = dense()(layers.Concatenate()([number, other]))
    model = keras.Model({"number": number, "other": other}, tensor)
    mixed = {"number": X, "other": keras.ops.convert_to_tensor(X)}
    plain = {"number": X, "other": X}
    temperatures = [
        kc.calibration_record(kc.calibrate(model, x, Y, verbose=0))[
            "temperature"
        ]
        for x in (mixed, plain)
    ]
    assert temperatures[0] == pytest.approx(temperatures[1], rel=1e-5)


@pytest.mark.one_backend
def test_passes_of_a_long_fit_are_shown(capsys, monkeypatch):
    monkeypatch.setattr(_progress, "PATIENCE", 1e9)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40_000, 8)).astype("float32")
    labels = (x[:, :3] + rng.gumbel(size=(len(x), 3))).argmax(axis=1)
    network = built(functional(dense("softmax")))
    known = {"batch_size": 8192, "method": "vector"}
    for verbose, shown in ((1, True), ("auto", False), (0, False)):
        kc.calibrate(network, x, labels, verbose=verbose, **known)
        found = capsys.readouterr().out
        assert ("pass over the logits" in found) == shown
    # Fits of few rows have no passes that anybody waits for.
    few = {"verbose": 1, "method": "vector"}
    kc.calibrate(network, x[:500], labels[:500], **few)
    assert "pass over" not in capsys.readouterr().out
