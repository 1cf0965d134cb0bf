"""Label shift: the estimate, the corrected model, what is refused."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib._printed_dict import PrintedDict
from keras_calib.calibration import PreprocessedModel
from keras_calib.calibration._target_prior import summary
from keras_calib.solvers import label_shift
from tests.calibration import networks
from tests.helpers import to_numpy
from tests.layers.generated import generated
from tests.layers.generated import hashed
from tests.layers.generated import nll
from tests.layers.generated import softmax

# Prior that rows are thinned to: target prior of EM, steps, L(q), NLL before
# and after.
SHIFTS = {
    (0.4, 0.3, 0.15, 0.1, 0.05): (
        [
            0.408514511368,
            0.323341807861,
            0.155596270141,
            0.075601789275,
            0.0369456213553,
        ],
        56,
        0.191438558188,
        0.762474963176,
        0.666887889442,
    ),
    (0.4, 0.3, 0.2, 0.1, 0.0): (
        None,
        174,
        None,
        0.739608064907,
        0.542268179868,
    ),
}
BIAS = "bias_corrected_temperature"


def shifted(prior):
    """Rows of the generated set with the class frequencies of a prior."""
    logits, labels = generated(2500)
    rows = np.arange(500, 2500)
    share = np.array(prior) / (np.bincount(labels[rows]) / len(rows))
    keep = hashed(len(rows), 9) < (share / share.max())[labels[rows]]
    rows = rows[keep]
    return logits[rows], labels[rows]


def bias_corrected():
    """The paper's map, fitted to the first 500 rows."""
    logits, labels = generated(500)
    layer = kc.layers.BiasCorrectedTemperatureScaling(regularization=None)
    weights, _ = layer.solve(
        logits,
        labels,
        np.ones(500),
        kc.layers.NegativeLogLikelihoodObjective(),
    )
    return lambda z: z / np.exp(weights["log_temperature"]) + weights["bias"]


@pytest.mark.parametrize("prior", SHIFTS)
def test_estimate_on_the_generated_set(prior):
    calibrated = bias_corrected()
    source = softmax(calibrated(generated(500)[0])).mean(axis=0)
    z, y = shifted(prior)
    z = calibrated(z)
    ratios = label_shift.likelihood_ratios(z, source)
    found = label_shift.estimate_prior(ratios, source)
    expected, steps, value, before, after = SHIFTS[prior]
    assert found.converged
    assert found.iterations == pytest.approx(steps, abs=1)
    if expected is not None:
        np.testing.assert_allclose(found.prior, expected, atol=1e-8)
        assert found.log_likelihood == pytest.approx(value, abs=1e-9)
        np.testing.assert_allclose(found.ratios, 1, atol=1e-7)
    else:
        assert found.prior[4] < 1e-8
        assert found.ratios[4] == pytest.approx(0.912, abs=1e-3)
    assert nll(z, y) == pytest.approx(before, abs=1e-8)
    corrected = z + np.log(found.prior) - np.log(source)
    assert nll(corrected, y) == pytest.approx(after, abs=1e-8)


def test_estimate_by_hand():
    p = np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7]])
    source = np.array([0.5, 0.5])
    ratios = label_shift.likelihood_ratios(np.log(p), source)
    first = label_shift.estimate_prior(ratios, source, max_steps=1)
    np.testing.assert_allclose(first.prior, [0.566666666667, 0.433333333333])
    assert not first.converged
    last = label_shift.estimate_prior(ratios, source, tolerance=1e-14)
    expected = [0.890312454987, 0.109687545013]
    np.testing.assert_allclose(last.prior, expected, rtol=1e-10)
    # A weight is a number of rows, and its scale changes nothing.
    weighted = label_shift.estimate_prior(ratios[[0, 1]], source, [4.0, 2.0])
    rows = label_shift.estimate_prior(ratios[[0, 0, 1]], source)
    np.testing.assert_allclose(weighted.prior, rows.prior, rtol=1e-12)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 99])
@pytest.mark.parametrize("statistic", [0.0, 0.5, 4.0, 30.0, 150.0])
def test_chi_square_tail_equals_scipy(degrees, statistic):
    stats = pytest.importorskip("scipy.stats")
    found = label_shift.chi_square_tail(statistic, degrees)
    expected = stats.chi2.sf(statistic, degrees)
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-300)


def network(output="probabilities"):
    inputs = keras.Input((5,))
    activation = "softmax" if output == "probabilities" else "linear"
    outputs = keras.layers.Activation(activation)(inputs)
    return keras.Model(inputs, outputs)


def calibrated_model(method=BIAS, **kwargs):
    z, y = generated(500)
    return kc.calibrate(
        network(), z.astype("float32"), y, method=method, verbose=0, **kwargs
    )


A, B = SHIFTS


@pytest.mark.parametrize("output", ["probabilities", "logits"])
def test_corrected_model_on_a_resampled_test_set(output, tmp_path):
    method = kc.layers.BiasCorrectedTemperatureScaling(regularization=None)
    model = calibrated_model(method, output=output)
    z, y = shifted(A)
    half = len(z) // 2
    x = z.astype("float32")
    corrected = kc.adjust_prior(model, x, verbose=0)
    record = kc.calibration_record(corrected)["prior_correction"]
    np.testing.assert_allclose(record["target_prior"], SHIFTS[A][0], atol=1e-6)
    found = corrected.predict(x, verbose=0)
    scores = np.log(found) if output == "probabilities" else found
    assert nll(scores, y) == pytest.approx(SHIFTS[A][4], abs=1e-6)
    accuracy = (found.argmax(axis=1) == y).mean()
    assert accuracy == pytest.approx(0.7528, abs=1e-4)
    loss, measured = corrected.evaluate(x, y, verbose=0)
    assert loss == pytest.approx(SHIFTS[A][4], abs=1e-5)
    assert measured == pytest.approx(accuracy, abs=1e-6)
    # On rows that the estimate has not seen: half of the gain is enough.
    corrected = kc.adjust_prior(model, x[:half], verbose=0)
    before, _ = model.evaluate(x[half:], y[half:], verbose=0)
    after, _ = corrected.evaluate(x[half:], y[half:], verbose=0)
    assert after < before - 0.5 * (SHIFTS[A][3] - SHIFTS[A][4])

    corrected.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_allclose(
        loaded.predict(x, verbose=0),
        corrected.predict(x, verbose=0),
        rtol=1e-5,
        atol=1e-6,
    )
    assert kc.calibration_record(loaded) == kc.calibration_record(corrected)


def test_record_has_the_test_of_no_shift():
    model = calibrated_model()
    z, _ = shifted(A)
    record = kc.calibration_record(kc.adjust_prior(model, z, verbose=0))
    correction = record["prior_correction"]
    assert record["method"] == BIAS
    assert correction["source_prior"] == record["source_prior"]
    assert correction["num_samples"] == 704
    assert correction["degrees_of_freedom"] == 4
    gain = 2 * 704 * correction["log_likelihood"]
    assert correction["source_num_samples"] == 500
    expected = gain / (1 + 704 / 500)
    assert correction["shift_statistic"] == pytest.approx(expected)
    assert correction["p_value"] < 1e-20
    with pytest.warns(UserWarning, match="show no shift"):
        kc.adjust_prior(model, generated(500)[0], verbose=0)
    # A prior that is passed in counts as known.
    source = correction["source_prior"]
    passed = kc.adjust_prior(model, z, source_prior=source, verbose=0)
    correction = kc.calibration_record(passed)["prior_correction"]
    assert correction["source_num_samples"] is None
    assert correction["shift_statistic"] == pytest.approx(gain)
    # Unequal weights tell less, and so do groups.
    weight = np.where(np.arange(500) < 100, 9.0, 1.0)
    logits, labels = generated(500)
    for options, expected in (
        ({"sample_weight": weight}, 1300**2 / 8500),
        ({"groups": np.arange(500) // 5}, 100),
    ):
        fitted = kc.calibrate(
            network(), logits, labels, method=BIAS, verbose=0, **options
        )
        record = kc.calibration_record(fitted)
        assert record["source_num_samples"] == pytest.approx(expected)
        adjusted = kc.adjust_prior(fitted, z, verbose=0)
        record = kc.calibration_record(adjusted)["prior_correction"]
        assert record["source_num_samples"] == round(expected)
    # A second correction begins with two estimates, and their errors.
    twice = kc.adjust_prior(kc.adjust_prior(model, z, verbose=0), z, verbose=0)
    correction = kc.calibration_record(twice)["prior_correction"]
    assert correction["source_num_samples"] == round(1 / (1 / 500 + 1 / 704))


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore:The target data show no shift")
def test_the_test_of_no_shift_has_its_level():
    # The source prior is estimated, and many more rows have no label.
    prior = np.array([0.5, 0.3, 0.2])
    rng = np.random.default_rng(0)

    def drawn(count):
        labels = rng.choice(3, count, p=prior)
        return 2 * np.eye(3)[labels] + rng.normal(size=(count, 3)), labels

    inputs = keras.Input((3,))
    dense = keras.layers.Dense(3, "softmax")
    model = keras.Model(inputs, dense(inputs))
    dense.set_weights([2 * np.eye(3), np.log(prior)])
    p_values = []
    for _ in range(60):
        x, y = drawn(300)
        calibrated = kc.calibrate(model, x, y, method=BIAS, verbose=0)
        corrected = kc.adjust_prior(calibrated, drawn(3000)[0], verbose=0)
        record = kc.calibration_record(corrected)["prior_correction"]
        p_values.append(record["p_value"])
    # Of 60, eight or more are below 0.05 with a probability of 1 %.
    assert np.sum(np.array(p_values) < 0.05) < 8
    assert np.median(p_values) > 0.3


def test_source_prior_is_the_mean_prediction():
    z, y = generated(500)
    for method in ("temperature", BIAS):
        model = calibrated_model(method)
        record = kc.calibration_record(model)
        mean = model.predict(z, verbose=0).mean(axis=0)
        np.testing.assert_allclose(record["source_prior"], mean, atol=1e-6)
    weight = np.arange(500) % 3
    model = kc.calibrate(network(), z, y, weight, method=BIAS, verbose=0)
    mean = np.average(model.predict(z, verbose=0), axis=0, weights=weight)
    record = kc.calibration_record(model)
    np.testing.assert_allclose(record["source_prior"], mean, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The map 'temperature' leaves")
def test_unshifted_data_return_the_source_prior():
    z, _ = generated(500)
    for method in ("temperature", BIAS):
        model = calibrated_model(method)
        with pytest.warns(UserWarning, match="no shift"):
            corrected = kc.adjust_prior(model, z, verbose=0)
        found = kc.calibration_record(corrected)["prior_correction"]
        np.testing.assert_allclose(
            found["target_prior"], found["source_prior"], atol=1e-6
        )


def test_a_bias_that_the_map_leaves_is_named():
    model = calibrated_model("temperature")
    z, _ = shifted(A)
    with pytest.warns(UserWarning, match="leaves a bias of classes"):
        kc.adjust_prior(model, z, verbose=0)
    bias = kc.calibration_record(calibrated_model(BIAS))["class_bias"]
    assert bias < 2 < 4 < kc.calibration_record(model)["class_bias"]


def test_a_class_that_the_data_lack_is_rare_and_not_ruled_out():
    model = calibrated_model()
    z, y = shifted(B)
    corrected = kc.adjust_prior(model, z, verbose=0)
    record = kc.calibration_record(corrected)["prior_correction"]
    assert record["absent_classes"] == [4]
    assert record["target_prior"][4] == pytest.approx(1e-8)
    p = corrected.predict(z, verbose=0)
    assert p[:, 4].max() < 1e-4
    assert (p[:, 4] > 0).mean() > 0.9
    assert nll(np.log(p[:, :4]), y) < SHIFTS[B][3] - 0.15


def test_known_prior():
    model = calibrated_model()
    z, _ = generated(20)
    prior = np.array([0.5, 0.2, 0.1, 0.2, 0.0])
    source = np.array(kc.calibration_record(model)["source_prior"])
    corrected = kc.adjust_prior(model, prior=prior, verbose=0)
    joint = model.predict(z, verbose=0) * prior / source
    expected = joint / joint.sum(axis=1, keepdims=True)
    found = corrected.predict(z, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
    assert (found[:, 4] == 0).all()
    record = kc.calibration_record(corrected)["prior_correction"]
    assert record["estimated"] is False
    # From there to another prior is the same as directly.
    other = np.array([0.1, 0.4, 0.3, 0.2, 0.0])
    twice = kc.adjust_prior(corrected, prior=other, verbose=0)
    once = kc.adjust_prior(model, prior=other, verbose=0)
    np.testing.assert_allclose(
        twice.predict(z, verbose=0),
        once.predict(z, verbose=0),
        rtol=1e-4,
        atol=1e-7,
    )


def test_a_prior_with_class_ids_is_read_by_them():
    # `value_counts` has the most frequent class first.
    pandas = pytest.importorskip("pandas")
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Softmax()(inputs))
    labels = pandas.Series([2] * 5 + [0] * 3 + [1] * 2)
    counted = labels.value_counts(normalize=True)
    assert list(counted.index) == [2, 0, 1]
    source = [0.2, 0.2, 0.6]
    for prior in (counted, dict(counted), counted.sort_index().to_numpy()):
        found = kc.adjust_prior(
            model,
            prior=prior,
            source_prior=dict(zip((2, 1, 0), source[::-1], strict=True)),
            verbose=0,
        )
        record = kc.calibration_record(found)["prior_correction"]
        assert record["target_prior"] == pytest.approx([0.3, 0.2, 0.5])
        assert record["source_prior"] == pytest.approx(source)
    for wrong in ({1: 0.3, 2: 0.7}, {"a": 0.3, "b": 0.7}):
        with pytest.raises(ValueError, match="must be the class ids 0, 1"):
            kc.layers.PriorCorrection(
                source_prior=wrong, target_prior=[0.5, 0.5]
            )


@pytest.mark.filterwarnings("ignore:BiasCorrected")
def test_one_sigmoid_unit():
    z, y = generated(2500)
    margin, y = (z[:, 1:2] - z[:, :1]).astype("float32"), (y > 2).astype(int)
    inputs = keras.Input((1,))
    unit = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs))
    pair = keras.Model(
        inputs,
        keras.layers.Softmax()(
            keras.layers.Concatenate()([0.0 * inputs, inputs])
        ),
    )
    target = margin[500:][(y[500:] == 1) | (np.arange(2000) % 4 == 0)]
    found = []
    for model in (unit, pair):
        model = kc.calibrate(
            model, margin[:500], y[:500], method=BIAS, verbose=0
        )
        corrected = kc.adjust_prior(model, target, verbose=0)
        known = kc.adjust_prior(model, prior=0.8, verbose=0)
        found.append(
            [
                each.predict(target, verbose=0)[:, -1]
                for each in (corrected, known)
            ]
        )
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4)
    record = kc.calibration_record(known)["prior_correction"]
    assert record["target_prior"] == pytest.approx([0.2, 0.8])


@keras.saving.register_keras_serializable(package="tests_adjust_prior")
class Subclassed(keras.Model):
    def call(self, x):
        return keras.ops.softmax(x, axis=-1)


def test_subclassed_network(tmp_path):
    z, y = generated(500)
    target, _ = shifted(A)
    source = Subclassed()
    with pytest.warns(UserWarning, match="No final softmax"):
        model = kc.calibrate(source, z, y, method=BIAS, verbose=0)
    expected = kc.adjust_prior(calibrated_model(), target, verbose=0)
    record = kc.calibration_record(expected)["prior_correction"]
    for name, arguments in {
        "estimated": {"x": target},
        "known": {"prior": record["target_prior"]},
    }.items():
        corrected = kc.adjust_prior(model, **arguments, verbose=0)
        again = kc.adjust_prior(corrected, prior=[0.2] * 5, verbose=0)
        for each in (corrected, again):
            assert each.built and each.head.built
            each.save_weights(tmp_path / "all.weights.h5")
        np.testing.assert_allclose(
            corrected.predict(target, verbose=0),
            expected.predict(target, verbose=0),
            rtol=1e-3,
            atol=1e-5,
        )
        corrected.save(tmp_path / f"{name}.keras")
        loaded = keras.saving.load_model(tmp_path / f"{name}.keras")
        np.testing.assert_allclose(
            loaded.predict(target, verbose=0),
            corrected.predict(target, verbose=0),
            rtol=1e-5,
            atol=1e-6,
        )


def sources(x, weight):
    y = np.zeros(len(x), "int32")

    def batches(*arrays):
        for i in range(0, len(x), 100):
            yield tuple(a[i : i + 100] for a in arrays)

    class Sequence(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return x, y, weight

    yield "arrays", (x, weight)
    yield "generator", (batches(x, y, weight),)
    yield "list of batches", (list(batches(x, y, weight)),)
    yield "PyDataset", (Sequence(),)
    keep = weight > 0
    x = x[keep]
    yield "inputs alone", (iter([x[:50], x[50:]]),)
    if keras.backend.backend() == "torch":
        import torch

        data = torch.utils.data.TensorDataset(torch.from_numpy(x))
        yield "loader", (torch.utils.data.DataLoader(data, 64),)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        yield "tf.data", (tf.data.Dataset.from_tensor_slices(x).batch(64),)


def test_every_source_of_data():
    model = calibrated_model()
    x = shifted(A)[0].astype("float32")
    weight = 2.0 * (np.arange(len(x)) % 3 > 0)
    expected = None
    for name, data in sources(x, weight):
        corrected = kc.adjust_prior(model, *data, verbose=0)
        record = kc.calibration_record(corrected)["prior_correction"]
        assert record["num_samples"] == (weight > 0).sum(), name
        expected = expected or record["target_prior"]
        np.testing.assert_allclose(
            record["target_prior"], expected, atol=1e-7, err_msg=name
        )


def test_pixels_have_no_test_of_a_shift():
    z, y = generated(500)
    inputs = keras.Input((10, 5))
    model = keras.Model(inputs, keras.layers.Softmax()(inputs))
    model = kc.calibrate(
        model, z.reshape(50, 10, 5), y.reshape(50, 10), method=BIAS, verbose=0
    )
    target = shifted(A)[0][:700].reshape(70, 10, 5)
    corrected = kc.adjust_prior(model, target, verbose=0)
    record = kc.calibration_record(corrected)["prior_correction"]
    assert record["num_samples"] == 700
    assert "p_value" not in record
    assert corrected.predict(target, verbose=0).shape == (70, 10, 5)


def test_model_without_a_record_needs_the_source_prior():
    model = network()
    z, _ = shifted(A)
    with pytest.raises(ValueError, match="Pass `source_prior=`"):
        kc.adjust_prior(model, z)
    corrected = kc.adjust_prior(
        model, z, source_prior=np.full(5, 0.2), verbose=0
    )
    record = kc.calibration_record(corrected)
    assert record["prior_correction"]["source_prior"] == pytest.approx(
        [0.2] * 5
    )


@pytest.mark.filterwarnings("ignore:The target data show no shift")
def test_a_class_without_a_source_prior_stays_out():
    z, _ = shifted(A)
    source = [0.3, 0.3, 0.2, 0.2, 0.0]
    corrected = kc.adjust_prior(network(), z, source_prior=source, verbose=0)
    record = kc.calibration_record(corrected)["prior_correction"]
    assert record["target_prior"][4] == 0
    assert record["degrees_of_freedom"] == 3
    assert (corrected.predict(z, verbose=0)[:, 4] == 0).all()
    with pytest.warns(UserWarning, match=r"class \[4\] is 0"):
        kc.adjust_prior(
            network(), prior=np.full(5, 0.2), source_prior=source, verbose=0
        )


PRIORS = {"source_prior": [0.5, 0.3, 0.2], "prior": [0.2, 0.2, 0.6]}


def known(model, **arguments):
    """The model with known priors, without any data."""
    return kc.adjust_prior(model, **PRIORS, **arguments, verbose=0)


def test_without_data_the_graph_or_the_caller_says_what_comes_out():
    z = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
    p = softmax(z) * np.divide(PRIORS["prior"], PRIORS["source_prior"])
    expected = p / p.sum(axis=1, keepdims=True)

    layers = keras.layers

    def model(last):
        dense = layers.Dense(3, use_bias=False, kernel_initializer="identity")
        return keras.Sequential([keras.Input((3,)), dense, last])

    for network, arguments in (
        (model(layers.Activation("linear")), {}),
        (model(layers.Activation("softmax", name="softmax")), {}),
        (model(layers.Rescaling(1.0)), {"from_logits": True}),
    ):
        found = known(network, **arguments).predict(z, verbose=0)
        # Logits stay logits.
        if network.layers[-1].name != "softmax":
            found = softmax(found)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match=r"Rescaling|from_logits"):
        known(model(layers.Rescaling(1.0)))

    class Subclassed(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(ValueError, match="Pass `x`, a few samples, and"):
        known(Subclassed(), from_logits=True)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "neither `x` nor `prior`"),
        ({"prior": [0.5, 0.5]}, "5 of them"),
        ({"prior": [0.5, 0.5, 0.5, 0.0, 0.0]}, "with the sum 1.5"),
        ({"prior": [1.5, -0.5, 0.0, 0.0, 0.0]}, "must not be negative"),
        ({"prior": 0.3}, "5 of them"),
        ({"x": np.full((3, 5), np.nan)}, "finite|NaN"),
        ({"x": np.zeros((3, 5)), "source_prior": [0.5, 0.5]}, "5 classes"),
        (
            {"prior": [0, 1.0, 0, 0, 0], "source_prior": [1.0, 0, 0, 0, 0]},
            "0 for every class",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:No prediction")
def test_bad_input_is_refused(arguments, message):
    model = calibrated_model()
    before = [to_numpy(w) for w in model.weights]
    with pytest.raises(ValueError, match=message):
        kc.adjust_prior(model, **arguments, verbose=0)
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), value)


def test_record_with_many_classes_prints_in_short():
    record = PrintedDict({"source_prior": [0.01] * 100, "slopes": [1, 2]})
    assert "100 in all" in str(record) and len(str(record)) < 100
    assert record["source_prior"] == [0.01] * 100


def test_line_that_is_printed(capsys):
    model = calibrated_model()
    kc.adjust_prior(model, prior=[0.6, 0.1, 0.1, 0.1, 0.1])
    line = capsys.readouterr().out
    assert line.startswith("prior: class 0 0.") and "and 2 more" in line
    z, _ = shifted(A)
    kc.adjust_prior(model, z)
    line = capsys.readouterr().out.splitlines()[-1]
    assert f" on {len(z):,} samples, shift with p-value " in line


def test_a_line_of_two_classes_names_both():
    line = summary({"source_prior": [0.5, 0.5], "target_prior": [0.9, 0.1]})
    assert line == "prior: class 0 0.5 -> 0.9, class 1 0.5 -> 0.1"


@pytest.mark.filterwarnings("ignore:The temperature was set")
def test_a_source_prior_of_a_part_is_none():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 5)).astype("float32")
    y = rng.integers(0, 3, 200)

    def calibrated(i):
        network = keras.Sequential(
            [keras.Input((5,)), keras.layers.Dense(3, "softmax")],
            name=f"network_{i}",
        )
        return kc.calibrate(network, x, y, guard=False, verbose=0)

    one, two = calibrated(0), calibrated(1)
    inputs = keras.Input((5,))
    mean = keras.layers.Average()([one(inputs), two(inputs)])
    whole = keras.Sequential([keras.Input((5,)), one])
    adjusted = kc.adjust_prior(whole, prior=[0.2, 0.2, 0.6], verbose=0)
    expected = kc.adjust_prior(one, prior=[0.2, 0.2, 0.6], verbose=0)
    np.testing.assert_allclose(
        adjusted.predict(x, verbose=0),
        expected.predict(x, verbose=0),
        atol=1e-6,
    )
    for model in (
        kc.models.DeepEnsemble([one, two], from_logits=False),
        keras.Model(inputs, mean),
        keras.Sequential([one, keras.layers.Dense(3, "softmax")]),
    ):
        with pytest.raises(ValueError, match="more layers after the map"):
            kc.adjust_prior(
                model, x, prior=[0.2, 0.2, 0.6], from_logits=False, verbose=0
            )


@pytest.mark.parametrize("activation", ["softmax", None])
def test_a_known_prior_of_a_model_without_a_graph(activation):
    x = np.random.default_rng(0).normal(size=(200, 4)).astype("float32")
    model = networks.Subclassed(activation)
    given = model.predict(x, verbose=0)
    prior, source = np.array([0.7, 0.2, 0.1]), np.ones(3) / 3
    settings = {"source_prior": source, "verbose": 0}
    same = kc.adjust_prior(model, x, prior=source, **settings)
    np.testing.assert_allclose(same.predict(x, verbose=0), given, atol=1e-6)
    other = kc.adjust_prior(model, x, prior=prior, **settings)
    found = other.predict(x, verbose=0)
    if activation:
        expected = given * prior
        expected /= expected.sum(axis=1, keepdims=True)
    else:
        expected, found = given + np.log(prior), found - found[:, :1]
        expected = expected - expected[:, :1]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_fused_model_is_whole():
    """Its record is beside it, for no layer has one."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)).astype("float32")
    y = (x + rng.gumbel(size=x.shape)).argmax(axis=1)
    inputs = keras.Input((3,))
    layer = keras.layers.Dense(3)
    model = keras.Model(inputs, layer(inputs))
    layer.set_weights([2 * np.eye(3), np.zeros(3)])
    fused = kc.calibrate(model, x, y, fuse=True, verbose=0)
    plain = kc.calibrate(model, x, y, verbose=0)
    prior = [0.6, 0.3, 0.1]
    found = [
        kc.adjust_prior(each, prior=prior, verbose=0).predict(x, verbose=0)
        for each in (fused, plain)
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def own_loss(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)


@pytest.mark.parametrize(
    "loss",
    [
        own_loss,
        "categorical_crossentropy",
        keras.losses.CategoricalCrossentropy(),
        keras.losses.categorical_crossentropy,
        kc.losses.MDCA(),
        kc.losses.FocalLoss(ignore_class=2),
        "sparse_categorical_crossentropy",
        None,
    ],
)
def test_evaluate_takes_the_labels_of_the_compiled_loss(loss):
    model = networks.built(networks.functional(networks.dense("softmax")))
    if loss is not None:
        model.compile("sgd", loss)
    prior = {"prior": [0.5, 0.3, 0.2], "source_prior": [1 / 3] * 3}
    corrected = kc.adjust_prior(model, **prior, verbose=0)
    p = corrected.predict(networks.X, verbose=0)
    y, ignored = networks.Y, getattr(loss, "ignore_class", None)
    counts = np.ones(len(y), bool) if ignored is None else y != ignored
    expected = -np.log(p[np.arange(len(y)), y])[counts].mean()
    sparse = loss in (None, "sparse_categorical_crossentropy")
    ours = loss is own_loss or isinstance(loss, kc.losses.ClassificationLoss)
    labels = ([np.eye(3)[y]] if not sparse else []) + (
        [y] if sparse or ours else []
    )
    for each in labels:
        # Keras' accuracy stays with the kind of labels it saw first.
        corrected = kc.adjust_prior(model, **prior, verbose=0)
        found = corrected.evaluate(
            *(networks.X, each),
            batch_size=len(y),
            verbose=0,
            return_dict=True,
        )
        assert found["loss"] == pytest.approx(expected, rel=1e-5)
        if ignored is None:
            accuracy = np.mean(p.argmax(axis=1) == y)
            assert found["accuracy"] == pytest.approx(accuracy)


def test_record_of_a_fused_model_that_was_corrected():
    model = networks.built(networks.functional(networks.dense("softmax")))
    fused = kc.calibrate(model, networks.X, networks.Y, fuse=True, verbose=0)
    prior = [0.5, 0.3, 0.2]
    corrected = kc.adjust_prior(fused, prior=prior, verbose=0)
    record = kc.calibration_record(corrected)
    correction = record.pop("prior_correction")
    assert record == kc.calibration_record(fused)
    assert correction["target_prior"] == pytest.approx(prior)


@pytest.mark.parametrize("preprocessed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_rows_that_calibration_left_out_are_told_of(
    masked, weighted, preprocessed, recwarn
):
    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Embedding(6, 5, mask_zero=masked),
            keras.layers.Dense(6, "softmax"),
        ]
    )
    x = rng.integers(1, 6, (200, 4))
    x[::2, 2:] = 0
    if preprocessed:
        model = PreprocessedModel(model, keras.layers.Identity())
    calibrated = kc.calibrate(model, x, x, ignore_class=0, verbose=0)
    recwarn.clear()
    kc.adjust_prior(
        calibrated,
        x,
        sample_weight=(x > 0).astype("float32") if weighted else None,
        verbose=0,
    )
    told = [w for w in recwarn if "ignored label 0" in str(w.message)]
    assert len(told) == (0 if masked or weighted else 1)


@pytest.mark.parametrize("steps", [False, True])
def test_a_corrected_unit_is_evaluated_as_before(steps):
    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    shape = (6, 5) if steps else (60,)
    model = keras.Sequential(
        [keras.Input((*shape[1:], 4)), keras.layers.Dense(1, "sigmoid")]
    )
    x = rng.normal(size=(*shape, 4)).astype("float32")
    y = rng.integers(0, 2, shape)
    w = rng.integers(1, 4, shape[0]).astype("float32")
    calibrated = kc.calibrate(model, x, y, verbose=0)
    corrected = kc.adjust_prior(calibrated, prior=0.3, verbose=0)
    p = corrected.predict(x, verbose=0)[..., 0]
    # As long as a sequence, where a weight of a row fits a step, too.
    logs = corrected.evaluate(
        *(x, y), sample_weight=w, batch_size=5, verbose=0, return_dict=True
    )
    assert logs["accuracy"] == pytest.approx(((p > 0.5) == y).mean())
    weights = w[:, None] if steps else w
    expected = (-np.log(np.where(y == 1, p, 1 - p)) * weights).mean()
    assert logs["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("decision", ["ConformalSets", "RiskThreshold"])
def test_a_decision_has_no_prior(decision):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 400)
    x = (4 * np.eye(4)[labels] + rng.normal(size=(400, 4))).astype("float32")
    inputs = keras.Input((4,))
    network = keras.Model(inputs, keras.layers.Identity()(inputs))
    decision = getattr(kc.layers, decision)()
    decision.adapt(network.predict(x, verbose=0), labels)
    model = keras.Model(inputs, decision(network.outputs[0]))
    prior = {"prior": [0.4, 0.3, 0.2, 0.1], "source_prior": [0.25] * 4}
    for call in (
        lambda: kc.adjust_prior(model, **prior),
        lambda: kc.calibrate(model, x, labels),
        lambda: kc.report(model, x, labels),
        lambda: kc.report(model, x, labels, from_logits=True),
        lambda: kc.SKLearnClassifier.of_trained(model),
        lambda: kc.SKLearnClassifier.of_trained(model, from_logits=False),
    ):
        with pytest.raises(ValueError, match="ends in a decision") as raised:
            call()
        assert decision.name in str(raised.value)
    # What the error says to pass.
    before = keras.Model(model.inputs, model.get_layer(decision.name).input)
    adjusted = kc.adjust_prior(before, x, from_logits=True, verbose=0, **prior)
    assert adjusted.output_shape == (None, 4)


def test_scores_of_a_meta_calibration_have_a_prior():
    labels = np.arange(400) % 4
    x = 4 * np.eye(4)[labels] + np.random.default_rng(0).normal(size=(400, 4))
    inputs = keras.Input((4,))
    scores, _ = kc.layers.MetaCal().adapt(x, labels)(inputs)
    model = keras.Model(inputs, scores)
    prior = [0.4, 0.3, 0.2, 0.1]
    adjusted = kc.adjust_prior(
        model,
        prior=prior,
        source_prior=[0.25] * 4,
        from_logits=True,
        verbose=0,
    )
    moved = to_numpy(adjusted(x)) - to_numpy(model(x))
    moved -= moved[:, :1]
    expected = np.log(np.array(prior) / prior[0])
    np.testing.assert_allclose(moved, np.tile(expected, (400, 1)), atol=1e-5)
