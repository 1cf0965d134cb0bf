"""Tasks of KerasHub keep their preprocessor: raw inputs, also in `predict`."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from tests.helpers import to_numpy

keras_hub = pytest.importorskip("keras_hub")

WORDS = ["the", "quick", "brown", "fox", "slow", "dog"]
RNG = np.random.default_rng(0)
TEXTS = [
    " ".join(RNG.choice(WORDS, RNG.integers(1, 6), replace=True))
    for _ in range(64)
]
IMAGES = RNG.integers(0, 256, (64, 12, 12, 3)).astype("uint8")


def text_classifier(activation):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = keras_hub.models.BertTokenizer(
        vocabulary=special + WORDS, lowercase=True
    )
    return keras_hub.models.BertTextClassifier(
        backbone=keras_hub.models.BertBackbone(
            vocabulary_size=11,
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=8,
            max_sequence_length=8,
        ),
        preprocessor=keras_hub.models.BertTextClassifierPreprocessor(
            tokenizer, sequence_length=8
        ),
        num_classes=3,
        activation=activation,
    )


def image_classifier(activation):
    converter = keras_hub.layers.ResNetImageConverter(
        image_size=(8, 8), scale=1 / 255
    )
    return keras_hub.models.ImageClassifier(
        backbone=keras_hub.models.ResNetBackbone(
            input_conv_filters=[64],
            input_conv_kernel_sizes=[3],
            stackwise_num_filters=[64],
            stackwise_num_blocks=[1],
            stackwise_num_strides=[1],
            block_type="basic_block",
            image_shape=(8, 8, 3),
        ),
        preprocessor=keras_hub.models.ResNetImageClassifierPreprocessor(
            image_converter=converter
        ),
        num_classes=3,
        activation=activation,
    )


TASKS = {
    "text": (text_classifier, TEXTS, 4.0),
    "images": (image_classifier, IMAGES, 1.5),
}


def task_and_labels(kind, activation="softmax"):
    """A task, raw inputs, its logits, and labels of half the logits."""
    make, raw, scale = TASKS[kind]
    task = make(activation)
    rng = np.random.default_rng(1)
    for weight in task.trainable_weights:
        if len(weight.shape) > 1:  # so that logits differ between samples
            width = np.sqrt(np.prod(weight.shape[:-1]))
            weight.assign(scale * rng.normal(size=weight.shape) / width)
    # Not `predict`, whose resizing by tf.data rounds pixels otherwise.
    logits = to_numpy(task.predict_on_batch(raw))
    if activation:
        logits = np.log(logits)
    logits = logits - logits.mean(-1, keepdims=True)
    spread = np.random.default_rng(2).gumbel(size=logits.shape)
    return task, raw, logits, (logits / 2 + spread).argmax(-1)


def tempered(logits, calibrated):
    record = kc.calibration_record(calibrated)
    temperature = np.float32(record["temperature"])
    assert temperature != 1
    return to_numpy(keras.ops.softmax(logits / temperature))


@pytest.mark.slow
@pytest.mark.parametrize("activation", [None, "softmax"])
@pytest.mark.parametrize("kind", TASKS)
def test_raw_inputs_from_fit_to_file(kind, activation, tmp_path):
    task, raw, logits, y = task_and_labels(kind, activation)
    calibrated = kc.calibrate(task, raw, y, guard=False, verbose=0)
    expected = tempered(logits, calibrated)
    found = calibrated.predict(raw, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    record = kc.calibration_record(calibrated)
    expected_source = "before softmax" if activation else "logits"
    assert record["logits_source"] == expected_source
    loss, _ = calibrated.evaluate(raw, y, verbose=0)
    assert loss == pytest.approx(record["nll_after"], rel=1e-4)
    calibrated.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_allclose(again.predict(raw, verbose=0), found, atol=1e-6)
    assert kc.calibration_record(again) == record
    assert task.preprocessor is not None
    with pytest.raises(ValueError, match="very samples"):
        kc.calibrate(again, raw, y, verbose=0)


@pytest.mark.slow
def test_every_kind_of_data():
    task, raw, logits, y = task_and_labels("text")
    weight = np.linspace(0, 2, 64)
    options = {"guard": False, "verbose": 0}
    expected = kc.calibrate(task, raw, y, weight, **options)
    batches = [
        (raw[i : i + 16], y[i : i + 16], weight[i : i + 16])
        for i in range(0, 64, 16)
    ]
    for found in (
        kc.calibrate(task, np.array(raw), y, weight, **options),
        kc.calibrate(task, batches, **options),
        kc.calibrate(task, batches, stream=True, verbose=0),
        kc.calibrate(task, raw, y, weight, fuse=True, **options),
    ):
        p = found.predict(np.array(raw, "object"), verbose=0)
        np.testing.assert_allclose(p, tempered(logits, expected), atol=1e-4)
    part = expected.predict_on_batch(raw[:3])
    np.testing.assert_allclose(
        to_numpy(part), tempered(logits[:3], expected), atol=1e-5
    )
    values = expected.evaluate(batches, verbose=0, return_dict=True)
    nll = kc.calibration_record(expected)["nll_after"]
    assert values["loss"] == pytest.approx(nll, rel=1e-4)
    with pytest.raises(ValueError, match="Train the task"):
        expected.fit(raw, y)


def test_multi_label_task():
    task, raw, *_ = task_and_labels("text", "sigmoid")
    p = task.predict(raw, verbose=0)
    z = np.log(p) - np.log1p(-p)
    y = (z / 2 + RNG.logistic(size=z.shape) > 0).astype("int32")
    calibrated = kc.calibrate(
        task, raw, y, multi_label=True, guard=False, verbose=0
    )
    temperature = kc.calibration_record(calibrated)["temperature"]
    assert len(temperature) == 3
    expected = 1 / (1 + np.exp(-z / np.array(temperature)))
    np.testing.assert_allclose(
        calibrated.predict(raw, verbose=0), expected, atol=1e-5
    )


@pytest.mark.filterwarnings("ignore:The (estimate|target data)")
@pytest.mark.parametrize(
    "kind", ["text", pytest.param("images", marks=pytest.mark.slow)]
)
def test_other_class_frequencies(kind, tmp_path):
    task, raw, logits, y = task_and_labels(kind)
    calibrated = kc.calibrate(task, raw, y, guard=False, verbose=0)
    p = tempered(logits, calibrated)
    record = kc.calibration_record(calibrated)
    prior = np.array([0.2, 0.2, 0.6])
    joint = p * prior / np.array(record["source_prior"])
    expected = joint / joint.sum(axis=1, keepdims=True)
    corrected = kc.adjust_prior(calibrated, prior=prior, verbose=0)
    found = corrected.predict(raw, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    rows = np.flatnonzero(y != y[0])
    target = [raw[i] for i in rows] if kind == "text" else raw[rows]
    unlabeled = [(target[i : i + 16],) for i in range(0, len(target), 16)]
    estimates = []
    for data in (target, unlabeled, [(target, y[rows])]):
        model = kc.adjust_prior(calibrated, data, verbose=0)
        correction = kc.calibration_record(model)["prior_correction"]
        assert correction["num_samples"] == len(rows)
        estimates.append(correction["target_prior"])
    assert estimates[0][y[0]] < record["source_prior"][y[0]]
    np.testing.assert_allclose(estimates[1:], [estimates[0]] * 2, atol=1e-6)
    # A known prior needs no data, so that no data has built this model.
    corrected.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_allclose(again.predict(raw, verbose=0), found, atol=1e-6)
    assert kc.calibration_record(again) == kc.calibration_record(corrected)
    twice = kc.adjust_prior(again, prior=record["source_prior"], verbose=0)
    np.testing.assert_allclose(twice.predict(raw, verbose=0), p, atol=1e-5)


def test_other_class_frequencies_of_a_task_that_is_not_calibrated():
    task, raw, logits, y = task_and_labels("text", None)
    task.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
    source, prior = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.2, 0.7])
    corrected = kc.adjust_prior(
        task, raw, prior=prior, source_prior=source, verbose=0
    )
    np.testing.assert_allclose(
        to_numpy(keras.ops.softmax(corrected.predict(raw, verbose=0))),
        to_numpy(keras.ops.softmax(logits + np.log(prior / source))),
        atol=1e-5,
    )
    loss, _ = corrected.evaluate(raw, np.eye(3)[y], verbose=0)
    assert np.isfinite(loss)


def test_what_does_not_fit_is_found_from_raw_inputs(capsys):
    task, raw, _, y = task_and_labels("text")
    Sparse = keras.losses.SparseCategoricalCrossentropy
    task.compile("sgd", Sparse(from_logits=True))
    batches = [(raw[:16], y[:16]), (raw[16:], y[16:])]
    for data in ((raw, y), (batches,)):
        (finding,) = kc.check(task, *data)
        assert "SparseCategoricalCrossentropy has `from_logits=True`" in finding
    calibrated = kc.calibrate(task, raw, y, guard=False, verbose=0)
    assert kc.check(calibrated, raw, y) == []
    assert "Nothing found." in capsys.readouterr().out
    calibrated.compile("sgd", Sparse(from_logits=True))
    assert len(kc.check(calibrated, raw, y)) == 1
    assert len(kc.check(calibrated, raw, y + 3)) > 1


@keras.saving.register_keras_serializable("tests")
class Doubled(keras.layers.Layer):
    """A preprocessor, of inputs and of what comes with them."""

    def call(self, x, y=None, sample_weight=None):
        x = 2.0 * keras.ops.convert_to_tensor(x)
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)


class Task(keras.Model):
    """Like a task of KerasHub, with a network that makes a mask."""

    def __init__(self):
        inputs = keras.Input((5,))
        x = keras.layers.Reshape((5, 1))(inputs)
        x = keras.layers.LSTM(4)(keras.layers.Masking(0.0)(x))
        super().__init__(inputs, keras.layers.Dense(3)(x))
        self.preprocessor = Doubled()

    def preprocess_samples(self, x, y=None, sample_weight=None):
        return self.preprocessor(x, y=y, sample_weight=sample_weight)

    def predict_on_batch(self, x):
        return super().predict_on_batch(self.preprocess_samples(x))


class Labeled(Doubled):
    """A preprocessor that makes the labels and weights, as of a language."""

    def call(self, x, y=None, sample_weight=None):
        found = super().call(x)
        if y is None:
            return found
        weights = np.arange(len(y)) % 3
        return keras.utils.pack_x_y_sample_weight(found, 2 - y, weights)


def labeled_task():
    """A task, its network, and data `(x, y)` and `(x, y, weights)` of both."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)).astype("float32"), np.arange(60) // 4 % 3
    task = Task()
    task.preprocessor = Labeled()
    plain = keras.Model(task.input, task.output)
    return task, plain, (x, y), (2 * x, 2 - y, np.arange(60) % 3)


def test_a_report_has_labels_and_weights_of_the_preprocessor():
    task, plain, raw, prepared = labeled_task()
    options = {"num_resamples": 2, "verbose": 0, "batch_size": 60}
    found = kc.report(task, *raw, **options).models[0].metrics
    *data, weights = prepared
    expected = kc.report(plain, *data, sample_weight=weights, **options)
    for name, other in expected.models[0].metrics.items():
        assert found[name]["value"] == pytest.approx(
            other["value"], rel=1e-5
        ), name


class OfItself(Doubled):
    """A preprocessor that makes labels and weights of inputs alone."""

    def call(self, x, y=None, sample_weight=None):
        found = super().call(x)
        labels = np.argmax(x[:, :3], axis=1)
        weights = np.arange(len(x)) % 3
        return keras.utils.pack_x_y_sample_weight(found, labels, weights)


def tf_data(x):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(x).batch(60)


ALONE = {
    "arrays": lambda x: (x,),
    "tf.data": lambda x: (tf_data(x),),
    "a list of batches": lambda x: ([(x[:30],), (x[30:],)],),
    "labels that do not matter": lambda x: (x, np.zeros(len(x))),
}


@pytest.mark.parametrize("data", ALONE)
def test_inputs_alone_where_the_preprocessor_makes_labels(data):
    task = Task()
    task.preprocessor = OfItself()
    plain = keras.Model(task.input, task.output)
    x = np.random.default_rng(0).normal(size=(60, 5)).astype("float32")
    own = ALONE[data](x)
    labels, weights = x[:, :3].argmax(axis=1), np.arange(60) % 3
    if data == "a list of batches":
        weights = np.tile(np.arange(30) % 3, 2)
    options = {"batch_size": 60} if own[0] is x else {}
    mine = kc.calibrate(task, *own, verbose=0, **options)
    theirs = kc.calibrate(plain, 2 * x, labels, weights, verbose=0)
    found, expected = map(kc.calibration_record, (mine, theirs))
    assert found["temperature"] == pytest.approx(
        expected["temperature"], rel=1e-5
    )
    logs = mine.evaluate(*own, verbose=0, return_dict=True, **options)
    known = 2 * x, labels, 60, 0, weights.astype("float32")
    loss = theirs.evaluate(*known, return_dict=True)["loss"]
    assert logs["loss"] == pytest.approx(loss, rel=1e-5)
    hits = plain.predict(2 * x, verbose=0).argmax(axis=1) == labels
    accuracy = np.average(hits, weights=weights)
    assert logs["accuracy"] == pytest.approx(accuracy, rel=1e-5)
    report = kc.report(task, *own, num_resamples=2, verbose=0, **options)
    assert report.models[0].num_rows == (weights > 0).sum()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task.compile("sgd", loss)
    plain.compile("sgd", loss)
    assert kc.check(task, *own) == kc.check(plain, 2 * x, labels)


@pytest.mark.parametrize("verb", [kc.calibrate, kc.report, kc.check])
def test_inputs_alone_where_nothing_makes_labels(verb):
    with pytest.raises(ValueError, match="the preprocessor makes none"):
        verb(Task(), np.ones((60, 5)))
    pair = np.ones((60, 5)), np.arange(60) % 3
    with pytest.raises(ValueError, match="arguments of their own"):
        verb(Task(), pair)


NAMES = ["accuracy", "negative_log_likelihood"]


def test_a_monitor_has_labels_and_weights_of_the_preprocessor():
    task, plain, raw, prepared = labeled_task()
    logs = []
    for model, data in ((task, raw), (plain, prepared)):
        monitor = kc.callbacks.CalibrationMonitor(
            data, metrics=NAMES, from_logits=True, batch_size=60
        )
        monitor.set_params({"epochs": 1})
        monitor.set_model(model)
        monitor.on_epoch_begin(0)
        logs.append({})
        monitor.on_epoch_end(0, logs[-1])
    assert logs[0] == pytest.approx(logs[1], rel=1e-5)
    assert {f"val_{name}" for name in NAMES} <= logs[0].keys()


def plain_network(units=3):
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(units)])


AROUND = {
    "member 1": lambda task: kc.models.DeepEnsemble([plain_network(), task]),
    "an auxiliary": lambda task: kc.models.DiffDML(plain_network(), task),
    "the primary": lambda task: kc.models.DiffDML(task, plain_network()),
    "the model": kc.models.MonteCarloDropout,
    "samples": lambda task: kc.models.SampleHistoryModel(task, num_samples=9),
    "parts": kc.models.InterleavedTraining,
}


@pytest.mark.parametrize("kind", AROUND)
def test_models_around_a_task_would_not_preprocess(kind):
    with pytest.raises(ValueError, match="and does not preprocess"):
        AROUND[kind](Task())
    calibrated = kc.calibrate(
        Task(), np.ones((60, 5)), np.arange(60) % 3, guard=False, verbose=0
    )
    with pytest.raises(ValueError, match="and does not preprocess"):
        AROUND[kind](calibrated)


def test_a_task_without_its_preprocessor_can_be_a_member():
    first, second = Task(), Task()
    first.preprocessor = second.preprocessor = None
    ensemble = kc.models.DeepEnsemble([first, second], from_logits=True)
    x = np.ones((2, 5), "float32")
    p = [
        to_numpy(keras.ops.softmax(keras.Model(each.input, each.output)(x)))
        for each in (first, second)
    ]
    np.testing.assert_allclose(
        ensemble.predict(x, verbose=0), np.mean(p, axis=0), rtol=1e-5
    )


@pytest.mark.slow
def test_strings_reach_a_byte_pair_tokenizer_in_any_form():
    letters = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"abcdefĠ", "ab"]
    vocabulary = {token: number for number, token in enumerate(letters)}
    models = keras_hub.models
    tokenizer = models.RobertaTokenizer(vocabulary=vocabulary, merges=["a b"])
    task = models.RobertaTextClassifier(
        backbone=models.RobertaBackbone(
            vocabulary_size=len(vocabulary),
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=8,
            max_sequence_length=8,
        ),
        preprocessor=models.RobertaTextClassifierPreprocessor(
            tokenizer, sequence_length=8
        ),
        num_classes=3,
        hidden_dim=8,
    )
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice([*"abcdef"], 1 + i % 6)) for i in range(60)]
    y = rng.integers(0, 3, 60)
    options = {"guard": False, "verbose": 0}
    expected = kc.calibrate(task, words, y, **options)
    p = expected.predict(words, verbose=0)
    nll = -np.log(p[np.arange(60), y]).mean()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    task.compile("sgd", loss)
    forms = [words, np.array(words), np.array(words, object)]
    pandas = pytest.importorskip("pandas")
    for form in (*forms, pandas.Series(words, index=range(9, 69))):
        calibrated = kc.calibrate(task, form, y, **options)
        np.testing.assert_allclose(
            calibrated.predict(form, verbose=0), p, rtol=1e-5
        )
        report = kc.report(calibrated, form, y, num_resamples=2, verbose=0)
        found = report.models[0].metrics["negative_log_likelihood"]["value"]
        assert found == pytest.approx(nll, rel=1e-5)
        monitor = kc.callbacks.CalibrationMonitor(
            (form, y), from_logits=True, metrics=["negative_log_likelihood"]
        )
        before = kc.report(task, form, y, num_resamples=2, verbose=0).models[0]
        # Not in `fit`: KerasHub's own cannot tokenize in a graph of TensorFlow.
        logs = {}
        monitor.set_params({"epochs": 1})
        monitor.set_model(task)
        monitor.on_train_begin()
        monitor.on_epoch_begin(0)
        monitor.on_epoch_end(0, logs)
        assert logs["val_negative_log_likelihood"] == pytest.approx(
            before.metrics["negative_log_likelihood"]["value"], rel=1e-4
        )
    assert kc.check(task, np.array(words), y) == []


@pytest.mark.slow
def test_pairs_of_lists_of_strings():
    task, raw, _, y = task_and_labels("text")
    pairs = list(raw), list(raw[::-1])
    reports = [
        kc.report(task, x, y, num_resamples=2, verbose=0).models[0].metrics
        for x in (pairs, tuple(map(np.array, pairs)))
    ]
    assert reports[0] == reports[1]


def test_raw_inputs_of_a_network_with_a_mask():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype("float32")
    y = rng.integers(0, 3, 60)
    task = Task()
    for weight in task.weights:
        weight.assign(rng.normal(size=weight.shape))
    plain = keras.Model(task.input, task.output)
    calibrated = kc.calibrate(task, x, y, guard=False, verbose=0)
    direct = kc.calibrate(plain, 2 * x, y, guard=False, verbose=0)
    # The report reads what the model gives, as the inner one does.
    one, two = (
        kc.report(model, inputs, y, num_resamples=2, verbose=0).models[0]
        for model, inputs in ((calibrated, x), (direct, 2 * x))
    )
    name = "negative_log_likelihood"
    assert one.metrics[name]["value"] == pytest.approx(
        two.metrics[name]["value"], rel=1e-5
    )
    raw = kc.report(task, x, y, from_logits=True, num_resamples=2, verbose=0)
    expected = kc.report(plain, 2 * x, y, num_resamples=2, verbose=0)
    for found, other in zip(raw.models, expected.models, strict=True):
        assert found.metrics[name]["value"] == pytest.approx(
            other.metrics[name]["value"], rel=1e-5
        )
    assert calibrated.test_on_batch(x, y) == pytest.approx(
        direct.test_on_batch(2 * x, y), rel=1e-5
    )
    with pytest.raises(ValueError, match="is not trained"):
        calibrated.train_on_batch(x, y)
