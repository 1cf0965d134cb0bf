import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.inputs.arrays import concrete_value
from keras_calib.inputs.rows import as_rows
from keras_calib.ops.confidence import top_label
from tests.helpers import compiled
from tests.helpers import small_network
from tests.helpers import to_numpy
from tests.helpers import value_and_gradient


def test_the_first_of_equal_logits_is_the_prediction():
    tied, later = [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]
    rows = as_rows([0, 1, 1, 2], [tied, tied, later, later])
    confidence, correct = top_label(rows)
    np.testing.assert_array_equal(to_numpy(correct), [1.0, 0.0, 1.0, 0.0])
    expected = np.e / (2 * np.e + 1)
    np.testing.assert_allclose(to_numpy(confidence), expected, rtol=1e-6)


def test_one_sigmoid_unit_becomes_two_classes():
    logit = np.array([[-2.0], [0.5], [3.0]], "float32")
    probability = 1 / (1 + np.exp(-logit))
    expected = np.concatenate([1 - probability, probability], axis=1)
    for given, from_logits in ((logit, True), (probability, False)):
        for labels in ([0, 1, 1], [[0], [1], [1]]):
            rows = as_rows(labels, given, from_logits=from_logits)
            np.testing.assert_allclose(
                to_numpy(rows.probabilities), expected, rtol=1e-6
            )
            np.testing.assert_array_equal(to_numpy(rows.labels), [0, 1, 1])


# A quarter of the least float above 0, and of the step below 1, as powers of 2.
ROUNDED = {
    "float16": (-26, -13),
    "bfloat16": (-126, -10),
    "float32": (-126, -26),
}


@pytest.mark.parametrize("dtype", ROUNDED)
def test_what_rounds_to_an_end_is_a_quarter_step_from_it(dtype):
    least, other = (power * np.log(2) for power in ROUNDED[dtype])
    given = ops.cast([[0.0], [1.0]], dtype)
    rows = as_rows([1, 0], given, from_logits=False)
    # The other class is certain, whose logarithm is as good as 0.
    found = to_numpy(rows.log_probability(rows.labels)).astype("float64")
    np.testing.assert_allclose(found, [least, other], rtol=5e-4)
    layer = kc.layers.LogProbabilities()
    odds = to_numpy(layer(given)).astype("float64")
    np.testing.assert_allclose(odds, [[least], [-other]], rtol=1e-6)
    both = ops.cast([[0.0, 1.0], [0.5, 0.5]], dtype)
    rows = as_rows([0, 1], both, from_logits=False)
    found = to_numpy(rows.log_probability(rows.labels)).astype("float64")
    np.testing.assert_allclose(found, [least, np.log(0.5)], rtol=1e-6)
    found = to_numpy(layer(both)).astype("float64")
    np.testing.assert_allclose(found[0], [least, 0], rtol=1e-6)


def test_a_unit_a_little_outside_of_probabilities_is_at_their_end():
    given = np.array([[-5e-4], [1 + 5e-4]], "float32")
    rows = as_rows([0, 1], given, from_logits=False)
    np.testing.assert_array_equal(to_numpy(rows.probabilities), np.eye(2))
    exact = np.array([[0.0], [1.0]], "float32")
    ends = as_rows([0, 1], exact, from_logits=False)
    np.testing.assert_array_equal(to_numpy(rows.logits), to_numpy(ends.logits))


@pytest.mark.parametrize("axis", [1, -2])
def test_classes_may_be_on_another_axis(axis):
    logits = np.arange(24, dtype="float32").reshape(2, 3, 4)
    labels = np.array([[0, 1, 2, 0], [2, 1, 0, 1]])
    expected = np.moveaxis(logits, 1, 2).reshape(8, 3)
    one_hot = np.moveaxis(np.eye(3, dtype="float32")[labels], 2, 1)
    for given in (labels, one_hot):
        rows = as_rows(given, logits, axis=axis)
        np.testing.assert_array_equal(to_numpy(rows.logits), expected)
        np.testing.assert_array_equal(to_numpy(rows.labels), labels.ravel())


def test_weights_broadcast_from_the_left():
    labels = np.zeros((2, 3, 4), "int32")
    logits = np.zeros((2, 3, 4, 5), "float32")
    rows = as_rows(labels, logits, sample_weight=np.array([1.0, 2.0]))
    np.testing.assert_array_equal(
        to_numpy(rows.weights), np.repeat([1.0, 2.0], 12)
    )
    each = np.arange(24.0).reshape(2, 3, 4)
    for given in (each, each[..., None]):
        rows = as_rows(labels, logits, sample_weight=given)
        np.testing.assert_array_equal(to_numpy(rows.weights), np.arange(24))


def test_a_constant_is_seen_and_a_symbol_is_not():
    assert concrete_value(ops.ones(2)) is not None
    found = []

    def function(x):
        found.append(concrete_value(x))
        return x

    compiled(function)(ops.ones(2))
    if compiled(function) is not function:
        assert found == [None]


def test_an_empty_batch_has_mean_zero():
    rows = as_rows(np.zeros(0, "int32"), np.zeros((0, 3), "float32"))
    assert float(rows.mean(rows.weights)) == 0.0


def test_a_float64_batch_keeps_its_digits():
    rows = as_rows(np.zeros(1, "int32"), np.zeros((1, 3)))
    assert rows.logits.shape == (1, 3)


def test_an_empty_class_axis():
    with pytest.raises(ValueError, match="class axis of known size"):
        as_rows(np.zeros(1), np.zeros((1, 0)))


def test_the_slope_at_the_ends_of_probabilities():
    # JAX would halve that of `clip` there.
    p = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]], "float32")
    loss = kc.losses.BrierLoss(from_logits=False)
    _, slope = value_and_gradient(lambda p: loss([1, 1], p), p)
    np.testing.assert_allclose(slope, p - np.eye(3)[[1, 1]], atol=1e-6)
    unit = np.array([[1.0], [0.0]], "float32")
    _, slope = value_and_gradient(lambda p: loss([0, 0], p), unit)
    np.testing.assert_allclose(slope, [[2.0], [0.0]], atol=1e-6)


@pytest.mark.backends("tensorflow", reason="others have no such tensors")
def test_rows_of_unequal_length_and_sparse_labels():
    import tensorflow as tf

    values = [[[0.8, 0.2], [0.6, 0.4]], [[0.5, 0.5]]]
    p = tf.ragged.constant(values, ragged_rank=1)
    y = tf.ragged.constant([[0, 1], [1]])
    layer = kc.layers.TemperatureScaling()
    metric = kc.metrics.MultilabelCalibrationError()
    for refused in (
        lambda: kc.metrics.calibration_errors(y, p),
        lambda: kc.metrics.calibration_errors(y.flat_values, p),
        lambda: kc.losses.FocalLoss()(y, p),
        lambda: kc.losses.FocalLoss()([0, 1, 1], p.flat_values, y),
        lambda: kc.metrics.ExpectedCalibrationError()(y, p),
        lambda: metric(y, y),
        lambda: layer.adapt(p, y),
        lambda: kc.plots.reliability_diagram(y, p),
    ):
        with pytest.raises(ValueError, match="flat_values"):
            refused()
    kc.losses.FocalLoss()(y.flat_values, p.flat_values)
    one_hot = np.eye(2, dtype="float32")
    sparse = tf.sparse.from_dense(one_hot)
    loss = kc.losses.BrierLoss(from_logits=False)
    p = p.flat_values[:2]
    assert float(loss(sparse, p)) == float(loss(one_hot, p))


NO_NUMBERS = {
    "text": np.array(["0", "1"]),
    "bytes": np.array([b"0", b"1"]),
    "list": ["0", "1"],
    "objects": np.array(["0", 1], object),
    "complex": np.array([0, 1j]),
    "dates": np.array(["2020-01-01", "2021-01-01"], "datetime64[D]"),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_text_and_other_things_that_are_no_numbers_are_refused(kind):
    bad, y = NO_NUMBERS[kind], np.array([0, 1])
    p = np.array([[0.25, 0.75], [0.5, 0.5]], "float32")
    rows = [bad, bad] if kind == "list" else np.stack([bad, bad])
    loss = kc.losses.BrierLoss()
    metric = kc.metrics.ExpectedCalibrationError()
    multi = kc.metrics.MultilabelCalibrationError()
    for what, refused in (
        ("Predictions", lambda: loss(y, rows)),
        ("Predictions", lambda: metric.update_state(y, rows)),
        ("Predictions", lambda: multi.update_state(p, rows)),
        ("Predictions", lambda: kc.losses.brier_loss(y, rows)),
        ("Labels", lambda: loss(bad, p)),
        ("Labels", lambda: metric.update_state(bad, p)),
        ("Labels", lambda: multi.update_state(rows, p)),
        ("Labels", lambda: kc.losses.brier_loss(rows, np.log(p))),
        ("Sample weights", lambda: loss(y, p, sample_weight=bad)),
        ("Sample weights", lambda: metric.update_state(y, p, bad)),
        ("Log-prob", lambda: kc.models.kl_divergence(rows, p)),
        (
            "`correctness`",
            lambda: kc.losses.crl(y, np.log(p), correctness=bad),
        ),
    ):
        with pytest.raises(ValueError, match=f"^{what}.* must be real numbers"):
            refused()


@pytest.mark.backends("tensorflow", reason="others have no such tensors")
@pytest.mark.parametrize("made", ["text", "complex"])
def test_tensors_that_are_no_numbers_are_refused(made):
    bad = ops.convert_to_tensor(NO_NUMBERS[made][None])
    with pytest.raises(ValueError, match="Predictions must be real numbers"):
        kc.losses.BrierLoss()(np.array([0]), bad)
    for layer in (kc.layers.TemperatureScaling(), kc.layers.LogProbabilities()):
        with pytest.raises(ValueError, match="takes one tensor of numbers"):
            layer(bad)


@pytest.mark.backends("tensorflow", reason="others' variables have a length")
def test_variables_are_arrays():
    import tensorflow as tf

    model = small_network(num_classes=3, inputs=2)
    x, y = np.eye(2, dtype="float32")[[0, 1] * 20], np.arange(40) % 3
    plain = kc.calibrate(model, x, y, verbose=0)
    given = kc.calibrate(model, tf.Variable(x), tf.Variable(y), verbose=0)
    np.testing.assert_array_equal(
        given.predict(x, verbose=0), plain.predict(x, verbose=0)
    )


def test_label_rows_in_half_precision_are_off_by_what_it_rounds():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 5)).astype("float32")
    # Two rows mixed in half precision, as `MixUp` does, round three times.
    first, second = rng.dirichlet(np.ones(5), (2, 200)).astype("float32")
    mixed = 0.3 * ops.cast(first, "bfloat16")
    mixed = mixed + 0.7 * ops.cast(second, "bfloat16")
    soft = to_numpy(ops.cast(mixed, "float32")).astype("float64")
    assert np.abs(soft.sum(axis=-1) - 1).max() > 1e-3
    loss = kc.losses.LabelSmoothing(smoothing=0.0, from_logits=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = -(soft * log_p).sum(axis=-1).mean()
    for function in (loss, compiled(lambda y, z: loss(y, z))):
        found = function(mixed, ops.convert_to_tensor(logits))
        assert float(found) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="must be rows that sum to one"):
        kc.losses.mdca(mixed * 0.9, logits)
