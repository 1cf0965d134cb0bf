"""Every streaming metric: equal to the whole array, however it is cut."""

import copy
import csv
import pathlib
import pickle

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.label_binned import label_binned_error
from keras_calib.inputs.predictions import top_label
from keras_calib.metrics._brier_score import decompose
from keras_calib.ops.binning import centers
from keras_calib.ops.binning import interior_edges
from tests.helpers import exact_error
from tests.helpers import small_network
from tests.helpers import to_numpy
from tests.metrics.cases import ALL
from tests.metrics.cases import APPROXIMATE
from tests.metrics.cases import EXACT
from tests.metrics.oracles import GENERATED_SET
from tests.metrics.oracles import generated_set
from tests.metrics.oracles import random_predictions
from tests.metrics.oracles import softmax

# Nearly all batches have 100 rows: JAX compiles anew for each size.
BATCH = 100


def fed(metric, labels, predictions, weights=None):
    for start in range(0, len(labels), BATCH):
        part = slice(start, start + BATCH)
        weight = None if weights is None else weights[part]
        metric.update_state(labels[part], predictions[part], weight)
    return metric


def value(metric):
    return float(metric.result())


@pytest.mark.parametrize("name", ALL)
def test_streaming_is_the_value_of_the_whole_array(name):
    labels, p = random_predictions(2000)
    exact = kc.metrics.calibration_errors(labels, p, metrics=[name])[name]
    tolerance = APPROXIMATE[name][1] if name in APPROXIMATE else 1e-6
    metric = fed(ALL[name](), labels, p)
    assert value(metric) == pytest.approx(exact, abs=tolerance)


@pytest.mark.parametrize("name", EXACT)
def test_streaming_gives_the_known_values(name):
    labels, logits = generated_set()
    if name not in GENERATED_SET:
        pytest.skip("no value is known")
    metric = fed(EXACT[name](), labels, softmax(logits))
    assert value(metric) == pytest.approx(GENERATED_SET[name], abs=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_any_split_order_and_merge_gives_the_same_sums(name):
    labels, p = random_predictions(300)
    whole = ALL[name]()
    whole.update_state(labels, p)
    order = np.random.default_rng(1).permutation(300)
    cut = fed(ALL[name](), labels[order], p[order])
    merged = ALL[name]()
    parts = [fed(ALL[name](), labels[i::3], p[i::3]) for i in range(3)]
    merged.merge_state([ALL[name](), *parts])
    for other in (cut, merged):
        for key in whole._sums:
            one, two = to_numpy(whole.sums(key)), to_numpy(other.sums(key))
            np.testing.assert_allclose(one, two, rtol=1e-6, atol=2e-6)
            # Counts are whole numbers, and stay so.
            rows = one.reshape(-1, one.shape[-1])[0] if one.ndim else one
            if key == "sums" and one.ndim >= 2:
                np.testing.assert_array_equal(rows, np.rint(rows))
                np.testing.assert_array_equal(one[0], two[0])
        assert value(other) == pytest.approx(value(whole), abs=2e-6)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda metric: pickle.loads(pickle.dumps(metric))]
)
def test_a_copy_keeps_the_sums(name, copied):
    labels, p = random_predictions(300)
    metric = fed(ALL[name](), labels[:200], p[:200])
    again = copied(metric)
    assert value(again) == value(metric)
    for each in (again, metric):
        each.update_state(labels[200:], p[200:])
    assert value(again) == value(metric)
    assert value(copied(ALL[name]())) == value(ALL[name]())


@pytest.mark.parametrize("name", ALL)
def test_weights_void_labels_and_pixels(name):
    labels, p = random_predictions(BATCH)
    weights = np.repeat([0.0, 1.0, 2.0], [25, 50, 25]).astype("float32")
    weights = np.random.default_rng(2).permutation(weights)
    rows = np.repeat(np.arange(BATCH), weights.astype(int))
    expected = value(fed(ALL[name](), labels[rows], p[rows]))
    if "debiased" in name:
        # Two copies are two samples, a weight of two is one.
        rows, weights = np.arange(BATCH), np.full(BATCH, 2.0)
        expected = value(fed(ALL[name](), labels[rows], p[rows]))
    metric = fed(ALL[name](), labels, p, weights)
    assert value(metric) == pytest.approx(expected, abs=2e-6)
    make = type(metric)
    config = {**metric.get_config(), "ignore_class": 255}
    void = np.where(weights > 0, labels, 255)
    metric = make.from_config(config)
    shape = (5, 4, 5)
    metric.update_state(
        void.reshape(shape),
        p.reshape(*shape, 4),
        sample_weight=weights.reshape(shape),
    )
    assert value(metric) == pytest.approx(expected, abs=2e-6)
    metric = make.from_config({**config, "axis": 1})
    metric.update_state(
        void.reshape(shape),
        np.moveaxis(p.reshape(*shape, 4), -1, 1),
        sample_weight=weights.reshape(shape),
    )
    assert value(metric) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("name", ALL)
def test_nothing_counted_config_and_reset(name):
    labels, p = random_predictions(BATCH)
    metric = ALL[name]()
    assert value(metric) == 0.0
    metric.update_state(labels, p, sample_weight=np.zeros(BATCH))
    assert value(metric) == 0.0
    metric.update_state(labels, p)
    before = value(metric)
    metric.reset_state()
    assert value(metric) == 0.0
    saved = keras.saving.serialize_keras_object(metric)
    again = keras.saving.deserialize_keras_object(saved)
    assert again.get_config() == metric.get_config()
    again.update_state(labels, p)
    assert value(again) == pytest.approx(before, abs=1e-7)


def test_nothing_counted_is_an_error_of_exact_functions_and_told():
    words = "streaming metric is 0; `calibration_errors`, `clinical_panel` and"
    page = pathlib.Path(kc.metrics.__file__).with_name("README.md").read_text()
    assert words in " ".join(page.split())
    exact = (
        kc.metrics.calibration_errors,
        kc.metrics.clinical_panel,
        kc.metrics.consistency_test,
    )
    p = np.full((2, 2), 0.5)
    for function in exact:
        assert f"`{function.__name__}`" in page
        assert "Without samples" not in function.__doc__
        with pytest.raises(ValueError, match="No row counts"):
            function(np.zeros(0, int), p[:0])
        with pytest.raises(ValueError, match="No row counts"):
            function(np.zeros(2, int), p, np.zeros(2))


@pytest.mark.parametrize("name", ALL)
def test_logits_half_precision_and_one_hot_labels(name):
    labels, logits = generated_set(100)
    logits = logits.astype("float16")
    expected = value(
        fed(ALL[name](), labels, softmax(logits.astype("float32")))
    )
    config = {**ALL[name]().get_config(), "from_logits": True}
    metric = type(ALL[name]()).from_config(config)
    metric.update_state(np.eye(5)[labels], logits)
    assert value(metric) == pytest.approx(expected, abs=1e-5)


def test_a_metric_looks_at_the_first_batch_after_each_reset():
    labels, p = random_predictions(20, 3, seed=0)
    metric = kc.metrics.ExpectedCalibrationError(from_logits=True)
    for _ in range(2):
        metric.update_state(labels, np.log(p))
        metric.reset_state()
        with pytest.raises(ValueError, match="from_logits"):
            metric.update_state(labels, p)
        metric.reset_state()


@pytest.mark.parametrize("name", ALL)
def test_what_cannot_be_raised_in_compiled_code_is_nan(name):
    metric = ALL[name]()
    metric._values_seen = True  # as after a first batch, or in compiled code
    metric.update_state([0, 1], [[0.5, 0.5, 0.3], [0.2, 0.3, 0.5]])
    assert np.isnan(value(metric))


@pytest.mark.parametrize("name", ALL)
def test_bad_input_leaves_the_state_alone(name):
    metric = ALL[name]()
    with pytest.raises(ValueError, match="from_logits=True"):
        metric.update_state([0], [[3.0, -1.0]])
    with pytest.raises(ValueError, match="0 to 1"):
        metric.update_state([2], [[0.5, 0.5]])
    with pytest.raises(ValueError, match="negative"):
        metric.update_state([0], [[0.5, 0.5]], sample_weight=[-1.0])
    assert value(metric) == 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: kc.metrics.AdaptiveCalibrationError(norm=float("inf")),
        lambda: kc.metrics.BrierScore(num_bins=0),
        lambda: kc.metrics.ClasswiseCalibrationError(threshold=1.0),
        lambda: kc.metrics.DebiasedCalibrationError(binning="size"),
        lambda: kc.metrics.LabelBinnedCalibrationError(norm=3),
        lambda: kc.metrics.MultilabelCalibrationError(average="weighted"),
        lambda: kc.metrics.NegativeLogLikelihood(epsilon=1.0),
        lambda: kc.metrics.SmoothCalibrationError(bandwidth=0.0),
        lambda: kc.metrics.SweepCalibrationError(max_bins=0),
        lambda: kc.metrics.BinaryCalibrationError(num_bins=1.5),
    ],
    ids=lambda make: str(make.__code__.co_names[-1]),
)
def test_bad_arguments(make):
    with pytest.raises(ValueError, match="Received"):
        make()


def test_the_number_of_classes_cannot_change():
    for metric in (
        kc.metrics.ClasswiseCalibrationError(num_classes=2),
        kc.metrics.BrierScore(num_classes=2),
    ):
        with pytest.raises(ValueError, match="counts 2 classes"):
            metric.update_state([0], [[0.5, 0.3, 0.2]])
    with pytest.raises(ValueError, match="Classwise"):
        kc.metrics.BinaryCalibrationError().update_state([0], [[0.5, 0.3, 0.2]])


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_the_positive_class(binning):
    rng = np.random.default_rng(0)
    p = rng.random(500).astype("float32")
    labels = (rng.random(500) < p**2).astype("int32")
    expected = exact_error(p, labels.astype(float), 15, binning=binning)
    for predictions in (p[:, None], np.stack([1 - p, p], axis=1)):
        metric = kc.metrics.BinaryCalibrationError(binning=binning)
        metric.update_state(labels, predictions)
        assert value(metric) == pytest.approx(expected, abs=2e-3)
    metric = kc.metrics.BinaryCalibrationError(
        binning=binning, from_logits=True
    )
    metric.update_state(labels[:, None], np.log(p / (1 - p))[:, None])
    assert value(metric) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("binning", ["width", "mass"])
@pytest.mark.parametrize("average", ["macro", "micro"])
def test_labels_that_do_not_exclude_each_other(binning, average):
    rng = np.random.default_rng(0)
    p = rng.random((400, 3)).astype("float32")
    labels = (rng.random((400, 3)) < p ** [0.5, 1, 2]).astype("int32")
    known = rng.random((400, 3)) < 0.8
    error = exact_error

    def events(k):
        return p[:, k][known[:, k]], labels[:, k][known[:, k]].astype(float)

    if average == "macro":
        expected = np.mean(
            [error(*events(k), 15, binning=binning) for k in range(3)]
        )
    else:
        together = [
            np.concatenate(z) for z in zip(*map(events, range(3)), strict=True)
        ]
        expected = error(*together, 15, binning=binning)
    metric = kc.metrics.MultilabelCalibrationError(
        binning=binning, average=average, ignore_class=-1
    )
    given = np.where(known, labels, -1)
    for part in (slice(0, 150), slice(150, 400)):
        metric.update_state(given[part], p[part])
    assert value(metric) == pytest.approx(expected, abs=3e-3)
    first = kc.metrics.MultilabelCalibrationError(
        binning=binning, average=average, ignore_class=-1, axis=1
    )
    first.update_state(given[:, :, None], p[:, :, None])
    assert value(first) == pytest.approx(value(metric), abs=1e-6)
    assert kc.metrics.MultilabelCalibrationError().result() == 0.0
    with pytest.raises(ValueError, match="same shape"):
        metric.update_state([0, 1], [[0.5, 0.5, 0.5]] * 2)


def test_weights_of_labels_that_do_not_exclude_each_other():
    labels = np.array([[1, 0], [0, 1], [1, 1]])
    p = np.array([[0.9, 0.3], [0.6, 0.6], [0.2, 0.4]])
    make = kc.metrics.MultilabelCalibrationError
    expected = value(fed(make(), labels[[0, 1, 1]], p[[0, 1, 1]]))
    metric = fed(make(), labels, p, np.array([1.0, 2.0, 0.0]))
    assert value(metric) == pytest.approx(expected, abs=1e-6)


def test_the_error_of_each_class():
    labels, p = random_predictions(300)
    metric = fed(kc.metrics.ClasswiseCalibrationError(), labels, p)
    expected = [
        exact_error(p[:, k], (labels == k).astype(float)) for k in range(4)
    ]
    np.testing.assert_allclose(
        to_numpy(metric.per_class()), expected, atol=1e-6
    )


@pytest.mark.parametrize("hard", [True, False], ids=["classes", "rows"])
def test_epsilon_is_the_least_probability_of_logits(hard):
    logits = np.array([[20.0, 0.0, 1.0], [0.0, 30.0, 2.0]], "float32")
    labels = np.array([1, 1])
    rows = np.eye(3)[labels] if hard else np.full((2, 3), 1 / 3)
    metric = kc.metrics.NegativeLogLikelihood(epsilon=1e-4, from_logits=True)
    metric.update_state(labels if hard else rows, logits)
    least = np.maximum(softmax(logits), 1e-4)
    expected = -(rows * np.log(least)).sum(axis=1).mean()
    assert value(metric) == pytest.approx(expected, rel=1e-5)
    assert float(metric.impossible()) == 0.0


def test_the_largest_of_the_classwise_errors():
    labels, p = random_predictions(500)
    largest = kc.metrics.ClasswiseCalibrationError(norm=float("inf"))
    mean = kc.metrics.ClasswiseCalibrationError()
    errors = to_numpy(fed(mean, labels, p).per_class())
    # Every error is then the largest gap of a bin.
    gaps = to_numpy(fed(largest, labels, p).per_class())
    assert value(largest) == pytest.approx(gaps.max(), rel=1e-6)
    assert (gaps >= errors - 1e-6).all() and gaps.max() > gaps.min()


@pytest.mark.parametrize("norm", [1, 2])
def test_labels_are_averaged_in_bins_of_equal_mass(norm):
    labels, p = random_predictions(2000)
    metric = kc.metrics.LabelBinnedCalibrationError(binning="mass", norm=norm)
    fed(metric, labels, p)
    events = sort_events(*top_label(labels, p))
    bins = events.bins(events.mass_cuts(15, "split"))
    expected = label_binned_error(bins, norm)
    assert value(metric) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("name", ["ExpectedCalibration", "KSCalibration"])
def test_bad_input_is_refused_at_first_and_gives_nan_later(name):
    metric = getattr(kc.metrics, f"{name}Error")()
    p, bad = ops.convert_to_tensor([[0.9, 0.1], [0.4, 0.6]]), [0, 2]
    with pytest.raises(ValueError, match="from 0 to 2"):
        metric.update_state(bad, p)
    metric.update_state([0, 1], p)
    # Both are underconfident: the KS error is the same.
    assert value(metric) == pytest.approx((0.1 + 0.4) / 2, abs=1e-3)
    with pytest.raises(ValueError, match="do not fit"):
        metric.update_state([0, 1], p, [1.0, 1.0, 1.0])
    assert value(metric) == pytest.approx((0.1 + 0.4) / 2, abs=1e-3)
    metric.update_state(bad, p)
    assert np.isnan(value(metric))


def test_the_parts_of_the_brier_score_add_up():
    labels, p = random_predictions(500)
    weights = np.random.default_rng(0).random(500).astype("float32")
    metric = fed(kc.metrics.BrierScore(), labels, p, weights)
    parts = metric.decomposition()
    assert parts["score"] == pytest.approx(value(metric), abs=1e-6)
    assert parts["refinement"] == (parts["uncertainty"] - parts["resolution"])
    classwise = kc.metrics.ClasswiseCalibrationError(norm=2)
    fed(classwise, labels, p, weights)
    # Calibration is the squared classwise error, summed over the classes.
    assert parts["calibration"] == pytest.approx(
        4 * value(classwise) ** 2, abs=1e-6
    )
    assert kc.metrics.BrierScore().decomposition()["score"] == 0.0
    alone = fed(kc.metrics.BrierScore(num_bins=None), labels, p, weights)
    assert value(alone) == pytest.approx(value(metric), abs=1e-6)
    with pytest.raises(ValueError, match="needs bins"):
        alone.decomposition()


def test_the_parts_of_the_brier_score_where_they_are_known():
    # The top label of the small set as a forecast of one event: 0.1172375 =
    # 0.0455375 - 0.140625 + 0.234375 + 0.00295 - 0.025. Both classes of a
    # sigmoid unit count, so that it all comes twice, but in the reliability
    # of bins that are closed on the other side.
    from tests.metrics.oracles import LABELS
    from tests.metrics.oracles import PROBABILITIES

    confidence, correct = top_label(LABELS, PROBABILITIES)
    metric = kc.metrics.BrierScore(num_bins=5)
    metric.update_state(correct.astype("int32"), confidence[:, None])
    parts = metric.decomposition()
    assert parts["score"] == pytest.approx(2 * 0.1172375, abs=1e-6)
    assert parts["uncertainty"] == pytest.approx(2 * 0.234375, abs=1e-6)
    sums = to_numpy(metric.sums("sums")).reshape(6, 2, 5)[:, 1:]
    found = decompose(sums.astype(float), centers(interior_edges(5)))
    expected = (0.0455375, 0.140625, 0.234375, 0.00295 - 0.025)
    assert found == pytest.approx(expected, abs=1e-6)


def test_soft_labels_of_the_brier_score_add_up_too():
    rng = np.random.default_rng(0)
    p, targets = (
        rng.dirichlet([1, 1, 1], 100).astype("float32") for _ in range(2)
    )
    metric = kc.metrics.BrierScore()
    metric.update_state(targets, p)
    expected = ((p - targets) ** 2).sum(axis=1).mean()
    assert value(metric) == pytest.approx(expected, abs=1e-6)
    assert metric.decomposition()["score"] == pytest.approx(expected, abs=1e-6)


def test_an_impossible_label_makes_the_likelihood_infinite():
    metric = kc.metrics.NegativeLogLikelihood()
    metric.update_state([1, 0], [[1.0, 0.0], [0.5, 0.5]])
    assert value(metric) == np.inf
    assert float(metric.impossible()) == 1.0
    metric.update_state([0], [[0.5, 0.5]])
    assert value(metric) == np.inf
    capped = kc.metrics.NegativeLogLikelihood(epsilon=1e-7)
    capped.update_state([1, 0], [[1.0, 0.0], [0.5, 0.5]])
    expected = (-np.log(1e-7) + np.log(2)) / 2
    assert value(capped) == pytest.approx(expected, rel=1e-5)
    logits = kc.metrics.NegativeLogLikelihood(from_logits=True)
    logits.update_state([1], [[1000.0, 0.0]])
    assert value(logits) == pytest.approx(1000.0)


def test_counts_go_on_beyond_what_float32_counts():
    for name, make in ALL.items():
        metric = make()
        if not metric._sums:
            metric.create_for(2)
        for key, (total, _) in metric._sums.items():
            ones = np.ones(tuple(total.shape), "float32")
            metric.add_to(key, ones * 2.0**24)
            for _ in range(3):
                metric.add_to(key, ones)
            found = sum(to_numpy(v).astype(float) for v in metric._sums[key])
            np.testing.assert_array_equal(found, 2.0**24 + 3, err_msg=name)


def test_drift_of_small_gaps_in_a_long_run():
    # A bin with 10^8 samples, each 0.001 too confident: a plain float32 sum
    # of 1024-sample batches would be off by far more than the last digit.
    metric = kc.metrics.ExpectedCalibrationError(num_bins=1)
    step = np.array([[1e6], [1e3]], "float32")
    for _ in range(100):
        metric.add_to("sums", step)
    metric.add_to("sums", np.array([[1.0], [0.001]], "float32"))
    total, rest = (to_numpy(v).astype(float) for v in metric._sums["sums"])
    assert (total + rest)[0, 0] == 1e8 + 1
    assert (total + rest)[1, 0] == pytest.approx(1e5 + 0.001, abs=1e-6)
    assert value(metric) == pytest.approx(0.001, rel=1e-6)


def test_bins_that_the_sweep_stopped_at():
    labels, logits = generated_set()
    metric = kc.metrics.SweepCalibrationError(norm=1)
    metric.update_state(labels, softmax(logits))
    assert int(metric.used_bins()) == 7
    assert value(metric) == pytest.approx(0.123575185104, abs=1e-4)
    alone = kc.metrics.SweepCalibrationError(max_bins=1)
    alone.update_state(labels, softmax(logits))
    assert value(alone) == pytest.approx(0.123575185104, abs=1e-6)


def test_a_fixed_bandwidth():
    labels, logits = generated_set()
    metric = kc.metrics.SmoothCalibrationError(bandwidth=0.02)
    metric.update_state(labels, softmax(logits))
    assert value(metric) == pytest.approx(0.130748, abs=2e-6)


# Compiling two steps of all of them takes long on JAX and TensorFlow.
FEW = (
    "expected_calibration_error",
    "adaptive_calibration_error",
    "smooth_calibration_error",
    "classwise_calibration_error",
    "brier_score",
)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(FEW, id="few"),
        pytest.param(tuple(ALL), id="all", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_metrics_in_a_fit(names, digits, tmp_path):
    (x, y), validation, _ = digits
    model = small_network(activation="softmax")
    metrics = []
    for name in names:
        make = ALL[name]
        config = {**make().get_config(), "name": name}
        metrics.append(type(make()).from_config(config))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=metrics)
    log = tmp_path / "log.csv"
    best = tmp_path / "best.keras"
    history = model.fit(
        x,
        y,
        validation_data=validation,
        epochs=2,
        batch_size=100,
        verbose=0,
        callbacks=[
            keras.callbacks.CSVLogger(str(log)),
            # `mode="auto"` must know that smaller is better.
            keras.callbacks.EarlyStopping("val_smooth_calibration_error"),
            keras.callbacks.ModelCheckpoint(
                str(best),
                monitor="val_classwise_calibration_error",
                save_best_only=True,
            ),
        ],
    ).history
    outputs = model.predict(validation[0], verbose=0)
    with open(log) as file:
        columns = next(csv.reader(file))
    for name in names:
        assert name in history and f"val_{name}" in columns
        expected = value(fed(ALL[name](), validation[1], outputs))
        found = history[f"val_{name}"][-1]
        assert found == pytest.approx(expected, abs=1e-5), name
    assert best.exists()


@pytest.mark.backends("tensorflow", reason="its event files")
def test_tensorboard_carries_metric_and_monitor(digits, tmp_path):
    pytest.importorskip("tensorboard")
    import tensorflow as tf

    (x, y), validation, _ = digits
    model = small_network(activation="softmax")
    metric = kc.metrics.ExpectedCalibrationError()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=[metric])
    history = model.fit(
        x,
        y,
        validation_data=validation,
        epochs=2,
        verbose=0,
        callbacks=[
            kc.callbacks.CalibrationMonitor(),
            keras.callbacks.TensorBoard(str(tmp_path)),
        ],
    ).history

    def written(part):
        values = {}
        for file in tmp_path.glob(f"{part}/events.*"):
            for record in tf.data.TFRecordDataset(str(file)):
                event = tf.compat.v1.Event.FromString(record.numpy())
                for value in event.summary.value:
                    number = tf.make_ndarray(value.tensor)
                    values.setdefault(value.tag, []).append(number)
        return values

    train, held_out = written("train"), written("validation")
    names = ("expected_calibration_error", "smooth_calibration_error")
    expected = pytest.approx(history[names[0]])
    assert train[f"epoch_{names[0]}"] == expected
    for name in names:
        expected = pytest.approx(history[f"val_{name}"])
        assert held_out[f"epoch_{name}"] == expected


def test_neither_way_is_better_for_a_signed_gap():
    callback = keras.callbacks.EarlyStopping("confidence_gap")
    model = small_network(activation="softmax")
    model.compile(
        "sgd",
        "sparse_categorical_crossentropy",
        metrics=[kc.metrics.ConfidenceGap()],
    )
    x, y = np.zeros((4, 64), "float32"), np.zeros(4, "int32")
    with pytest.raises(ValueError, match="mode="):
        model.fit(x, y, verbose=0, callbacks=[callback])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FEW else pytest.mark.slow)
        for name in ALL
    ],
)
def test_compiled(name):
    from tests.helpers import compiled

    labels, p = random_predictions(BATCH)
    metric = ALL[name]()
    metric.update_state(labels, p)
    expected = value(metric)
    metric.reset_state()
    state = [ops.convert_to_tensor(v) for v in metric.variables]

    def step(labels, p, *state):
        state = metric.stateless_update_state(list(state), labels, p)
        return metric.stateless_result(state)

    found = compiled(step)(
        ops.convert_to_tensor(labels, "int32"), ops.convert_to_tensor(p), *state
    )
    assert float(found) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("binning", ["width", "mass"])
@pytest.mark.parametrize("factor", [1e-26, 1e-20, 1e-3, 1e4, 1e20, 1e29])
def test_debiased_error_does_not_depend_on_a_factor_of_the_weights(
    binning, factor
):
    labels, p = random_predictions(300)
    weights = np.random.default_rng(5).gamma(1.0, size=300)
    for norm in (1, 2):
        expected, found = (
            fed(
                kc.metrics.DebiasedCalibrationError(binning=binning, norm=norm),
                labels,
                p,
                (weights * scale).astype("float32"),
            )
            for scale in (1.0, factor)
        )
        signed = float(expected.signed())
        assert float(found.signed()) == pytest.approx(signed, rel=1e-4)


def test_a_refused_batch_does_not_count_the_labels():
    metric = kc.metrics.MultilabelCalibrationError()
    with pytest.raises(ValueError, match="label is not one of"):
        metric.update_state(np.full((5, 3), 7), np.full((5, 3), 0.5, "float32"))
    metric.update_state(np.ones((5, 4), int), np.full((5, 4), 0.5, "float32"))
    assert metric.classes == 4


@pytest.mark.parametrize("floatx", ["float16", "bfloat16"])
def test_statistics_are_float32_whatever_floatx_is(floatx):
    # Python numbers in Keras' operations become `floatx`.
    labels, p = random_predictions(300)
    expected = {name: fed(make(), labels, p) for name, make in ALL.items()}
    loss = kc.losses.SoftBinnedECE(num_bins=50)
    value = float(loss(labels, p))
    keras.config.set_floatx(floatx)
    try:
        found = {name: fed(make(), labels, p) for name, make in ALL.items()}
        # The value itself is of that dtype, as those of Keras' losses.
        low = float(loss(labels, p))
    finally:
        keras.config.set_floatx("float32")
    for name, metric in expected.items():
        result = float(metric.result())
        assert float(found[name].result()) == pytest.approx(result), name
    assert low == pytest.approx(value, rel=0.01)


@pytest.mark.backends("tensorflow", reason="AutoGraph is TensorFlow's")
@pytest.mark.parametrize("name", ["add_totals", "create_sums"])
def test_autograph_converts_what_a_metric_leaves_empty(name):
    import tensorflow as tf

    # In a `tf.function` of the user it warned of what it cannot convert.
    tf.autograph.to_graph(getattr(kc.metrics.AdaptiveCalibrationError, name))


@pytest.mark.parametrize(
    "other",
    [
        kc.metrics.BrierScore(num_bins=None),
        kc.metrics.BrierScore(num_bins=10),
        kc.metrics.ExpectedCalibrationError(),
        keras.metrics.Mean(),
        None,
    ],
)
def test_metrics_of_other_settings_are_not_merged(other):
    metric = kc.metrics.BrierScore()
    metric.update_state([0, 1], [[0.9, 0.1], [0.4, 0.6]])
    same = kc.metrics.BrierScore(from_logits=True, name="same")
    same.update_state([0, 1], [[2.0, 0.0], [0.0, 1.0]])
    before = metric.decomposition()
    with pytest.raises(ValueError, match=r"same settings|calibration met"):
        metric.merge_state([same, other])
    assert metric.decomposition() == before
    metric.merge_state(each for each in [same])
    assert metric.decomposition() != before


@pytest.mark.parametrize(
    "form", ["OverconfidenceError", "UnderconfidenceError"]
)
@pytest.mark.parametrize("setting", [{"binning": "mass"}, {"norm": 2}])
def test_gaps_with_signs_have_bins_of_equal_width(form, setting):
    with pytest.raises(ValueError, match="The gaps have signs"):
        getattr(kc.metrics, form)(**setting)


def test_weights_of_labels_on_any_axis_may_be_lists():
    rng = np.random.default_rng(0)
    p, labels = rng.random((6, 3, 4)), rng.integers(0, 2, (6, 3, 4))
    weights = rng.random((6, 3, 4)).astype("float32")
    found = []
    for given in (weights, weights.tolist()):
        metric = kc.metrics.MultilabelCalibrationError(axis=1)
        metric.update_state(labels, p, given)
        found.append(float(metric.result()))
    assert found[0] == pytest.approx(found[1], rel=1e-6)
