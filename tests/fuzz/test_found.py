"""What the fuzz found: each was another error than one that is documented."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import small_network
from tests.helpers import to_numpy

Z = np.array([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]], "float32")
Y = np.array([0, 1])
PROBABILITIES = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]])


def model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Softmax()(inputs))


def identity():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Identity()(inputs))


def calibrated_model(network, head):
    return kc.calibration.CalibratedModel(network, head)


def crl(correctness):
    return kc.losses.crl(Y, Z, correctness)


def ada_focal(edges, gammas):
    return kc.losses.ada_focal_loss(Y, Z, edges=edges, gammas=gammas)


def multi_label_axis(axis):
    metric = kc.metrics.MultilabelCalibrationError(axis=axis)
    metric.update_state(np.ones((2, 3)), np.full((2, 3), 0.5))


def mixture(maps):
    return kc.layers.CalibrationMixture(maps=maps, weights=[1.0] * len(maps))


FOUND = {
    "samples without labels to drop": (
        lambda: kc.callbacks.DataPruning(Z, None),
        "A sample has one label",
    ),
    "labels in a dict to drop by": (
        lambda: kc.callbacks.DataPruning(Z, {"a": Y, "b": Y}),
        "A sample has one label",
    ),
    "no network": (lambda: calibrated_model(3, model()), "a Keras model"),
    "no head": (lambda: calibrated_model(model(), None), "a Keras model"),
    "priors of other classes": (
        lambda: kc.adjust_prior(model(), prior=0.5, source_prior=0.2),
        "The priors are those of 2 classes",
    ),
    "no loss as objective": (
        lambda: kc.layers.LossObjective("nll"),
        "`loss` must be a loss object",
    ),
    "a part of no loss": (
        lambda: kc.losses.LossPart("mdca", "penalty"),
        "`loss` must be a loss with a penalty",
    ),
    "no part of a loss": (
        lambda: kc.losses.LossPart(kc.losses.MDCA(), ""),
        "`part` must be",
    ),
    "a mixture of words": (lambda: mixture("ab"), "needs calibration layers"),
    "no optimizer": (
        lambda: kc.models.MutualOptimizer("sgd", None),
        "`auxiliary` must be an optimizer",
    ),
    "correctness in a column": (
        lambda: crl([[0.5], [1.0]]),
        "`correctness` must have one number for each row",
    ),
    "one correctness": (lambda: crl(0.5), "one number for each row"),
    "one edge, not in a list": (lambda: ada_focal(0.5, [1, 2]), "one gamma"),
    "a margin of True": (
        lambda: kc.losses.margin_label_smoothing(Y, Z, margin=True),
        "`margin` is a distance",
    ),
    "an axis that is not there": (lambda: multi_label_axis(7), "`axis` is the"),
    "a number without samples": (
        lambda: kc.add_sample_index(np.array(3)),
        "Samples can be numbered in arrays",
    ),
    "fewer than no iterations": (
        lambda: kc.layers.ParameterizedTemperatureScaling(iterations=-1),
        "`iterations` must be at least 0",
    ),
    "fewer than no iterations in another": (
        lambda: kc.layers.IntraOrderPreserving(iterations=-1),
        "`iterations` must be at least 0",
    ),
    "infinitely many bins": (
        lambda: kc.metrics.OverconfidenceError(num_bins=float("inf")),
        "`num_bins`",
    ),
    "infinitely many levels": (
        lambda: kc.layers.IsotonicCalibration(num_levels=float("inf")),
        "`num_levels`",
    ),
    "images without a channel": (
        lambda: kc.shift.corrupt(
            np.zeros((3, 16, 16, 0), "uint8"), "gaussian_noise", 1
        ),
        "Images must have at least one channel",
    ),
    "data that is a number": (
        lambda: kc.check(model(), 1.5, Y),
        "must be arrays with an axis of samples",
    ),
    "a method by position": (
        lambda: kc.calibrate(model(), Z, Y, "vector"),
        'Pass options by name, such as `method="vector"`',
    ),
    "a class for a layer": (
        lambda: kc.calibrate(model(), Z, Y, method=kc.layers.VectorScaling),
        "Pass a layer, not its class: `VectorScaling()`",
    ),
    "arrays in a tuple": (
        lambda: kc.calibrate(model(), (Z, Y)),
        "pass `x, y`, not `(x, y)`",
    ),
    "a model for labels": (
        lambda: kc.plots.reliability_diagram(model(), Z),
        "labels of type Functional. Pass the labels first",
    ),
    "predicted classes for probabilities": (
        lambda: kc.metrics.calibration_errors([0, 2], [0, 1]),
        "the probability of every class, no predicted classes",
    ),
    "lists of different lengths": (
        lambda: kc.metrics.calibration_errors(Y, [[0.5, 0.5], [1.0]]),
        "An array, or a list that is one, is needed",
    ),
    "text for predictions": (
        lambda: kc.metrics.calibration_errors(Y, [["a", "b"], ["c", "d"]]),
        "Predictions must be real numbers",
    ),
    "complex predictions": (
        lambda: kc.metrics.calibration_errors(Y, Z.astype("complex64")),
        "Predictions must be real numbers",
    ),
    "text for weights": (
        lambda: kc.metrics.calibration_errors(Y, Z, ["a", "b"]),
        "Sample weights must be real numbers",
    ),
    "no bins": (
        lambda: kc.metrics.calibration_errors(Y, PROBABILITIES, num_bins=None),
        "`num_bins` must be at least 1, an integer",
    ),
    "a fraction of a bin": (
        lambda: kc.metrics.calibration_errors(Y, PROBABILITIES, num_bins=2.5),
        "`num_bins` must be at least 1, an integer",
    ),
    "resamples in words": (
        lambda: kc.metrics.calibration_errors(
            Y, PROBABILITIES, interval="basic", num_resamples="5"
        ),
        "`num_resamples` must be at least 2, an integer",
    ),
    "a seed in words": (
        lambda: kc.metrics.consistency_test(Y, PROBABILITIES, seed="a"),
        "`seed` must be at least 0, an integer",
    ),
    "a gamma of another kind": (
        lambda: kc.losses.focal_loss(Y, Z, gamma={}),
        "`gamma` is the power",
    ),
    "a margin in a list": (
        lambda: kc.losses.margin_label_smoothing(Y, Z, margin=[1]),
        "`margin` is a distance",
    ),
    "a weight in a list": (
        lambda: kc.losses.MDCA(weight=[1.0]),
        "`weight` must be a number",
    ),
    "no temperature": (
        lambda: kc.layers.TemperatureScaling(temperature=None),
        "`temperature` must be positive",
    ),
    "a risk in a list": (
        lambda: kc.layers.RiskThreshold(target_risk=[1]),
        "`target_risk` must be in",
    ),
    "one level of value": (
        lambda: kc.shift.corrupt(
            np.zeros((1, 16, 16, 3), "uint8"), "fog", 1, value_range=1.0
        ),
        "`value_range` must be",
    ),
    "several seeds": (
        lambda: kc.shift.corrupt(
            np.zeros((3, 16, 16, 3), "uint8"), "fog", 1, seed=[3, 2, 1]
        ),
        "`seed` must be an integer",
    ),
    "an infinite penalty": (
        lambda: kc.layers.IntraOrderPreserving(penalty=float("inf")),
        "`penalty` must be finite",
    ),
    "a card of a number": (
        lambda: kc.model_card(3.0),
        "`model` must be a Keras model or layer",
    ),
    "a record of a number": (
        lambda: kc.calibration_record(3.0),
        "`model` must be a Keras model or layer",
    ),
    "divergence of other shapes": (
        lambda: kc.models.kl_divergence(np.zeros((0, 2)), np.zeros((6, 2))),
        "Log-probabilities must have equal shapes",
    ),
    "a batch of half a sample": (
        lambda: kc.calibrate(model(), Z, Y, batch_size=1.5),
        "`batch_size` must be at least 1, an integer",
    ),
    "nothing to fuse into": (
        lambda: kc.calibrate(
            identity(), np.tile(Z, (10, 1)), np.tile(Y, 10), fuse=True
        ),
        "`fuse=True` changes the last layer",
    ),
    "cells beyond any memory": (
        lambda: kc.metrics.OverconfidenceError(num_bins=1e30),
        "`num_bins` must be at least 1, an integer",
    ),
    "soft bins beyond any memory": (
        lambda: kc.losses.SoftBinnedECE(num_bins=10**30),
        "`num_bins` must be at least 1, an integer",
    ),
    "gammas beyond any memory": (
        lambda: kc.losses.AdaFocalLoss(num_bins=10**30),
        "`num_bins` must be at least 2",
    ),
    "logits without images": (
        lambda: kc.layers.LocalTemperatureScaling().adapt(Z, Y),
        "Logits come with their images",
    ),
}
FOUND |= {
    "labels of different lengths": (
        lambda: kc.datasets.long_tailed(Z, [1, [2, 3]]),
        "An array, or a list that is one, is needed",
    ),
    "samples that are a number": (
        lambda: kc.datasets.long_tailed(1.5, Y),
        "Labels must be class ids, one per sample",
    ),
    "ids without an order": (
        lambda: kc.metrics.calibration_errors(
            Y, np.full((2, 2), 0.5), groups=[{"a": 1}, {"a": 2}]
        ),
        "`groups` must have an id for each sample that counts",
    ),
    "no label": (
        lambda: kc.metrics.MultilabelCalibrationError().update_state(
            np.zeros((1, 0)), np.zeros((1, 0))
        ),
        "of at least one label",
    ),
    "a name in a list": (
        lambda: kc.metrics.calibration_errors(Y, Z, metrics=[["accuracy"]]),
        "`metrics` must be names out of",
    ),
    "a count that is true": (
        lambda: kc.layers.ExpectedCalibrationErrorObjective(num_bins=True),
        "`num_bins` must be at least 1, an integer",
    ),
    "several norms": (
        lambda: kc.metrics.AdaptiveCalibrationError(norm=np.array([1.0, 2.0])),
        "`norm` must be one of",
    ),
    "a class that is true": (
        lambda: kc.metrics.clinical_panel(
            Y, np.full((2, 2), 0.5), positive_class=True
        ),
        "`positive_class` must be one of",
    ),
}
DRAWN = {
    "axes of another kind": (
        lambda: kc.plots.net_benefit(Y, np.full((2, 2), 0.5), axes=3),
        "`axes` must be Matplotlib's",
    ),
    "no history": (
        lambda: kc.plots.calibration_history([1.0]),
        "`history` must be what `fit` returns",
    ),
    "no loss to draw": (
        lambda: kc.plots.loss_profile({"a": []}),
        "`loss` must be a loss object",
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_refused_in_words(case):
    call, message = FOUND[case]
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)


@pytest.mark.one_backend
@pytest.mark.parametrize("case", DRAWN)
def test_drawings_are_refused_in_words(case):
    pytest.importorskip("matplotlib")
    call, message = DRAWN[case]
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)


def test_a_title_that_is_no_text():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure = kc.plots.net_benefit(Y, np.full((2, 2), 0.5), title=["a"])
    assert figure.axes[0].get_title() == "['a']"
    pyplot.close(figure)


@pytest.mark.parametrize("title", [np.array([1.0, 2.0]), 0])
def test_a_title_of_numbers_is_written(title):
    losses = {"focal": kc.losses.FocalLoss()}
    figure = kc.plots.loss_profile(losses, title=title)
    assert figure.axes[0].get_title() == str(title)


def test_parts_of_a_loss_take_lists():
    primary, penalty = kc.losses.MDCA(from_logits=True).component_metrics()
    for metric in (primary, penalty):
        metric.update_state([0, 1], [[1.0, 0.0], [0.0, 2.0]])
        found = float(metric.result())
        assert 0 < found < 1
        metric.update_state([], [])  # no rows count for nothing
        assert float(metric.result()) == found


def test_no_report():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(30, 3)).astype("float32")
    calibrated = kc.calibrate(model(), z, rng.integers(0, 3, 30), verbose=0)
    with pytest.raises(ValueError, match="`report` must be what"):
        kc.model_card(calibrated, {"a": 1})


@pytest.mark.parametrize(
    "given", [np.array(3), np.float32(0.3), None, [], np.array(["a"])]
)
@pytest.mark.parametrize(
    "layer",
    [
        *("LogProbabilities", "TemperatureScaling", "VectorScaling"),
        *("PlattScaling", "HistogramBinning", "ConformalSets", "RiskThreshold"),
    ],
)
def test_layers_take_one_tensor(layer, given):
    with pytest.raises(ValueError, match="takes one tensor of numbers"):
        getattr(kc.layers, layer)()(given)


@pytest.mark.parametrize("given", [np.zeros((2, 3)), [np.zeros((2, 3))], None])
def test_local_temperatures_take_two_tensors(given):
    with pytest.raises(ValueError, match="takes two tensors"):
        kc.layers.LocalTemperatureScaling()(given)


@pytest.mark.parametrize("layer", ["ConformalSets", "MetaCal", "RiskThreshold"])
def test_decisions_about_what_are_no_floats(layer):
    z = np.array([[3, 0, -1], [0, 1, 0], [1, 1, 0]] * 20)
    fitted = getattr(kc.layers, layer)().adapt(
        z.astype("float32"), [0, 1, 0] * 20
    )
    for given in (z, z > 0):
        found = keras.tree.flatten(fitted(given))
        expected = keras.tree.flatten(fitted(given.astype("float32")))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(to_numpy(one), to_numpy(other))


@pytest.mark.parametrize("argument", ["name", "task", "dataset"])
def test_a_card_of_numbers(argument):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(30, 3)).astype("float32")
    calibrated = kc.calibrate(model(), z, rng.integers(0, 3, 30), verbose=0)
    with pytest.raises(ValueError, match=f"`{argument}` must be a string"):
        kc.model_card(calibrated, **{argument: 3})


def test_weights_of_a_batch_that_are_no_numbers():
    network = identity()
    network.compile("sgd", kc.losses.MDCA(from_logits=True))
    findings = kc.check(network, Z, Y, np.array([{}, {}]))
    assert any("must be numbers" in each for each in findings)


def test_log_odds_of_labels():
    labels = np.array([[True, False], [True, True]])
    found = to_numpy(kc.layers.LogProbabilities(multi_label=True)(labels))
    assert (np.sign(found) == np.where(labels, 1, -1)).all()


def test_targets_of_labels_that_are_text():
    x, w = np.zeros((6, 4)), np.ones(6)
    with pytest.raises(ValueError, match="must be numbers"):
        kc.callbacks.EmpiricalTargets(
            x, np.array(list("012112")), w, num_classes=3, from_logits=True
        )


def test_local_temperatures_of_more_images_than_logits():
    images, logits = np.zeros((2, 5, 5, 1)), np.zeros((1, 5, 5, 3))
    with pytest.raises(ValueError, match="as many and of one size"):
        kc.layers.LocalTemperatureScaling().adapt(
            [images, logits], np.zeros((1, 5, 5), int)
        )


def test_temperatures_of_fewer_scores_than_the_network_takes():
    layer = kc.layers.ParameterizedTemperatureScaling(iterations=3)
    layer.adapt(Z[:, :1], np.arange(len(Z)) % 2)
    with pytest.raises(ValueError, match="2 largest scores"):
        layer.temperatures(Z[:, :1])


@pytest.mark.parametrize("image", [0, np.zeros((2, 2, 2)), [["a"]]])
def test_a_confidence_map_beside_what_is_no_image(image):
    with pytest.raises(ValueError, match="`image` must be"):
        kc.plots.confidence_map(
            np.zeros((2, 2), int), np.full((2, 2, 2), 0.5), image=image
        )


def test_no_labels_on_the_first_axis():
    metric = kc.metrics.MultilabelCalibrationError(axis=0)
    with pytest.raises(ValueError, match="at least one label"):
        metric.update_state(np.zeros((0, 2)), np.zeros((0, 2)))


def test_validation_data_without_samples():
    model = small_network(num_classes=3, inputs=2)
    model.compile("sgd", "mse")
    nothing = np.array({}, object), np.zeros(4, int)
    monitor = kc.callbacks.CalibrationMonitor(nothing)
    with pytest.raises(ValueError, match="axis of samples"):
        model.fit(np.zeros((4, 2)), np.zeros((4, 3)), callbacks=[monitor])
