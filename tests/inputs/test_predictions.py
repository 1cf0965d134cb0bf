"""Arrays as rows that count: layouts, types and weights."""

import keras
import ml_dtypes
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.inputs import rules
from keras_calib.inputs.predictions import as_maps
from keras_calib.inputs.predictions import read_predictions

pytestmark = pytest.mark.one_backend
RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), size=(2, 4, 5))
IDS = RNG.integers(0, 3, (2, 4, 5))


@pytest.mark.parametrize("labels", ["ids", "rows", "soft rows"])
def test_classes_may_be_on_any_axis(labels):
    given = IDS
    if labels != "ids":
        given = np.eye(3)[IDS]
    if labels == "soft rows":
        given = 0.9 * given + 0.1 / 3
    expected = read_predictions(given, P)
    moved = given if labels == "ids" else np.moveaxis(given, -1, 1)
    found = read_predictions(moved, np.moveaxis(P, -1, 1), axis=1)
    for name in ("labels", "probabilities", "unit"):
        one, two = getattr(found, name), getattr(expected, name)
        np.testing.assert_array_equal(one, two)
    assert (found.targets is None) == (labels != "soft rows")
    if labels == "soft rows":
        np.testing.assert_array_equal(found.targets, expected.targets)


def test_the_first_of_equal_probabilities_is_the_prediction():
    # As many rows as are searched class by class, and a few.
    p = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.2, 0.2, 0.6]])
    for repeats in (1, 1000):
        for label, expected in enumerate(np.eye(3)[[0, 1, 2]]):
            labels = np.full(3 * repeats, label)
            data = read_predictions(labels, np.tile(p, (repeats, 1)))
            confidence, correct = data.top_label
            np.testing.assert_array_equal(correct, np.tile(expected, repeats))
            np.testing.assert_array_equal(confidence[:3], [0.5, 0.5, 0.6])


def test_weights_of_a_batch_stay_as_they_are():
    rows, ids = P.reshape(-1, 3), IDS.reshape(-1)
    weights = np.linspace(1.0, 2.0, 40)
    found = read_predictions(ids, rows, weights, relative=False)
    np.testing.assert_array_equal(found.weights, weights)
    assert read_predictions(ids, rows, weights).weights.sum() == 40
    ones = read_predictions(ids, rows, np.ones(40), relative=False)
    assert ones.weights is None


def test_maps_keep_the_places_of_pixels():
    logits = (10 * np.log(P)).astype("int64")
    void = np.where(np.arange(5) == 2, 255, IDS)
    scores, labels, weights = as_maps(logits, void, ignore_class=255)
    assert scores.dtype == "float32"
    np.testing.assert_array_equal(scores, logits)
    np.testing.assert_array_equal(weights, void != 255)
    np.testing.assert_array_equal(labels, np.where(void == 255, 0, void))
    rows = np.eye(3)[IDS]
    np.testing.assert_array_equal(as_maps(logits, rows)[1], IDS)
    with pytest.raises(ValueError, match="Images need one class per pixel"):
        as_maps(logits, 0.9 * rows + 0.1 / 3)


def test_a_mask_that_is_given_counts_for_tensors_too():
    p = keras.ops.convert_to_tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    mask = np.array([True, False, True])
    found = read_predictions([0, 1, 1], p, mask=mask)
    np.testing.assert_array_equal(found.labels, [0, 1])
    assert found.probabilities[:, 0] == pytest.approx([0.9, 0.6])


@pytest.mark.parametrize(
    ("given", "expected"),
    [([[0.5], [1.0]], True), ([[0.5], [1.5]], False), ([[-0.5]], False)],
)
def test_one_unit_is_a_probability_up_to_1(given, expected):
    assert rules.are_probabilities(np.array(given)) is expected


def test_label_rows_in_half_precision_become_float32():
    half = ml_dtypes.bfloat16
    first, second = RNG.dirichlet(np.ones(3), (2, 200)).astype(half)
    mixed = half(0.3) * first + half(0.7) * second
    assert np.abs(mixed.astype("float64").sum(axis=-1) - 1).max() > 1e-3
    p = RNG.dirichlet(np.ones(3), 200)
    data = read_predictions(mixed, p)
    np.testing.assert_array_equal(data.targets, mixed.astype("float32"))
    assert data.targets.dtype == "float32"
    with pytest.raises(ValueError, match="must be rows that sum to one"):
        read_predictions(mixed * half(0.9), p)


@pytest.mark.parametrize("num_classes", [2, 100])
def test_brier_score_of_sure_rows_keeps_its_digits(num_classes):
    rest = 1e-6 / (num_classes - 1)
    p = np.full((4, num_classes), rest, "float32")
    p[:, 0] = 1 - p[:, 1:].sum(axis=1)
    exact = p.astype("float64")
    expected = (1 - exact[0, 0]) ** 2 + (exact[0, 1:] ** 2).sum()
    found = read_predictions(np.zeros(4, int), p).brier()
    np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.parametrize("shape", [(6, 7), (6, 2, 7)])
def test_units_of_tokens_without_a_class_axis_are_told_of(shape):
    rng = np.random.default_rng(1)
    p = rng.random(shape)
    labels = (rng.random(shape) < p).astype(int)
    words = r"needs a class axis: pass `y_pred\[..., None\]`"
    with pytest.raises(ValueError, match=f"rows that sum to one.*{words}"):
        read_predictions(labels, p)
    # One label of 1 in each row, by chance.
    with pytest.raises(ValueError, match=f"a row that sums to .*{words}"):
        read_predictions(np.eye(7)[labels.argmax(axis=-1)], p)
    data = read_predictions(labels, p[..., None])
    assert data.num_classes == 2 and len(data.labels) == labels.size


def test_units_of_tokens_are_not_told_of_for_other_rows():
    with pytest.raises(ValueError, match="rows that sum to one") as soft:
        read_predictions(0.9 * np.eye(3)[IDS], P)
    with pytest.raises(ValueError, match="must be a probability") as logits:
        read_predictions(np.eye(3)[IDS], 9 * P - 1)
    with pytest.raises(ValueError, match="must be a probability") as ids:
        read_predictions(IDS, 0.9 * P)
    for raised in (soft, logits, ids):
        assert "class axis" not in str(raised.value)


def test_calibrate_tells_of_units_of_tokens_without_a_class_axis():
    inputs = keras.Input((7, 2))
    p = keras.layers.Dense(1, activation="sigmoid")(inputs)
    flat = keras.Model(inputs, keras.layers.Reshape((7,))(p))
    x = np.random.default_rng(0).normal(size=(6, 7, 2)).astype("float32")
    y = (x[..., 0] > 0).astype(int)
    with pytest.raises(ValueError, match=r"`keras.layers.Reshape\(\(time, 1"):
        kc.calibrate(flat, x, y, verbose=0)
    whole = keras.layers.Reshape((7, 1))(flat.output)
    kc.calibrate(keras.Model(inputs, whole), x, y, from_logits=False, verbose=0)
