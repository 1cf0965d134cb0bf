"""One sigmoid unit, rows that do not count, and weights, in every loss."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from tests.helpers import value_and_gradient
from tests.losses.fixtures import ALL_LOSSES
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import B

LOSSES = [
    kc.losses.ACLS(margin=0.5, from_logits=True),
    kc.losses.ACLS(margin=0.5, reference="min", from_logits=True, name="min"),
    kc.losses.MarginLabelSmoothing(margin=0.5, from_logits=True),
    kc.losses.FocalLoss(from_logits=True),
    kc.losses.AdaFocalLoss(from_logits=True, name="ada_focal"),
    *ALL_LOSSES,
]
EACH_LOSS = pytest.mark.parametrize("loss", LOSSES, ids=lambda x: x.name)
LOGITS = np.array([[1.5], [-0.4], [2.2], [-3.0], [0.1], [6.0]], "float32")
LABELS = np.array([1, 1, 0, 0, 1, 1])
WEIGHTS = np.array([0.5, 2.0, 1.0, 3.0, 0.7, 1.1])


def rebuilt(loss, **changes):
    return type(loss).from_config({**loss.get_config(), **changes})


@EACH_LOSS
def test_one_sigmoid_unit_is_two_classes(loss):
    two, two_gradient = value_and_gradient(
        lambda z: loss(LABELS, ops.concatenate([0 * z, z], axis=1), WEIGHTS),
        LOGITS,
    )
    for labels in (
        LABELS,
        LABELS[:, None],
        LABELS.astype("float32"),
        LABELS[:, None].astype("float32"),
        np.eye(2)[LABELS],
    ):
        one, gradient = value_and_gradient(
            lambda z, labels=labels: loss(labels, z, WEIGHTS), LOGITS
        )
        assert one == pytest.approx(two, rel=1e-6)
        np.testing.assert_allclose(gradient, two_gradient, 1e-5, 1e-7)
    flat, gradient = value_and_gradient(
        lambda z: loss(LABELS, z, WEIGHTS), LOGITS[:, 0]
    )
    assert flat == pytest.approx(two, rel=1e-6)
    np.testing.assert_allclose(gradient, two_gradient[:, 0], 1e-5, 1e-7)


@EACH_LOSS
def test_the_probability_of_one_sigmoid_unit(loss):
    expected, slope = value_and_gradient(lambda z: loss(LABELS, z), LOGITS)
    given = rebuilt(loss, from_logits=False)
    found, gradient = value_and_gradient(
        # Not Keras' own, which would carry its logits.
        lambda z: given(LABELS, 1.0 / (1.0 + ops.exp(-z))),
        LOGITS,
    )
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(gradient, slope, 1e-3, 1e-5)


def test_one_sigmoid_unit_and_a_primary_loss_of_keras():
    for primary in (
        keras.losses.BinaryCrossentropy(from_logits=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        keras.losses.CategoricalCrossentropy(from_logits=True),
    ):
        labels = LABELS
        if isinstance(primary, keras.losses.CategoricalCrossentropy):
            labels = np.eye(2)[LABELS]
        loss = kc.losses.MDCA(primary=primary, weight=0.0, from_logits=True)
        expected = float(
            kc.losses.FocalLoss(gamma=0.0, from_logits=True)(labels, LOGITS)
        )
        assert float(loss(labels, LOGITS)) == pytest.approx(expected, rel=1e-5)


@EACH_LOSS
@pytest.mark.parametrize("how", ["void", "mask", "weight"])
def test_rows_that_do_not_count_may_hold_anything(loss, how):
    spoiled = np.concatenate([B, np.full((2, 4), np.nan)])
    spoiled[5] = np.inf
    labels, weights = np.append(LABELS_B, [255, 255]), None
    reduced = rebuilt(loss, reduction="mean_with_sample_weight")
    reader = reduced
    if how == "void":
        reader = rebuilt(reduced, ignore_class=255)
    if how == "weight":
        weights = np.array([1.0, 1, 1, 1, 0, 0])
    real = np.arange(6) < 4

    def function(z):
        if how == "mask":
            z = Mask(real)(z)
        return reader(labels, z, weights)

    value, gradient = value_and_gradient(function, spoiled)
    alone, slope = value_and_gradient(lambda z: reduced(LABELS_B, z), B)
    assert value == pytest.approx(alone, rel=1e-6)
    np.testing.assert_allclose(gradient[:4], slope, 2e-5, 1e-6)
    np.testing.assert_array_equal(gradient[4:], 0.0)


class Mask(keras.layers.Layer):
    """The identity, with a mask on its output."""

    def __init__(self, mask):
        super().__init__(autocast=False)
        self.mask = mask

    def call(self, inputs):
        return inputs * 1.0

    def compute_mask(self, inputs, previous_mask=None):
        return ops.convert_to_tensor(self.mask)


@EACH_LOSS
def test_the_statistic_of_a_batch_knows_relative_weights_only(loss):
    reduced = rebuilt(loss, reduction="mean_with_sample_weight")
    weights = np.array([0.5, 2.0, 1.0, 3.0])
    expected = float(reduced(LABELS_B, B, weights))
    for factor in (1e-7, 1e5):
        value = float(reduced(LABELS_B, B, factor * weights))
        assert value == pytest.approx(expected, rel=1e-5)


METRICS = [
    kc.metrics.ExpectedCalibrationError(from_logits=True),
    kc.metrics.ExpectedCalibrationError(binning="mass", from_logits=True),
    kc.metrics.LabelBinnedCalibrationError(from_logits=True),
    kc.metrics.ClasswiseCalibrationError(from_logits=True),
    kc.metrics.ClasswiseCalibrationError(binning="mass", from_logits=True),
    kc.metrics.DebiasedCalibrationError(from_logits=True),
    kc.metrics.DebiasedCalibrationError(norm=1, from_logits=True),
    kc.metrics.SweepCalibrationError(from_logits=True),
    kc.metrics.SweepCalibrationError(norm=1, from_logits=True),
    kc.metrics.KSCalibrationError(from_logits=True),
    kc.metrics.SmoothCalibrationError(from_logits=True),
    kc.metrics.OverconfidenceError(from_logits=True),
    kc.metrics.BrierScore(from_logits=True),
    kc.metrics.NegativeLogLikelihood(from_logits=True),
]


@pytest.mark.parametrize("given", METRICS, ids=lambda x: x.name)
@pytest.mark.parametrize("weights", ["equal", "whole", "any"])
def test_streaming_metrics_know_relative_weights_only(given, weights):
    rng = np.random.default_rng(0)
    z = rng.normal(0, 3, (600, 4))
    y = np.where(rng.random(600) < 0.7, z.argmax(-1), rng.integers(0, 4, 600))
    w = {
        "equal": np.ones(600),
        "whole": rng.integers(1, 4, 600),
        "any": rng.uniform(0.1, 3, 600),
    }[weights]
    found = []
    for factor in (1.0, 0.01, 7.3, 1e4):
        metric = type(given).from_config(given.get_config())
        # Weights are relative across batches, too.
        for part in (slice(0, 150), slice(150, 600)):
            metric.update_state(y[part], z[part], factor * w[part])
        found.append(float(metric.result()))
    np.testing.assert_allclose(found, found[0], rtol=2e-5)


def test_the_mark_of_a_softmax_changes_no_number():
    z = ops.convert_to_tensor(B.astype("float32"))
    marked = keras.activations.softmax(z)
    plain = ops.convert_to_numpy(marked)
    for loss in LOSSES[2:]:
        if isinstance(loss, kc.losses.SquaredLogitLoss):
            continue
        given = rebuilt(loss, from_logits=False)
        assert float(given(LABELS_B, marked)) == pytest.approx(
            float(given(LABELS_B, plain)), rel=1e-4
        )
    for given in METRICS:
        config = {**given.get_config(), "from_logits": False}
        values = []
        for p in (marked, plain):
            metric = type(given).from_config(config)
            metric.update_state(LABELS_B, p)
            values.append(float(metric.result()))
        assert values[0] == values[1], given.name


@pytest.mark.backends(
    "tensorflow", "torch", reason="JAX arrays take no attributes"
)
def test_a_softmax_that_is_known_is_no_logit():
    z = ops.convert_to_tensor(B[:1].astype("float32"))
    marked = keras.activations.softmax(z)
    # A single row, whose values alone tell nothing.
    with pytest.raises(ValueError, match="scores before softmax"):
        kc.losses.FocalLoss(from_logits=True)(LABELS_B[:1], marked)
    with pytest.raises(ValueError, match="scores before softmax"):
        METRICS[0].update_state(LABELS_B[:1], marked)


@pytest.mark.parametrize(
    "logits",
    [
        [[0.2, 0.8]],  # one row
        [[1.0, 0.0], [0.0, 1.0]],  # one-hot
        [[0.0, 0.0], [0.0, 0.0]],
        [[0.2, 0.8], [0.2, 0.9]],  # a sum that is not one
        [[-0.2, 1.2], [0.2, 0.8]],  # below zero
        [[0.2], [0.8]],  # one sigmoid unit
    ],
)
def test_logits_that_only_look_like_probabilities(logits):
    labels = np.arange(len(logits)) % 2
    loss = kc.losses.FocalLoss(from_logits=True)
    assert np.isfinite(float(loss(labels, logits)))
    kc.metrics.calibration_errors(labels, logits, from_logits=True)


def test_a_basic_interval_stays_in_the_range_of_its_statistic():
    p = np.array([[0.9, 0.1]] * 12)
    labels = np.array([0] * 11 + [1])
    found = kc.metrics.calibration_errors(
        labels, p, num_resamples=200, interval="basic", verbose=0
    )
    for name in ("accuracy", "mean_confidence", "auroc"):
        assert 0 <= found[name].low <= found[name] <= found[name].high <= 1
    assert found["accuracy"].high == 1.0
    for name, value in found.items():
        if name not in ("confidence_gap", "debiased_calibration_error_l1"):
            assert 0 <= value.low <= value.high, name


def test_areas_and_sweeps_know_relative_weights_only():
    # All weights 0.01, which float64 rounds in every sum.
    rng = np.random.default_rng(0)
    p = rng.dirichlet([0.3] * 5, 1000)
    y = np.where(rng.random(1000) < 0.7, p.argmax(-1), rng.integers(0, 5, 1000))
    weights = rng.integers(1, 4, 1000)
    for first, second in ((None, np.full(1000, 0.01)), (weights, weights / 7)):
        one = kc.metrics.calibration_errors(y, p, first)
        assert kc.metrics.calibration_errors(y, p, second) == pytest.approx(
            one, rel=1e-9, abs=1e-12
        )


def test_entropy_of_a_class_that_is_ruled_out():
    z = np.array([[1.0, 2.0, -np.inf], [0.0, -np.inf, -np.inf]])
    h = -np.sum([q * np.log(q) for q in (1 / (1 + np.e), np.e / (1 + np.e))])
    metric = kc.metrics.MeanEntropy(from_logits=True)
    metric.update_state([0, 0], z)
    assert float(metric.result()) == pytest.approx(h / 2, rel=1e-6)
    loss = kc.losses.EntropyRegularization(
        primary=None, weight=1.0, from_logits=True
    )
    value, gradient = value_and_gradient(lambda z: loss([0, 0], z), z)
    assert value == pytest.approx(-h / 2, rel=1e-6)
    assert np.isfinite(gradient).all()
