import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.inputs.predictions import top_label
from keras_calib.metrics import _histogram as histogram
from tests.helpers import JIT_BUT_ON_TORCH
from tests.helpers import exact_error
from tests.helpers import read_predictions
from tests.helpers import small_network
from tests.helpers import to_numpy
from tests.metrics.oracles import CONFIDENCE
from tests.metrics.oracles import CORRECT
from tests.metrics.oracles import LABELS
from tests.metrics.oracles import PROBABILITIES
from tests.metrics.oracles import random_predictions

INFINITY = float("inf")
KINDS = [
    ("width", 1),
    ("width", 2),
    ("width", INFINITY),
    ("mass", 1),
    ("mass", 2),
]

REAL = {
    "wideresnet-16-4-cifar-10": (
        0.05371630,
        0.07490146,
        0.26238924,
        0.05371630,
        0.09262247,
    ),
    "lenet-5-cifar-100": (
        0.01487847,
        0.02173524,
        0.30626957,
        0.01638942,
        0.01909643,
    ),
    "wideresnet-16-4-cifar-100": (
        0.05806039,
        0.06823371,
        0.13359747,
        0.05681854,
        0.07092400,
    ),
}


def streamed(labels, predictions, batch_size=1000, **arguments):
    metric = kc.metrics.ExpectedCalibrationError(**arguments)
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        metric.update_state(labels[part], predictions[part])
    return float(metric.result())


@pytest.mark.parametrize(
    ("binning", "norm", "expected"),
    [
        ("width", 1, 0.2),
        ("width", 2, 0.244842636538),
        ("width", INFINITY, 0.5),
        ("mass", 1, 0.233333333333),
        ("mass", 2, 0.268774223715),
    ],
)
def test_exact_value_where_every_edge_is_hit(binning, norm, expected):
    error = exact_error(CONFIDENCE, CORRECT, 5, binning=binning, norm=norm)
    assert error == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("binning", "norm", "expected"),
    [
        ("width", 1, 0.19625),
        ("width", 2, 0.213395173329),
        ("width", INFINITY, 0.3),
        ("mass", 1, 0.19625),
        ("mass", 2, 0.257791097596),
    ],
)
def test_small_multiclass_set(binning, norm, expected):
    confidence, correct = top_label(LABELS, PROBABILITIES)
    error = exact_error(confidence, correct, 5, binning=binning, norm=norm)
    assert error == pytest.approx(expected, abs=1e-12)
    value = streamed(
        LABELS, PROBABILITIES, 3, num_bins=5, binning=binning, norm=norm
    )
    assert value == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", REAL)
def test_real_predictions(name, data_folder):
    probabilities, labels = read_predictions(data_folder, name)
    confidence, correct = top_label(labels, probabilities)
    for (binning, norm), expected in zip(KINDS, REAL[name], strict=True):
        error = exact_error(
            confidence.astype("float64"),
            correct,
            15,
            binning=binning,
            norm=norm,
        )
        assert error == pytest.approx(expected, abs=5.1e-9)
        value = streamed(labels, probabilities, binning=binning, norm=norm)
        tolerance = 1e-7 if binning == "width" else 1e-3
        assert value == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(("binning", "norm"), KINDS)
def test_batches_and_order_do_not_matter(binning, norm):
    labels, probabilities = random_predictions(200)
    order = np.random.default_rng(1).permutation(len(labels))
    values = [
        streamed(
            labels[order],
            probabilities[order],
            size,
            binning=binning,
            norm=norm,
        )
        for size in (7, 64)
    ]
    values.append(
        streamed(labels, probabilities, 200, binning=binning, norm=norm)
    )
    assert values == pytest.approx([values[0]] * 3, abs=1e-6)


@pytest.mark.parametrize("norm", [1, 2])
def test_mass_from_cells_is_within_its_bound(norm):
    labels, probabilities = random_predictions(2000)
    confidence, correct = top_label(labels, probabilities)
    error = exact_error(confidence, correct, 15, binning="mass", norm=norm)
    value = streamed(labels, probabilities, binning="mass", norm=norm)
    cell = np.searchsorted(histogram.cell_edges(), confidence)
    largest = np.bincount(cell).max() / len(cell)
    if norm == 1:
        assert abs(value - error) <= 2 * 14 * largest
    assert value == pytest.approx(error, abs=5e-3)


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_weight_two_is_a_repeated_sample(binning):
    labels, probabilities = random_predictions(100)
    weights = np.random.default_rng(2).integers(0, 3, 100)
    metric = kc.metrics.ExpectedCalibrationError(binning=binning)
    metric.update_state(labels, probabilities, sample_weight=weights)
    repeated = np.repeat(np.arange(100), weights)
    expected = streamed(
        labels[repeated], probabilities[repeated], binning=binning
    )
    assert float(metric.result()) == pytest.approx(expected, abs=1e-6)


def test_exact_weights_are_repeated_samples():
    labels, probabilities = random_predictions(100)
    confidence, correct = top_label(labels, probabilities)
    weights = np.random.default_rng(2).integers(0, 3, 100)
    repeated = np.repeat(np.arange(100), weights)
    for binning, norm in KINDS:
        weighted = exact_error(
            confidence,
            correct,
            15,
            binning=binning,
            norm=norm,
            weights=weights.astype(float),
        )
        expected = exact_error(
            confidence[repeated],
            correct[repeated],
            15,
            binning=binning,
            norm=norm,
        )
        assert weighted == pytest.approx(expected, abs=1e-9)


def test_counts_go_on_beyond_what_float32_counts():
    metric = kc.metrics.ExpectedCalibrationError(num_bins=2)
    step = np.array([[2.0**24, 1.0], [1.0, 0.0]])
    metric.add_to("sums", step)
    for _ in range(100):
        metric.add_to("sums", np.array([[1.0, 0.0], [0.0, 0.0]]))
    total, rest = (to_numpy(v).astype(float) for v in metric.variables)
    assert (total + rest)[0, 0] == 2.0**24 + 100


def test_small_confidences_are_not_lost_in_a_large_sum():
    metric = kc.metrics.ExpectedCalibrationError(num_bins=1)
    for _ in range(1000):
        metric.add_to("sums", np.array([[1e4], [0.1]]))
    weight, residual = to_numpy(metric.sums("sums"))
    assert weight == pytest.approx(1e7, rel=1e-7)
    assert residual == pytest.approx(100.0, rel=1e-6)


def test_segmentation_with_a_void_class():
    labels, probabilities = random_predictions(24)
    expected = streamed(labels[:20], probabilities[:20])
    labels[20:] = 255
    metric = kc.metrics.ExpectedCalibrationError(ignore_class=255)
    metric.update_state(
        labels.reshape(2, 3, 4), probabilities.reshape(2, 3, 4, 4)
    )
    assert float(metric.result()) == pytest.approx(expected, abs=1e-6)


def test_logits_in_the_unit_interval_are_not_taken_for_probabilities():
    # torchmetrics 1.9.0 guesses from the values of each batch.
    logits = np.array([[0.9, 0.3], [0.2, 0.8]], "float32")
    metric = kc.metrics.ExpectedCalibrationError(from_logits=True)
    metric.update_state([0, 1], logits)
    confidence = 1 / (1 + np.exp([-0.6, -0.6]))
    expected = np.mean(1 - confidence)
    assert float(metric.result()) == pytest.approx(expected, rel=1e-5)


def test_half_precision_logits():
    labels = np.array([0, 1])
    logits = np.array([[10.0, 0.0], [0.0, 12.0]], "float16")
    metric = kc.metrics.ExpectedCalibrationError(from_logits=True)
    metric.update_state(labels, logits)
    confidence = 1 / (1 + np.exp([-10.0, -12.0]))
    assert float(metric.result()) == pytest.approx(
        np.mean(1 - confidence), rel=1e-2
    )


def test_one_sigmoid_unit():
    metric = kc.metrics.ExpectedCalibrationError(num_bins=1)
    metric.update_state([[1], [0]], [[0.9], [0.2]])
    # Both predictions are right, with confidence 0.9 and 0.8.
    assert float(metric.result()) == pytest.approx(0.15, abs=1e-6)


def test_no_sample_gives_zero():
    for binning, norm in KINDS:
        metric = kc.metrics.ExpectedCalibrationError(binning=binning, norm=norm)
        assert float(metric.result()) == 0.0
    nothing = np.zeros(0)
    assert exact_error(nothing, nothing) == 0.0


def test_reset():
    labels, probabilities = random_predictions(50)
    metric = kc.metrics.ExpectedCalibrationError()
    metric.update_state(labels, probabilities)
    assert float(metric.result()) > 0
    metric.reset_state()
    assert float(metric.result()) == 0.0


@pytest.mark.parametrize(("binning", "norm"), KINDS)
def test_config_round_trip(binning, norm):
    metric = kc.metrics.ExpectedCalibrationError(
        num_bins=10, binning=binning, norm=norm, ignore_class=3
    )
    saved = keras.saving.serialize_keras_object(metric)
    again = keras.saving.deserialize_keras_object(saved)
    assert again.get_config() == metric.get_config()
    assert again.norm == norm


@pytest.mark.parametrize("jit_compile", [JIT_BUT_ON_TORCH, "auto"])
def test_fit_early_stopping_and_saving(jit_compile, digits, tmp_path):
    (x, y), validation, _ = digits
    metrics = [
        kc.metrics.ExpectedCalibrationError(from_logits=True, name="ece"),
        kc.metrics.ExpectedCalibrationError(
            from_logits=True, binning="mass", name="adaptive"
        ),
    ]
    model = small_network()
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=metrics,
        jit_compile=jit_compile,
    )
    # `mode="auto"` must know that smaller is better.
    stop = keras.callbacks.EarlyStopping("val_ece", patience=1)
    history = model.fit(
        x,
        y,
        validation_data=validation,
        epochs=2,
        callbacks=[stop],
        verbose=0,
    ).history
    for key in ("ece", "val_ece", "adaptive", "val_adaptive"):
        assert len(history[key]) >= 1
    found = model.evaluate(*validation, verbose=0, return_dict=True)
    logits = model.predict(validation[0], verbose=0)
    expected = streamed(validation[1], logits, from_logits=True)
    assert found["ece"] == pytest.approx(expected, abs=1e-6)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert again.evaluate(
        *validation, verbose=0, return_dict=True
    ) == pytest.approx(found, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_bins": 0}, "at least 1"),
        ({"binning": "size"}, '"width"'),
        ({"norm": 3}, "1, 2"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        kc.metrics.ExpectedCalibrationError(**arguments)


def test_bad_input():
    metric = kc.metrics.ExpectedCalibrationError()
    with pytest.raises(ValueError, match="from_logits=True"):
        metric.update_state([0], [[3.0, -1.0]])
    with pytest.raises(ValueError, match="0 to 1"):
        metric.update_state([2], [[0.5, 0.5]])
    with pytest.raises(ValueError, match="do not fit"):
        metric.update_state([0, 1], [[0.5, 0.5]])
    # Nothing was half counted.
    assert float(metric.result()) == 0.0
    metric.update_state([0], [[0.75, 0.25]])
    assert float(metric.result()) == pytest.approx(0.25)
