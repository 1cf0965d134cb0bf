"""`multi_label=True`: several sigmoid units, each a problem of its own."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib._warning import FewSamplesWarning
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import hashed

X = generated()[0].astype("float32")
U = hashed(2500, 3).reshape(500, 5)
BIAS = 0.3 * (np.arange(5) - 2)
Y = (generated()[0] / 2 + BIAS + np.log(U / (1 - U)) > 0).astype("int32")
# `decisions.md` 6.
TEMPERATURES = [
    2.06942383338,
    2.05608200024,
    1.94317797054,
    1.93397155001,
    2.32577262046,
]
NLL = 0.404451728


def sigmoid(z):
    return 1 / (1 + np.exp(-np.asarray(z, "float64")))


def network(activation="sigmoid"):
    """Logits are the inputs."""
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(5, activation, use_bias=False)]
    )
    model.set_weights([np.eye(5)])
    return model


@keras.saving.register_keras_serializable(package="tests")
class Units(keras.Model):
    """The inputs, as a network without a graph."""

    def __init__(self, activation=None, **kwargs):
        super().__init__(**kwargs)
        self.activation = activation
        self.last = keras.layers.Activation(activation)

    def call(self, x):
        return self.last(x)

    def get_config(self):
        return {**super().get_config(), "activation": self.activation}


def calibrated_by(model, y=Y, *data, **options):
    """Each label by itself, but for maps that are named."""
    alone = kc.layers.TemperatureScaling()
    options = {"multi_label": True, "method": alone, "verbose": 0, **options}
    return kc.calibrate(model, X, y, *data, **options)


@pytest.mark.parametrize("method", ["temperature", "platt"])
def test_the_ece_is_that_of_each_label(method):
    """A bias to one side, which cancels in errors of the predicted class."""
    labels = (hashed(2500, 3).reshape(500, 5) < np.sqrt(sigmoid(X))) * 1
    calibrated = calibrated_by(network(), labels, method=method)
    record = kc.calibration_record(calibrated)
    metric = kc.metrics.MultilabelCalibrationError()
    for key, p in (
        ("ece_before", sigmoid(X)),
        ("ece_after", calibrated.predict(X, verbose=0)),
    ):
        metric.reset_state()
        metric.update_state(labels, p.astype("float32"))
        found = float(to_numpy(metric.result()))
        assert record[key] == pytest.approx(found, abs=1e-5)
        assert record[f"{key}_by_label"][0] == pytest.approx(
            kc.metrics.calibration_errors(
                labels[:, 0], p[:, :1], metrics=["binary_calibration_error"]
            )["binary_calibration_error"],
            abs=1e-5,
        )


def temperatures(model):
    return kc.calibration_record(model)["temperature"]


KINDS = {
    "sigmoid": (network, {}),
    "logits": (lambda: network(None), {"from_logits": True}),
    "logits of a graph": (lambda: network(None), {}),
    "subclassed logits": (Units, {}),
    "subclassed": (lambda: Units("sigmoid"), {"from_logits": False}),
}


@pytest.mark.filterwarnings("ignore:No final softmax")
@pytest.mark.parametrize("kind", KINDS)
def test_a_temperature_per_label(kind, tmp_path):
    make, options = KINDS[kind]
    model = make()
    calibrated = calibrated_by(model, **options)
    np.testing.assert_allclose(
        temperatures(calibrated), TEMPERATURES, rtol=1e-4
    )
    expected = sigmoid(X / np.array(TEMPERATURES))
    found = calibrated.predict(X, verbose=0)
    assert found.shape == (500, 5)
    # Beyond, float32 rounds what a sigmoid returns to 1.
    seen = np.abs(X) < 6
    np.testing.assert_allclose(found[seen], expected[seen], atol=2e-5)
    calibrated.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(again.predict(X, verbose=0), found)
    record = kc.calibration_record(calibrated)
    assert kc.calibration_record(again) == record
    assert record["nll_after"] == pytest.approx(NLL, rel=1e-5)
    values = calibrated.evaluate(X, Y, verbose=0, return_dict=True)
    assert values["loss"] == pytest.approx(NLL, rel=1e-4)
    right = ((expected > 0.5) == Y).mean()
    assert values["accuracy"] == pytest.approx(right, rel=1e-5)


def test_logits_come_out_on_request():
    calibrated = calibrated_by(network(), output="logits")
    np.testing.assert_allclose(
        calibrated.predict(X, verbose=0),
        X / np.array(TEMPERATURES),
        rtol=1e-4,
    )
    loss, _ = calibrated.evaluate(X, Y, verbose=0)
    assert loss == pytest.approx(NLL, rel=1e-4)


def test_platt_per_label():
    platt = kc.layers.PlattScaling(smooth_targets=False, shrinkage=None)
    calibrated = calibrated_by(
        network(), method=platt, guard=False, preserve_accuracy=False
    )
    record = kc.calibration_record(calibrated)
    found = record["intercept"][0], record["slope"][0]
    np.testing.assert_allclose(
        found, (-0.870010156871, 0.550171685769), rtol=1e-4
    )
    assert not platt.built  # a copy for each label
    z = X * record["slope"] + record["intercept"]
    np.testing.assert_allclose(
        calibrated.predict(X, verbose=0), sigmoid(z), atol=1e-5
    )


@pytest.mark.one_backend
def test_labels_of_a_long_fit_are_shown(capsys):
    for verbose, shown in ((1, True), ("auto", False), (0, False)):
        options = {"guard": False, "verbose": verbose}
        kc.calibrate(network(), X, Y, multi_label=True, **options)
        assert ("5/5" in (found := capsys.readouterr().out)) == shown
        assert ("/label" in found) == shown


@pytest.mark.filterwarnings("ignore:.*PlattScaling was rejected")
def test_each_label_is_what_it_is_alone():
    """The default Platt map, its shrinkage and its guard, in every label."""
    weight = np.linspace(0, 2, 500)
    options = {"preserve_accuracy": False, "verbose": 0}
    platt = kc.layers.PlattScaling()
    whole = calibrated_by(network(), Y, weight, method=platt, **options)
    p = whole.predict(X, verbose=0)
    verdicts = kc.calibration_record(whole)["guard"]["by_label"]
    assert {verdict["returned"] for verdict in verdicts} == {
        "map",
        "temperature_scaling",
    }
    for label in (0, 2):
        unit = keras.Sequential(
            [keras.Input((1,)), keras.layers.Activation("sigmoid")]
        )
        one = X[:, label : label + 1]
        alone = kc.calibrate(
            unit, one, Y[:, label], weight, method="platt", **options
        )
        np.testing.assert_allclose(
            p[:, label], alone.predict(one, verbose=0)[:, 0], atol=2e-6
        )
        record = kc.calibration_record(alone)
        assert record["guard"]["returned"] == verdicts[label]["returned"]


@pytest.mark.parametrize("method", ["temperature", "platt"])
def test_the_layer_itself_may_be_passed(method):
    layer = kc.layers.MultiLabelScaling
    named = calibrated_by(network(), method=method)
    found = calibrated_by(network(), method=layer(method=method))
    alone = kc.layers.TemperatureScaling()
    if method == "platt":
        alone = kc.layers.PlattScaling(shrinkage=None)
    by_itself = calibrated_by(network(), method=alone)
    plain = calibrated_by(
        network(), method=layer(method=method, shrinkage=None)
    )
    for one, other in ((found, named), (plain, by_itself)):
        np.testing.assert_array_equal(
            one.predict(X, verbose=0), other.predict(X, verbose=0)
        )
    with pytest.raises(ValueError, match="It takes `multi_label=True`"):
        calibrated_by(network("softmax"), method=layer(), multi_label=False)


def test_labels_of_one_class_stay():
    y = Y.copy()
    y[:, 1], y[:, 3] = 0, 1
    with pytest.warns(UserWarning, match=r"^Labels 1, 3 of 5 without a pos"):
        calibrated = calibrated_by(network(), y, output="logits")
    expected = np.array(TEMPERATURES)
    expected[[1, 3]] = 1
    np.testing.assert_allclose(temperatures(calibrated), expected, rtol=1e-4)
    record = kc.calibration_record(calibrated)
    assert record["num_positive"][1] == record["num_negative"][3] == 0
    loss, _ = calibrated.evaluate(X, y, verbose=0)
    assert loss == pytest.approx(record["nll_after"], rel=1e-4)


def test_the_guard_keeps_a_label_as_it_is():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4000, 5)).astype("float32")
    y = rng.random(z.shape) < sigmoid(z * [2, 1, 3, 2, 0.5])
    with pytest.warns(UserWarning, match="^Label 1: TemperatureScaling was re"):
        calibrated = kc.calibrate(network(), z, y, multi_label=True, verbose=0)
    record = kc.calibration_record(calibrated)
    returned = [each["returned"] for each in record["guard"]["by_label"]]
    assert returned == ["map", "no_calibration", "map", "map", "map"]
    assert record["temperature"][1] == 1
    assert record["nll_after_by_label"][1] == record["nll_before_by_label"][1]
    np.testing.assert_allclose(
        calibrated.predict(z, verbose=0)[:, 1], sigmoid(z[:, 1]), atol=1e-6
    )
    free = kc.calibrate(
        network(), z, y, multi_label=True, guard=False, verbose=0
    )
    freed = kc.calibration_record(free)
    assert freed["temperature"][1] != 1
    # What the label tells about the others counts in both.
    others = [0, 2, 3, 4]
    np.testing.assert_allclose(
        np.array(record["temperature"])[others],
        np.array(freed["temperature"])[others],
        rtol=1e-5,
    )
    assert record["shared_temperature"] == pytest.approx(
        freed["shared_temperature"], rel=1e-5
    )


@pytest.mark.filterwarnings("ignore:Labels? .*PlattScaling")
@pytest.mark.parametrize("method", ["temperature", "platt"])
def test_a_label_of_one_class_has_the_temperature_of_all(method):
    y = (0.5 * X > np.log(1 / hashed(2500, 4).reshape(500, 5) - 1)).astype(int)
    y[:, 3] = 0
    y, logits = y[:60], X[:60] - 10 * (np.arange(5) == 3)
    told = "Label 3 of 5 .* all labels and its own samples tell"
    with pytest.warns(UserWarning, match=told):
        calibrated = kc.calibrate(
            network(), logits, y, multi_label=True, method=method, verbose=0
        )
    record = kc.calibration_record(calibrated)
    temperature = record["temperature"][3]
    assert temperature == pytest.approx(record["shared_temperature"], rel=0.3)
    assert temperature != 1
    p = calibrated.predict(logits, verbose=0)[:, 3]
    np.testing.assert_allclose(
        p, sigmoid(logits[:, 3] / temperature), rtol=1e-4
    )
    assert record["guard"]["by_label"][3] == {"skipped": "one class only"}
    loss, _ = calibrated.evaluate(logits, y, verbose=0)
    assert loss == pytest.approx(record["nll_after"], rel=1e-4)


def test_one_warning_for_all_labels():
    right = (X > 0).astype("int32")
    with pytest.warns(UserWarning) as caught:
        calibrated_by(network(), right)
    (said,) = (each for each in caught if "every calib" in str(each.message))
    start = "Labels 0, 1, 2, 3, 4 (figures of label 0): T"
    assert str(said.message).startswith(start)


def test_one_warning_where_temperatures_end_for_several_reasons():
    # All samples of labels 0 and 2 are right, all of label 1 are wrong.
    y = Y.copy()
    y[:, :3] = X[:, :3] * [1, -1, 1] > 0
    with pytest.warns(UserWarning) as caught:
        calibrated_by(network(), y, guard=False)
    texts = [str(each.message) for each in caught]
    (said,) = (text for text in texts if "temperature was set" in text)
    assert said.startswith("Labels 0, 2 (figures of label 0): The temp")
    assert " Label 1: The temperature was set to 100: " in said


def test_one_warning_for_all_labels_that_the_guard_changed():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4000, 5)).astype("float32")
    y = rng.random(z.shape) < sigmoid(z * [1, 2, 1, 2, 0.5])
    y[:, 4] = rng.random(4000) < sigmoid(0.5 * z[:, 4] + 1)
    with pytest.warns(UserWarning) as caught:
        calibrated = kc.calibrate(
            network(), z, y, multi_label=True, method="platt", verbose=0
        )
    guard = kc.calibration_record(calibrated)["guard"]["by_label"]
    returned = np.array([each["returned"] for each in guard])
    texts = [str(each.message) for each in caught]
    (said,) = (text for text in texts if "was rejected" in text)
    for name in ("temperature_scaling", "no_calibration"):
        labels = np.flatnonzero(returned == name)
        assert len(labels)
        plural = "s" if len(labels) > 1 else ""
        assert f"Label{plural} {', '.join(map(str, labels))}" in said
    assert returned[4] == "map" and "4" not in said.split(":")[0]


def test_unknown_labels_and_weights_of_labels():
    y, weight = Y.copy(), np.ones(Y.shape)
    y[::3, 2] = -1
    weight[::3, 2] = 0
    rows = np.arange(500) % 3 > 0
    alone = kc.layers.TemperatureScaling().adapt(X[rows, 2:3], Y[rows, 2])
    for found in (
        calibrated_by(network(), y, ignore_class=-1),
        calibrated_by(network(), Y, 7 * weight),
    ):
        record = kc.calibration_record(found)
        expected = np.array(TEMPERATURES)
        expected[2] = alone.temperature
        np.testing.assert_allclose(record["temperature"], expected, rtol=1e-4)
        assert record["num_positive"][2] == Y[rows, 2].sum()
        assert record["num_samples"] == 500


def test_pixels_and_batches():
    """Any rank; rows of a sample are one group of the guard's folds."""
    model = keras.Sequential(
        [
            keras.Input((None, 5)),
            keras.layers.Dense(5, "sigmoid", use_bias=False),
        ]
    )
    model.set_weights([np.eye(5)])
    x, y = X.reshape(50, 10, 5), Y.reshape(50, 10, 5)
    data = [
        (x[:20, :4], y[:20, :4]),
        (x[:20, 4:], y[:20, 4:]),
        (x[20:], y[20:]),
    ]
    alone = {"method": kc.layers.TemperatureScaling(), "verbose": 0}
    calibrated = kc.calibrate(model, data, multi_label=True, **alone)
    np.testing.assert_allclose(
        temperatures(calibrated), TEMPERATURES, rtol=1e-4
    )
    assert kc.calibration_record(calibrated)["num_samples"] == 500


def test_masked_tokens_do_not_count():
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(501, 5, mask_zero=True),
            keras.layers.Activation("sigmoid"),
        ]
    )
    model.layers[0].set_weights([np.concatenate([np.ones((1, 5)), X])])
    tokens = np.zeros((50, 12), "int32")
    tokens[:, :10] = np.arange(1, 501).reshape(50, 10)
    y = np.zeros((50, 12, 5), "int32")
    y[:, :10] = Y.reshape(50, 10, 5)
    alone = {"method": kc.layers.TemperatureScaling(), "verbose": 0}
    calibrated = kc.calibrate(model, tokens, y, multi_label=True, **alone)
    np.testing.assert_allclose(
        temperatures(calibrated), TEMPERATURES, rtol=1e-4
    )
    loss, _ = calibrated.evaluate(tokens, y, batch_size=50, verbose=0)
    assert loss == pytest.approx(NLL, rel=1e-4)


def test_fused():
    fused = calibrated_by(network(), fuse=True)
    assert len(fused.layers) == 3
    np.testing.assert_allclose(
        fused.predict(X, verbose=0),
        sigmoid(X / np.array(TEMPERATURES)),
        atol=2e-5,
    )


def of_many_labels(seed, size):
    """Twenty rare labels, logits 1.8 times as large as they should be."""
    rng = np.random.default_rng(seed)
    z = rng.normal(np.linspace(-4, 0, 20), 1.5, (size, 20))
    y = rng.random(z.shape) < sigmoid(z)
    return (1.8 * z).astype("float32"), y.astype("int32")


@pytest.mark.filterwarnings("ignore:Label")
@pytest.mark.parametrize("method", ["temperature", "platt"])
def test_few_samples_of_many_labels(method):
    """By default as good on other samples as one temperature for all."""
    inputs = keras.Input((20,))
    outputs = keras.layers.Activation("sigmoid")(inputs)
    model = keras.Model(inputs, outputs)
    test, labels = of_many_labels(99, 4000)

    def nll_of(p):
        p = np.clip(p.astype("float64"), 1e-12, 1 - 1e-12)
        return -np.log(np.where(labels == 1, p, 1 - p)).mean()

    x, y = of_many_labels(0, 50)
    calibrated = kc.calibrate(
        model, x, y, multi_label=True, method=method, verbose=0
    )
    found = nll_of(calibrated.predict(test, verbose=0))
    one = kc.layers.TemperatureScaling().adapt(x.reshape(-1, 1), y.reshape(-1))
    shared = nll_of(sigmoid(test / one.temperature))
    alone = kc.layers.MultiLabelScaling(method=method, shrinkage=None)
    each = nll_of(sigmoid(to_numpy(alone.adapt(x, y)(test))))
    assert found < shared + 0.006
    assert found < each - 0.006
    record = kc.calibration_record(calibrated)
    assert record["shared_temperature"] == pytest.approx(1.8, rel=0.2)
    for error in ("nll", "ece"):
        by_label = record[f"{error}_after_by_label"]
        known = [each for each in by_label if each is not None]
        assert record[f"{error}_after"] == pytest.approx(np.mean(known))
    p = calibrated.predict(x, verbose=0)
    loss = keras.losses.binary_crossentropy(y.astype("float32"), p)
    assert record["nll_after"] == pytest.approx(to_numpy(loss).mean(), 1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_few_samples_are_no_matter_where_other_labels_tell(weighted, recwarn):
    x, y = X[:45], Y[:45]
    weights = np.linspace(0.2, 1.8, 45) if weighted else None
    for shrinkage, told in (("auto", False), (None, True)):
        recwarn.clear()
        layer = kc.layers.MultiLabelScaling(shrinkage=shrinkage)
        kc.calibrate(
            *(network(), x, y, weights),
            multi_label=True,
            method=layer,
            verbose=0,
        )
        few = any(each.category is FewSamplesWarning for each in recwarn)
        assert few == told


def test_few_labels_that_are_named_share_what_they_have_in_common():
    layer = kc.layers.MultiLabelScaling().adapt(X, Y)
    calibrated = calibrated_by(network(), method="temperature", fuse=True)
    np.testing.assert_allclose(
        temperatures(calibrated), layer.temperatures, rtol=1e-6
    )
    # All are 2 in truth, and 1.93 to 2.33 each by itself.
    assert layer.temperatures.min() > 2 and layer.temperatures.max() < 2.1


def test_one_line_is_printed(capsys):
    calibrated_by(network(), verbose=1)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("temperature 1.93 to 2.33 for 5 labels: ECE 0.104")


def test_an_ensemble_of_labels():
    members = [network(), network()]
    members[1].set_weights([np.eye(5) * 0.9])
    ensemble = kc.models.DeepEnsemble(members, multi_label=True)
    p = (sigmoid(X) + sigmoid(0.9 * X)) / 2
    expected = kc.layers.MultiLabelScaling().adapt(np.log(p / (1 - p)), Y)
    calibrated = calibrated_by(ensemble, method="temperature")
    np.testing.assert_allclose(
        temperatures(calibrated), expected.temperatures, rtol=1e-3
    )


def softmax():
    return network("softmax")


REFUSED = {
    "without multi_label": (
        network,
        {"multi_label": False},
        "`multi_label=True`",
    ),
    "subclassed, without multi_label": (
        lambda: Units("sigmoid"),
        {"multi_label": False, "from_logits": False},
        "`multi_label=True`",
    ),
    "logits, without multi_label": (
        lambda: network(None),
        {"multi_label": False},
        "`multi_label=True`",
    ),
    "softmax": (softmax, {}, "ends in a softmax"),
    "another map": (network, {"method": "vector"}, "method='vector'"),
    "auto": (network, {"method": "auto"}, "method='auto'"),
    "mixture": (network, {"method": "auto", "mixture": True}, "'auto'"),
    "objective": (network, {"objective": "ece"}, "objective='ece'"),
    "class loss": (
        network,
        {"class_loss_scaling": "normal"},
        "class_loss_scaling='normal'",
    ),
    "stream": (network, {"stream": True}, "Leave out `stream`"),
    "fused mixture": (
        network,
        {"fuse": True, "method": kc.layers.PlattScaling()},
        "not affine",
    ),
    "unknown": (lambda: Units("sigmoid"), {}, "`from_logits`"),
    "no probabilities": (Units, {"from_logits": False}, "probability"),
    "other predictions": (
        network,
        {"method": "platt", "preserve_accuracy": True},
        "preserve_accuracy",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    make, options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        calibrated_by(make(), **options)


LABELS = {
    "ids": (Y[:, 0], "scores and labels of one shape"),
    "two": (2 * Y, "not one of the 2 classes"),
    "soft": (Y * 0.5, "whole numbers"),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_that_are_refused(name):
    y, message = LABELS[name]
    with pytest.raises(ValueError, match=message):
        calibrated_by(network(), y)


def test_the_same_data_twice_is_refused():
    once = calibrated_by(network())
    with pytest.raises(ValueError, match="very samples"):
        calibrated_by(once)
    twice = kc.calibrate(
        once, X[:300], Y[:300], multi_label=True, guard=False, verbose=0
    )
    assert len(temperatures(twice)) == 5


def test_a_failed_fit_leaves_the_layer():
    layer = kc.layers.MultiLabelScaling(method="platt").adapt(X, Y)
    before = [to_numpy(weight) for weight in layer.weights]
    record = layer.record
    bad = X.copy()
    bad[0, 3] = np.nan
    with pytest.raises(ValueError, match="Label 3: Logits must be finite"):
        layer.adapt(bad, Y)
    with pytest.raises(ValueError, match="built for other logits"):
        layer.adapt(X[:, :3], Y[:, :3])
    for old, new in zip(before, layer.weights, strict=True):
        np.testing.assert_array_equal(old, to_numpy(new))
    assert layer.record is record


@pytest.mark.parametrize("method", ["temperature", "platt"])
def test_starts_as_the_identity(method):
    z = np.array([[-1e30, -90.0, -0.5, 0.0, 3.0, 90.0]], "float32")
    layer = kc.layers.MultiLabelScaling(method=method)
    np.testing.assert_array_equal(to_numpy(layer(z)), z)
    with pytest.raises(ValueError, match="method='beta'"):
        kc.layers.MultiLabelScaling(method="beta")


@pytest.mark.parametrize("label", [0, 1])
def test_labels_of_one_class_alone_stay_as_they_are(label):
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Activation("sigmoid")]
    )
    x = np.full((12, 2), -3.0, "float32")
    labels = np.full((12, 2), label)
    labels[:, 1] = -1  # of the second nothing is known
    with pytest.warns(UserWarning, match="not fitted"):
        found = kc.calibrate(
            model, x, labels, multi_label=True, ignore_class=-1, verbose=0
        )
    record = kc.calibration_record(found)
    p = 1 / (1 + np.exp(3.0))
    error = abs(label - p)
    assert record["ece_before"] == pytest.approx(error, rel=1e-5)
    assert record["ece_after"] == pytest.approx(error, rel=1e-5)
    assert record["nll_after"] == pytest.approx(-np.log1p(-error), rel=1e-5)
    np.testing.assert_allclose(found.predict(x, verbose=0), p, rtol=1e-5)
