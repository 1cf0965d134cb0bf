"""Karandikar et al., NeurIPS 2021, appendix B."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.models._two_parts import FOR_PENALTY
from keras_calib.models._two_parts import INPUTS
from tests.helpers import Pieces
from tests.helpers import small_network
from tests.helpers import to_numpy

SIZE = 150


@keras.saving.register_keras_serializable(package="tests")
class MeanConfidence(kc.losses.PenalizedLoss):
    """A batch statistic that is easy to redo."""

    batch_statistic = True

    def penalty(self, rows):
        return rows.mean(keras.ops.max(rows.probabilities, axis=-1))


def build(loss=None, learning_rate=0.0, network=None, **kwargs):
    model = kc.models.InterleavedTraining(network or small_network(), **kwargs)
    if loss is None:
        loss = MeanConfidence(weight=3.0, from_logits=True)
    optimizer = keras.optimizers.SGD(learning_rate)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def parts_of(model, x, y):
    """Primary loss and penalty of a set of samples, from the definitions."""
    logits = model.predict(x, verbose=0)
    p = to_numpy(keras.ops.softmax(logits))
    return -np.log(p[np.arange(len(y)), y]).mean(), p.max(-1).mean()


@pytest.fixture
def parts(digits):
    (x, y), _, _ = digits
    return (x[:100], y[:100]), (x[100:SIZE], y[100:SIZE])


class Record(keras.callbacks.Callback):
    """Weights before the epoch and after each batch."""

    def on_train_begin(self, logs=None):
        self.weights = [self.model.model.get_weights()]
        self.lengths = []

    def on_train_batch_end(self, batch, logs=None):
        sync = getattr(self.model, "jax_state_sync", None)
        if sync is not None:
            sync()
        self.weights.append(self.model.model.get_weights())


def test_first_the_majority_then_the_rest(parts):
    # One batch per part: the first step follows the primary loss alone, the
    # second one the weighted penalty alone.
    majority, rest = parts
    rate, weight = 0.1, 3.0
    model = build(learning_rate=rate)
    twin = small_network()
    twin.set_weights(model.model.get_weights())
    record = Record()
    model.fit(
        *majority,
        batch_size=100,
        penalty_data=rest,
        verbose=0,
        callbacks=[record],
    )
    primary = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    penalty = MeanConfidence(primary=None, weight=weight, from_logits=True)
    for (x, y), loss, expected in zip(
        (majority, rest), (primary, penalty), record.weights[1:], strict=True
    ):
        twin.compile(keras.optimizers.SGD(rate), loss)
        twin.train_on_batch(x, y)
        for a, b in zip(twin.get_weights(), expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def as_tf_data(x, y):
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(99).batch(32)


def as_loader(x, y):
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(
        torch.tensor(x), torch.tensor(y.astype("int64"))
    )
    return torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)


FORMS = {"tf_data": as_tf_data, "py_dataset": Pieces, "loader": as_loader}


@pytest.mark.parametrize("form", ["arrays", *FORMS])
def test_each_part_is_reported_on_its_own_samples(form, parts):
    majority, rest = parts
    model = build()
    primary, _ = parts_of(model, *majority)
    _, penalty = parts_of(model, *rest)
    if form == "arrays":
        arguments = {"x": majority[0], "y": majority[1], "penalty_data": rest}
    else:
        make = FORMS[form]
        arguments = {"x": make(*majority), "penalty_data": make(*rest)}
    logs = model.fit(**arguments, epochs=2, verbose=0).history
    assert logs["primary_loss"] == pytest.approx([primary] * 2, rel=1e-5)
    assert logs["penalty"] == pytest.approx([penalty] * 2, rel=1e-5)
    # The mean over batches of what each of them minimised.
    mean = (100 * primary + 50 * 3.0 * penalty) / 150
    assert logs["loss"] == pytest.approx([mean] * 2, rel=1e-4)


def test_arrays_are_split_once_and_for_all(parts):
    x = np.concatenate([part[0] for part in parts])
    y = np.concatenate([part[1] for part in parts])
    model = build(penalty_split=0.2, seed=5)
    (a, _), (b, _) = model._split((x, y), None)
    assert (len(a), len(b)) == (120, 30)
    both = np.concatenate([a, b])
    np.testing.assert_array_equal(np.sort(both, axis=0), np.sort(x, axis=0))
    again = build(penalty_split=0.2, seed=5)
    np.testing.assert_array_equal(again._split((x, y), None)[1][0], b)
    _, penalty = parts_of(model, *model._split((x, y), None)[1])
    logs = model.fit(x, y, epochs=2, verbose=0).history
    assert logs["penalty"] == pytest.approx([penalty] * 2, rel=1e-5)


@pytest.mark.slow
def test_validation_has_both_parts(parts, digits):
    model = build()
    (x, y), rest = parts
    valid = digits[1]
    logs = model.fit(
        x, y, penalty_data=rest, validation_data=valid, verbose=0
    ).history
    primary, penalty = parts_of(model, *valid)
    assert logs["val_primary_loss"][0] == pytest.approx(primary, rel=1e-4)
    assert logs["val_loss"][0] == pytest.approx(primary + 3 * penalty, rel=1e-4)


@pytest.mark.slow
def test_a_penalty_per_row_and_class_weights(parts):
    (x, y), rest = parts
    loss = kc.losses.MarginLabelSmoothing(
        margin=0.5, weight=2.0, from_logits=True
    )
    model = build(loss)
    logits = model.predict(rest[0], verbose=0)
    weights = np.where(rest[1] == 3, 0.0, 1.0)
    values = kc.losses.margin_label_smoothing(rest[1], logits, margin=0.5)
    penalty = (keras.ops.convert_to_numpy(values) * weights).mean()
    class_weight = {c: float(c != 3) for c in range(10)}
    logs = model.fit(
        x,
        y,
        batch_size=100,
        penalty_data=rest,
        class_weight=class_weight,
        verbose=0,
    ).history
    assert logs["penalty"] == pytest.approx([penalty], rel=1e-5)


def test_ignored_pixels():
    network = keras.Sequential(
        [keras.Input((2, 2, 3)), keras.layers.Conv2D(4, 1)]
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 2, 2, 3)).astype("float32")
    y = rng.integers(0, 4, size=(20, 2, 2))
    y[:, 0, 0] = 255
    loss = MeanConfidence(from_logits=True, ignore_class=255)
    model = build(loss, network=network, penalty_split=0.5)
    _, (x_rest, _) = model._split((x, y), None)
    p = to_numpy(keras.ops.softmax(model.predict(x_rest, verbose=0)))
    confidence = p.max(-1).reshape(10, 4)[:, 1:].mean()
    logs = model.fit(x, y, batch_size=10, verbose=0).history
    assert logs["penalty"] == pytest.approx([confidence], rel=1e-5)


def test_regularisers_act_in_both_parts(parts):
    majority, rest = parts
    network = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(10, kernel_regularizer=keras.regularizers.L2(1)),
        ]
    )
    model = build(network=network)
    logs = model.fit(*majority, penalty_data=rest, verbose=0).history
    l2 = (network.get_weights()[0] ** 2).sum()
    # 100 samples minimise primary + l2, 50 samples 3 penalty + l2.
    parts = 100 * logs["primary_loss"][0] + 50 * 3.0 * logs["penalty"][0]
    assert logs["loss"][0] == pytest.approx(parts / 150 + l2, rel=1e-5)


@pytest.mark.slow
def test_mixed_precision_and_saving(parts, tmp_path):
    majority, rest = parts
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = build(learning_rate=0.1, penalty_split=0.3, seed=7)
        model.fit(*majority, penalty_data=rest, epochs=2, verbose=0)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    path = tmp_path / "model.keras"
    model.save(path)
    again = keras.models.load_model(path, safe_mode=True)
    np.testing.assert_array_equal(
        again.predict(rest[0], verbose=0), model.predict(rest[0], verbose=0)
    )
    assert (again.penalty_split, again.seed) == (0.3, 7)
    logs = again.fit(*majority, verbose=0).history
    assert np.isfinite(logs["loss"]).all()


def test_what_cannot_be_interleaved(parts):
    majority, rest = parts
    with pytest.raises(ValueError, match="`penalty_split` must be in"):
        kc.models.InterleavedTraining(small_network(), penalty_split=1.0)
    model = kc.models.InterleavedTraining(small_network())
    for loss in (
        "sparse_categorical_crossentropy",
        kc.losses.FocalLoss(from_logits=True),
        MeanConfidence(primary=None, from_logits=True),
    ):
        with pytest.raises(ValueError, match="a primary, for the majority"):
            model.compile("sgd", loss)
    model = build()
    with pytest.raises(ValueError, match="two data sets of one kind"):
        model.fit(Pieces(*majority), verbose=0)
    with pytest.raises(ValueError, match="Both parts need samples"):
        model.fit(majority[0][:1], majority[1][:1], verbose=0)
    with pytest.raises(ValueError, match="2 and 3 arrays"):
        model.fit(*majority, penalty_data=(*rest, np.ones(50)), verbose=0)
    with pytest.raises(ValueError, match="belongs to neither part"):
        model.train_on_batch(*majority)


def test_endless_data(parts):
    majority, rest = (as_tf_data(*part) for part in parts)
    with pytest.raises(ValueError, match="Each part must end"):
        build().fit(majority.repeat(), penalty_data=rest, verbose=0)


@pytest.mark.slow
def test_several_inputs():
    inputs = [keras.Input((4,), name="a"), keras.Input((4,), name="b")]
    outputs = keras.layers.Dense(3)(keras.layers.Concatenate()(inputs))
    network = keras.Model(dict(zip("ab", inputs, strict=True)), outputs)
    joined = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    joined.set_weights(network.get_weights())
    model = build(network=network)
    rng = np.random.default_rng(0)
    x = {name: rng.normal(size=(40, 4)).astype("float32") for name in "ab"}
    logs = model.fit(x, np.arange(40) % 3, verbose=0).history
    both = np.concatenate([x["a"], x["b"]], axis=1)
    alone = build(network=joined)
    expected = alone.fit(both, np.arange(40) % 3, verbose=0).history
    assert logs.keys() == expected.keys()
    for name, values in logs.items():
        assert values == pytest.approx(expected[name], rel=1e-5), name
    batch = {INPUTS: x, FOR_PENALTY: np.ones(40, "uint8")}
    model.train_on_batch(batch, np.arange(40) % 3)


def test_orders_depend_on_the_seed_and_the_epoch_alone(parts):
    (x, y), _ = parts

    def model_of(weights=None):
        keras.utils.set_random_seed(3)
        model = build(learning_rate=0.2, seed=1)
        if weights is not None:
            model.model.set_weights(weights)
        return model

    def fit(model, epochs, initial_epoch=0):
        options = {"initial_epoch": initial_epoch, "epochs": epochs}
        model.fit(x, y, batch_size=8, verbose=0, **options)
        return model.model.get_weights()

    once = fit(model_of(), 2)
    model = model_of()
    first = fit(model, 1)
    again = model_of()
    again.predict(x[:8], verbose=0)  # builds it
    runs = {
        "a second call of fit": fit(model, 1),
        "a resumed run": fit(model_of(first), 2, initial_epoch=1),
        "a built model": fit(again, 2),
    }
    for name, weights in runs.items():
        for found, expected in zip(weights, once, strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=name)
    # The orders of both epochs differ.
    repeated = fit(model_of(first), 1)
    assert np.abs(repeated[0] - once[0]).max() > 1e-4


@pytest.mark.parametrize("given", [3.0, [3.0]])
def test_loss_weights_multiply_the_loss(digits, given):
    (x, y), _, _ = digits
    x, y = x[:SIZE], y[:SIZE]
    weights = []
    for factor in (None, given):
        keras.utils.set_random_seed(0)
        model = build(learning_rate=0.03 if factor is None else 0.01)
        model.compile(model.optimizer, model.loss, loss_weights=factor)
        logs = model.fit(x, y, verbose=0, validation_data=(x, y)).history
        weights.append((model.model.get_weights(), logs))
    (plain, before), (weighted, after) = weights
    for one, two in zip(plain, weighted, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)
    for name in ("loss", "val_loss"):
        assert after[name] == pytest.approx(
            [3 * value for value in before[name]], rel=1e-4
        )
    assert after["penalty"] == pytest.approx(before["penalty"], rel=1e-4)


def test_loss_weights_are_one_number():
    model = build()
    for wrong in ([1.0, 2.0], "half"):
        with pytest.raises(ValueError, match="`loss_weights` is one number"):
            model.compile("sgd", model.loss, loss_weights=wrong)


def test_parts_of_a_sum_are_shown_as_means(digits):
    (x, y), _, _ = digits
    x, y = x[:SIZE], y[:SIZE]
    shown = []
    for reduction in ("sum", "sum_over_batch_size"):
        keras.utils.set_random_seed(0)
        loss = MeanConfidence(from_logits=True, reduction=reduction)
        logs = build(loss).fit(x, y, verbose=0).history
        shown.append([logs[name][0] for name in ("primary_loss", "penalty")])
    assert shown[0] == pytest.approx(shown[1], rel=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        kc.models.InterleavedTraining,
        lambda model: kc.models.SampleHistoryModel(model, num_samples=8),
    ],
)
def test_a_dict_of_one_output_is_refused(make):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, {"scores": keras.layers.Dense(3)(inputs)})
    with pytest.raises(ValueError, match="A model needs one output"):
        make(model)


def test_a_seed_is_a_number():
    for seed in (None, -1, 1.5, True):
        with pytest.raises(ValueError, match="seed"):
            kc.models.InterleavedTraining(keras.Sequential(), seed=seed)


def test_weights_in_one_part_of_a_data_set():
    x, y = np.zeros((32, 4), "float32"), np.zeros(32, int)
    with_weights = Pieces(x, y, np.ones(32, "float32"))
    model = kc.models.InterleavedTraining(
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    )
    model.compile("sgd", kc.losses.DCA(from_logits=True))
    for parts in ((Pieces(x, y), with_weights), (with_weights, Pieces(x, y))):
        with pytest.raises(ValueError, match="Both parts are"):
            model.fit(parts[0], penalty_data=parts[1], verbose=0)
