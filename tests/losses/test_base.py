"""What every loss shares: labels, weights, masks, parts, saving, bad input."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.losses._arguments import OF_ROWS
from tests.helpers import JIT_COMPILE
from tests.helpers import compiled
from tests.helpers import small_network
from tests.helpers import to_numpy
from tests.helpers import value_and_gradient
from tests.losses.fixtures import ALL_LOSSES
from tests.losses.fixtures import LABELS_A
from tests.losses.fixtures import LABELS_B
from tests.losses.fixtures import A
from tests.losses.fixtures import B
from tests.losses.fixtures import assert_gradient


class MeanLogit(kc.losses.PenalizedLoss):
    """A batch statistic that is easy to redo: the mean of the first logit."""

    batch_statistic = True

    def penalty(self, rows):
        return rows.mean(rows.logits[:, 0])


LOSSES = [
    kc.losses.ACLS(margin=1.0, from_logits=True),
    kc.losses.MarginLabelSmoothing(margin=1.0, from_logits=True),
    kc.losses.FocalLoss(from_logits=True),
    MeanLogit(from_logits=True, name="mean_logit"),
    *ALL_LOSSES,
]
EACH_LOSS = pytest.mark.parametrize("loss", LOSSES, ids=lambda x: x.name)


def rebuilt(loss, **changes):
    return type(loss).from_config({**loss.get_config(), **changes})


@EACH_LOSS
def test_label_forms_agree(loss):
    expected = float(loss(LABELS_B, B))
    one_hot = np.eye(4)[LABELS_B]
    for labels in (
        LABELS_B[:, None],
        LABELS_B.astype("uint8"),
        LABELS_B.astype("float32"),
        one_hot,
        one_hot.astype("bool"),
    ):
        assert float(loss(labels, B)) == pytest.approx(expected, rel=1e-6)


@EACH_LOSS
def test_class_axis(loss):
    labels = LABELS_B.reshape(2, 2)
    logits = B.reshape(2, 2, 4)
    expected = float(loss(labels, logits))
    assert float(loss(LABELS_B, B)) == pytest.approx(expected, rel=1e-6)
    moved = rebuilt(loss, axis=1)
    first = np.moveaxis(logits, -1, 1)
    assert float(moved(labels, first)) == pytest.approx(expected, rel=1e-6)
    one_hot = np.moveaxis(np.eye(4)[labels], -1, 1)
    assert float(moved(one_hot, first)) == pytest.approx(expected, rel=1e-6)


@EACH_LOSS
def test_ignored_rows_are_rows_left_out(loss):
    ignoring = rebuilt(loss, ignore_class=255)
    labels = np.append(LABELS_B, [255, 255])
    logits = np.concatenate([B, 100 * B[:2]])
    value, gradient = value_and_gradient(lambda z: ignoring(labels, z), logits)
    alone, alone_gradient = value_and_gradient(lambda z: loss(LABELS_B, z), B)
    assert value == pytest.approx(alone, rel=1e-6)
    assert_gradient(gradient[:4], alone_gradient, tolerance=2e-6)
    np.testing.assert_array_equal(gradient[4:], 0.0)


@EACH_LOSS
def test_a_batch_of_ignored_rows_is_zero(loss):
    ignoring = rebuilt(loss, ignore_class=255)
    value, gradient = value_and_gradient(
        lambda z: ignoring(np.full(4, 255), z), B
    )
    assert value == 0.0
    np.testing.assert_array_equal(gradient, 0.0)


@EACH_LOSS
def test_weight_two_is_a_repeated_row(loss):
    repeated = np.array([0, 0, 1, 2, 3, 3])
    weights = np.array([2.0, 1.0, 1.0, 2.0])
    for reduction in ("mean_with_sample_weight", "sum"):
        if reduction == "sum" and getattr(loss, "batch_statistic", False):
            continue  # once per row; see the next test
        reduced = rebuilt(loss, reduction=reduction)
        expected = float(reduced(LABELS_B[repeated], B[repeated]))
        value = float(reduced(LABELS_B, B, weights))
        assert value == pytest.approx(expected, rel=1e-6)


@EACH_LOSS
def test_a_sum_is_the_mean_times_the_number_of_rows(loss):
    # Whatever the weights: a batch statistic has them inside already.
    weights = np.array([2.0, 1.0, 0.5, 3.0])
    total = float(rebuilt(loss, reduction="sum")(LABELS_B, B, weights))
    rows = rebuilt(loss, reduction=None)(LABELS_B, B, weights)
    mean = rebuilt(loss, reduction="sum_over_batch_size")
    assert total == pytest.approx(float(ops.sum(rows)), rel=1e-5)
    expected = 4 * float(mean(LABELS_B, B, weights))
    assert total == pytest.approx(expected, rel=1e-5)


@EACH_LOSS
def test_weight_zero_is_a_row_left_out(loss):
    weights = np.array([1.0, 0.0, 1.0, 0.0])
    keep = weights > 0
    reduced = rebuilt(loss, reduction="mean_with_sample_weight")
    expected = float(loss(LABELS_B[keep], B[keep]))
    value = float(reduced(LABELS_B, B, weights))
    assert value == pytest.approx(expected, rel=1e-6)
    # A column of weights is what Keras makes of class weights.
    value = float(reduced(LABELS_B, B, weights[:, None]))
    assert value == pytest.approx(expected, rel=1e-6)


def test_a_batch_statistic_is_not_scaled_by_the_mean_weight():
    # Keras would multiply the statistic by 0.5.
    loss = MeanLogit(primary=None, from_logits=True)
    weights = np.array([1.0, 0.0, 1.0, 0.0])
    value = float(loss(LABELS_B, B, weights))
    assert value == pytest.approx(B[[0, 2], 0].mean(), rel=1e-6)


@EACH_LOSS
def test_without_reduction_one_value_per_row(loss):
    labels, logits = LABELS_B.reshape(2, 2), B.reshape(2, 2, 4)
    values = to_numpy(rebuilt(loss, reduction=None)(labels, logits))
    assert values.shape == (2, 2)
    expected = float(loss(labels, logits))
    assert values.mean() == pytest.approx(expected, rel=1e-6)
    assert to_numpy(loss.call(labels, logits)).shape == (2, 2)


def test_a_mask_of_keras_counts_rows_as_keras_does():
    # Two of three steps are real.
    labels, logits = LABELS_A[None], A[None].astype("float32")
    logits[0, 2] = 0.0
    y_pred = keras.layers.Masking()(logits)
    reference = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss = kc.losses.FocalLoss(gamma=0.0, from_logits=True)
    expected = float(reference(labels, y_pred))
    assert expected != pytest.approx(float(reference(labels, logits)))
    assert float(loss(labels, y_pred)) == pytest.approx(expected, rel=1e-6)


def test_weights_of_keras_losses_mean_the_same_here():
    reference = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss = kc.losses.FocalLoss(gamma=0.0, from_logits=True)
    weights = np.array([0.5, 2.0, 1.0])
    expected = float(reference(LABELS_A, A, weights))
    assert float(loss(LABELS_A, A, weights)) == pytest.approx(
        expected, rel=1e-6
    )


@pytest.mark.parametrize(
    "primary",
    [
        "cross_entropy",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        kc.losses.FocalLoss(gamma=2.0, from_logits=True),
        kc.losses.MarginLabelSmoothing(margin=2.0, from_logits=True),
        None,
    ],
    ids=["cross-entropy", "keras", "focal", "margin", "none"],
)
def test_any_primary_is_added(primary):
    penalty = kc.losses.ACLS(
        margin=1.0, primary=None, weight=3.0, from_logits=True
    )
    loss = kc.losses.ACLS(
        margin=1.0, primary=primary, weight=3.0, from_logits=True
    )
    expected = float(penalty(LABELS_A, A))
    if primary == "cross_entropy":
        expected += 0.55264564
    elif primary is not None:
        expected += float(primary(LABELS_A, A))
    assert float(loss(LABELS_A, A)) == pytest.approx(expected, rel=1e-6)


def test_a_categorical_primary_with_one_hot_labels():
    loss = kc.losses.ACLS(
        margin=1.0,
        primary=keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=0.05
        ),
        from_logits=True,
    )
    value = float(loss(np.eye(3)[LABELS_A], A))
    penalty = float(loss(np.eye(3)[LABELS_A], A)) - 0.61875675
    bare = rebuilt(loss, primary=None)
    assert penalty == pytest.approx(float(bare(LABELS_A, A)), rel=1e-5)
    assert value > penalty


@pytest.mark.parametrize(
    "primary",
    [
        keras.losses.CategoricalCrossentropy,
        keras.losses.CategoricalFocalCrossentropy,
    ],
)
@pytest.mark.parametrize("axis", [1, -3, 3, -1])
def test_a_primary_of_keras_with_the_class_axis_of_images(primary, axis):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 4, 4, 3)).astype("float32")
    labels = np.eye(3, dtype="float32")[rng.integers(0, 3, (2, 4, 4))]
    expected = to_numpy(primary(from_logits=True)(labels, logits))
    loss = kc.losses.DCA(
        primary=primary(axis=axis, from_logits=True),
        weight=0.0,
        axis=axis,
        from_logits=True,
    )
    labels, logits = (np.moveaxis(a, -1, axis) for a in (labels, logits))
    value = to_numpy(loss(labels, logits))
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
def test_a_primary_of_the_whole_batch_leaves_out_rows_of_weight_0(reduction):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=(2, 5, 5)).astype("float32")
    labels = np.eye(3, dtype="float32")[rng.integers(0, 3, (2, 5, 5))]
    weight = np.tile([1.0, 0.0, 1.0, 1.0, 0.0], (2, 5, 1))
    counts = weight > 0
    expected = to_numpy(keras.losses.Dice()(labels[counts], p[counts]))
    p[~counts] = np.nan
    loss = kc.losses.DCA(
        primary=keras.losses.Dice(), weight=0.0, reduction=reduction
    )
    # The number for the batch is there once per row, and weighted as such.
    rows = 0.6 if reduction == "sum_over_batch_size" else 30.0
    np.testing.assert_allclose(
        to_numpy(loss(labels, p, weight)), rows * expected, rtol=1e-5
    )


@pytest.mark.parametrize(
    "primary",
    [
        keras.losses.CategoricalGeneralizedCrossEntropy(),
        keras.losses.Dice(),
        keras.losses.KLDivergence(),
        keras.losses.MeanSquaredLogarithmicError(),
        keras.losses.Poisson(),
        keras.losses.Tversky(),
    ],
    ids=lambda primary: primary.name,
)
@pytest.mark.parametrize("form", ["ids", "rows"])
def test_a_primary_of_probabilities_gets_them(primary, form):
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(2, 4, 3)).astype("float32")
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    ids = rng.integers(0, 3, (2, 4))
    rows = np.eye(3, dtype="float32")[ids]
    generalized = keras.losses.CategoricalGeneralizedCrossEntropy
    of_ids = isinstance(primary, generalized)
    labels = ids.reshape(8) if of_ids else rows.reshape(8, 3)
    expected = float(primary(labels, p.reshape(8, 3)))
    given = ids if form == "ids" else rows
    # Keras has no name for the generalized cross-entropy.
    ways = (primary,) if of_ids else (primary, primary.name)
    for from_logits, predictions in ((True, logits), (False, p)):
        for inner in ways:
            loss = kc.losses.MDCA(
                primary=inner, weight=0.0, from_logits=from_logits
            )
            value = float(loss(given, predictions))
            assert value == pytest.approx(expected, rel=1e-4)


def test_a_primary_without_from_logits_gets_what_the_model_gives():
    rows = np.eye(3, dtype="float32")[LABELS_A]
    logits = A.astype("float32")
    for primary in (
        keras.losses.MeanSquaredError(),
        keras.losses.CategoricalHinge(),
    ):
        loss = kc.losses.DCA(primary=primary, weight=0.0, from_logits=True)
        expected = float(primary(rows, logits))
        assert float(loss(LABELS_A, logits)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("key", "inner", "outer"),
    [
        ("reduction", {"reduction": "sum"}, {}),
        ("reduction", {"reduction": "mean"}, {"reduction": "sum"}),
        ("axis", {"axis": -2}, {}),
        ("axis", {"axis": 1}, {"axis": 2}),
        ("ignore_class", {"ignore_class": 0}, {"ignore_class": 255}),
        ("across_replicas", {"across_replicas": True}, {}),
    ],
)
def test_settings_of_a_primary_that_would_be_dropped_are_refused(
    key, inner, outer
):
    with pytest.raises(ValueError, match=f"`{key}` belongs to the outer loss"):
        kc.losses.MDCA(primary=kc.losses.DCA(**inner), **outer)
    # The same in both is no contradiction, nor is one that says nothing.
    kc.losses.MDCA(primary=kc.losses.DCA(**inner), **inner)
    kc.losses.MDCA(primary=kc.losses.DCA(), **inner)
    kc.losses.MDCA(primary=keras.losses.CategoricalCrossentropy(axis=1))


def test_probabilities_give_what_logits_give():
    loss = kc.losses.ACLS(margin=1.0, reference="min")
    logits = ops.convert_to_tensor(A.astype("float32"))
    for given in (
        keras.activations.softmax(logits),
        np.exp(A) / np.exp(A).sum(-1, keepdims=True),
    ):
        value = float(loss(LABELS_A, given))
        assert value == pytest.approx(1.17982897, rel=1e-6)


@pytest.mark.backends(
    "tensorflow", "torch", reason="JAX arrays take no attributes"
)
@pytest.mark.parametrize(
    "loss", [kc.losses.ACLS(reference="zero"), kc.losses.SquaredLogitLoss()]
)
def test_the_logits_that_keras_keeps_do_not_tell_where_zero_was(loss):
    # Nor on JAX, where there are none; an average of networks has others.
    softmax = keras.activations.softmax(
        ops.convert_to_tensor(A.astype("float32"))
    )
    assert softmax._keras_logits is not None
    with pytest.raises(ValueError, match="do not tell where zero was"):
        loss(LABELS_A, softmax)


@EACH_LOSS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_cast_up(loss, dtype):
    half = ops.cast(ops.convert_to_tensor(B.astype("float32")), dtype)
    expected = float(loss(LABELS_B, ops.cast(half, "float32")))
    assert float(loss(LABELS_B, half)) == pytest.approx(expected, rel=1e-6)


@EACH_LOSS
@pytest.mark.parametrize("scale", [1e4, -1e4, 0.0])
def test_extreme_logits_stay_finite(loss, scale):
    value, gradient = value_and_gradient(
        lambda z: loss(LABELS_B, z), scale * np.sign(B)
    )
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


@EACH_LOSS
def test_compiled_equals_eager(loss):
    logits = ops.convert_to_tensor(B.astype("float32"))
    labels = ops.convert_to_tensor(LABELS_B.astype("int32"))
    value = float(compiled(lambda y, z: loss(y, z))(labels, logits))
    assert value == pytest.approx(float(loss(labels, logits)), rel=1e-6)


def test_labels_beyond_the_integers_of_a_float_stay_exact():
    # Cast to float16, as Keras casts labels, 2049 is 2048.
    logits = np.zeros((1, 2050), "float32")
    logits[0, 2049] = 5.0
    loss = kc.losses.FocalLoss(gamma=0.0, from_logits=True, dtype="float16")
    right = float(loss(np.array([2049]), logits))
    wrong = float(loss(np.array([2048]), logits))
    assert right == pytest.approx(wrong - 5.0, abs=0.01)


@EACH_LOSS
def test_config_round_trip(loss):
    config = loss.get_config()
    again = type(loss).from_config(config)
    assert again.get_config() == config
    assert float(again(LABELS_B, B)) == float(loss(LABELS_B, B))


@pytest.mark.parametrize(
    "primary",
    [
        kc.losses.FocalLoss(gamma=2.0, from_logits=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    ],
    ids=["ours", "keras"],
)
@pytest.mark.slow
def test_parts_in_fit_and_in_a_saved_model(primary, digits, tmp_path):
    loss = kc.losses.ACLS(
        margin=1.0, primary=primary, weight=0.5, from_logits=True
    )
    model = small_network()
    model.compile("sgd", loss, metrics=["accuracy", *loss.component_metrics()])
    (x, y), _, _ = digits
    history = model.fit(x, y, batch_size=128, verbose=0).history
    total = history["primary_loss"][0] + 0.5 * history["penalty"][0]
    assert history["loss"][0] == pytest.approx(total, rel=1e-5)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert again.evaluate(x, y, verbose=0, return_dict=True) == pytest.approx(
        model.evaluate(x, y, verbose=0, return_dict=True), rel=1e-6
    )


@pytest.mark.parametrize("jit_compile", [*JIT_COMPILE, "auto"])
def test_fit_with_weights_and_class_weights(jit_compile, digits):
    (x, y), _, _ = digits
    model = small_network()
    ece = kc.metrics.ExpectedCalibrationError(from_logits=True)
    model.compile(
        "sgd",
        MeanLogit(from_logits=True),
        weighted_metrics=[ece],
        jit_compile=jit_compile,
    )
    weights = np.linspace(0, 2, len(y))
    first = model.fit(x, y, sample_weight=weights, verbose=0)
    second = model.fit(x, y, class_weight={0: 2.0, 1: 0.5}, verbose=0)
    for history in (first, second):
        assert np.isfinite(history.history["loss"]).all()


def test_mixed_precision(digits):
    (x, y), _, _ = digits
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = small_network()
    finally:
        keras.config.set_dtype_policy("float32")
    loss = kc.losses.ACLS(margin=1.0, from_logits=True)
    model.compile("adam", loss)
    history = model.fit(x, y, epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0]


@pytest.mark.parametrize("label", [0, 1])
def test_a_softmax_of_half_precision_that_rounds_to_zero_still_trains(label):
    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    y = np.random.default_rng(1).integers(0, 3, 32)
    x[0], y[0] = [20.0, 0.0, 0.0], label
    keras.config.set_dtype_policy("mixed_float16")
    try:
        outputs = keras.layers.Dense(3, activation="softmax")
        model = keras.Sequential([keras.Input((3,)), outputs])
    finally:
        keras.config.set_dtype_policy("float32")
    model.set_weights([np.eye(3, dtype="float32"), np.zeros(3, "float32")])
    loss = kc.losses.LabelSmoothing(smoothing=0.05)
    log_p = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    smooth = 0.95 * np.eye(3)[y] + 0.05 / 3
    expected = -(smooth * log_p).sum(axis=1).mean()
    model.compile(keras.optimizers.SGD(0.01), loss)
    before = model.get_weights()[0]
    found = model.fit(x, y, batch_size=32, verbose=0).history["loss"][0]
    # Where logits are not known, of a probability of 2e-9 is known that it is
    # at most 3e-8: half of the least one, so 1.5e-8 on average.
    assert found <= expected + 2e-3
    assert found == pytest.approx(expected, abs=3.0 / 32)
    assert np.abs(model.get_weights()[0] - before).max() > 1e-5


BAD_INPUT = {
    "logits taken for probabilities": (LABELS_A, A, "from_logits=True"),
    "labels that start at one": (
        LABELS_A + 1,
        np.full((3, 3), 1 / 3),
        "0 to 2",
    ),
    "labels below zero": (
        np.array([0, -1, 2]),
        np.full((3, 3), 1 / 3),
        "from -1",
    ),
    "rows that are not one-hot": (
        np.ones((3, 3)),
        np.full((3, 3), 1 / 3),
        "sum to one",
    ),
    "too few labels": (LABELS_A[:2], A, "do not fit"),
    "no class": (LABELS_A, A[:, :0], "class axis of known size"),
    "no class axis": (0, A[0, 0], "class axis"),
    "probabilities that do not sum to one": (
        LABELS_A,
        np.full((3, 3), 0.3),
        "off by -0.1",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(case):
    labels, predictions, message = BAD_INPUT[case]
    with pytest.raises(ValueError, match=message):
        kc.losses.ACLS()(labels, predictions)


def test_negative_weights():
    with pytest.raises(ValueError, match="cannot be negative"):
        rebuilt(LOSSES[0])(LABELS_A, A, np.array([1.0, -1.0, 1.0]))


@pytest.mark.backends("tensorflow", "jax", reason="torch is eager, and raises")
def test_compiled_code_turns_bad_input_into_nan():
    labels = ops.convert_to_tensor((LABELS_A + 1).astype("int32"))
    logits = ops.convert_to_tensor(A.astype("float32"))
    loss = kc.losses.FocalLoss(from_logits=True)
    assert np.isnan(float(compiled(lambda y, z: loss(y, z))(labels, logits)))
    loss = kc.losses.FocalLoss(from_logits=False)
    labels = ops.convert_to_tensor(LABELS_A.astype("int32"))
    assert np.isnan(float(compiled(lambda y, z: loss(y, z))(labels, logits)))


def test_nan_logits_are_refused_at_first_and_give_nan_later():
    broken = A.copy()
    broken[1, 1] = np.nan
    loss = kc.losses.FocalLoss(from_logits=True)
    with pytest.raises(ValueError, match="NaN or infinity in 1 of 3 rows"):
        loss(LABELS_A, broken)
    loss(LABELS_A, A)
    assert np.isnan(float(loss(LABELS_A, broken)))


@pytest.mark.parametrize(
    ("primary", "message"),
    [
        (keras.losses.SparseCategoricalCrossentropy(), "same predictions"),
        (kc.losses.FocalLoss(), "same predictions"),
        (
            kc.losses.FocalLoss(from_logits=True, ignore_class=3),
            "outer loss",
        ),
        (
            lambda y_true, y_pred: 0.0,
            '`primary` must be "cross_entropy", a `keras.losses.Loss` or None',
        ),
    ],
    ids=["keras", "ours", "ignore_class", "function"],
)
def test_a_primary_that_contradicts(primary, message):
    with pytest.raises(ValueError, match=message):
        kc.losses.ACLS(primary=primary, from_logits=True)


def test_a_softmax_network_trains_before_its_values_are_seen():
    # On torch Keras works out shapes with rows of ones: no probabilities.
    model = small_network(activation="softmax")
    model.compile("sgd", kc.losses.SampleDependentFocalLoss())
    x = np.random.default_rng(0).normal(size=(32, 64))
    history = model.fit(x, np.arange(32) % 10, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    if keras.backend.backend() == "tensorflow":
        return  # its softmax carries the logits, so ACLS has them
    model.compile("sgd", kc.losses.ACLS())
    with pytest.raises(ValueError, match="measures from a logit of zero"):
        model.fit(x, np.arange(32) % 10, verbose=0)


def test_across_replicas_of_one_process_changes_nothing():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 12)
    logits = rng.normal(size=(12, 3)).astype("float32")
    for whole in (np.float64, np.float16):
        scores = logits.astype(whole)
        one = kc.losses.MDCA(from_logits=True)(labels, scores)
        all_of_them = kc.losses.MDCA(from_logits=True, across_replicas=True)
        assert float(all_of_them(labels, scores)) == float(one)
    assert all_of_them.get_config()["across_replicas"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: kc.losses.MDCA(across_replicas=True, reduction=None),
            "one number",
        ),
        (lambda: kc.losses.CRL(across_replicas=True), "history of CRL"),
        (
            lambda: kc.models.InterleavedTraining(
                keras.Sequential([keras.layers.Dense(3)])
            ).compile("sgd", kc.losses.MDCA(across_replicas=True)),
            "penalty part",
        ),
    ],
)
def test_across_replicas_is_refused_where_rows_belong_to_one(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_penalty_per_row_adds_nothing_for_the_batch():
    loss = kc.losses.ACLS(margin=1.0, from_logits=True)
    rows = loss.rows(LABELS_B, B, None)
    per_row, batch = loss.penalty_terms(rows)
    expected = kc.losses.acls(LABELS_B, B, margin=1.0)
    np.testing.assert_allclose(to_numpy(per_row), to_numpy(expected))
    assert batch == 0.0


@pytest.mark.parametrize("name", [each.__name__ for each in OF_ROWS])
@pytest.mark.parametrize("shape", [(4, 4), (1, 4), (3, 2, 4)])
def test_primaries_that_want_rows_take_class_ids(name, shape):
    # Ids were one row beside four samples of four classes.
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=shape[:-1])
    p = rng.dirichlet(np.ones(4), shape[:-1]).astype("float32")
    loss = kc.losses.MDCA(primary=getattr(keras.losses, name)())
    rows = np.eye(4, dtype="float32")[labels]
    expected = getattr(keras.losses, name)()(rows, p)
    without = kc.losses.MDCA(primary=getattr(keras.losses, name)(), weight=0.0)
    assert float(without(labels, p)) == pytest.approx(float(expected), rel=1e-5)
    assert float(loss(labels, p)) == pytest.approx(float(loss(rows, p)))


@pytest.mark.parametrize(
    "primary",
    [
        keras.losses.Dice(),
        keras.losses.Tversky(),
        keras.losses.SparseCategoricalCrossentropy(),
    ],
)
def test_a_primary_takes_ids_and_rows(primary):
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1.0, 1.0, 1.0], 8).astype("float32")
    y = rng.integers(0, 3, 8)
    loss = kc.losses.MDCA(primary=primary)
    of_ids = float(loss(y, p))
    assert of_ids == pytest.approx(float(loss(np.eye(3)[y], p)), rel=1e-6)
    expected = primary.call(
        y if "Sparse" in type(primary).__name__ else np.eye(3)[y],
        keras.ops.convert_to_tensor(p),
    )
    penalty = float(kc.losses.mdca(y, np.log(p)))
    expected = float(keras.ops.mean(expected)) + penalty
    assert of_ids == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", [kc.losses.MDCA, kc.losses.FocalLoss])
def test_several_sigmoid_units_are_no_softmax(loss):
    # TensorFlow and PyTorch would show the logits of the units.
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(4, activation="sigmoid")]
    )
    x = np.random.default_rng(0).normal(size=(40, 6)).astype("float32")
    y = np.arange(40) % 4
    with pytest.raises(ValueError, match="must be a probability vector"):
        loss()(y, model(x))
    model.compile("sgd", loss())
    try:
        (value,) = model.fit(x, y, epochs=1, verbose=0).history["loss"]
    except ValueError as error:  # where training is eager
        assert "must be a probability vector" in str(error)
    else:
        assert np.isnan(value)


@pytest.mark.parametrize("floatx", ["float16", "bfloat16"])
def test_parts_are_summed_in_float32_whatever_floatx_is(floatx):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(10), size=40_000).astype("float32")
    labels = (p.cumsum(axis=1) > rng.random((len(p), 1))).argmax(axis=1)
    expected = -np.log(p[np.arange(len(p)), labels]).mean()
    keras.config.set_floatx(floatx)
    try:
        loss = kc.losses.MDCA()
        [part, _] = loss.component_metrics()
        assert part.get_config()["dtype"] == "float32"
        for rows in np.split(np.arange(len(p)), 400):
            y_pred = keras.ops.convert_to_tensor(p[rows], "float32")
            part.update_state(labels[rows], y_pred)
    finally:
        keras.config.set_floatx("float32")
    found = float(keras.ops.cast(part.result(), "float32"))
    # The loss of each batch is of that dtype, as those of Keras' losses.
    assert found == pytest.approx(expected, rel=3e-3)
    again = kc.losses.LossPart.from_config(part.get_config())
    assert (again.name, again.dtype) == ("primary_loss", "float32")


@pytest.mark.parametrize(
    "name",
    [
        *("Hinge", "SquaredHinge", "MeanSquaredLogarithmicError"),
        *("MeanAbsolutePercentageError", "BinaryCrossentropy"),
    ],
)
def test_a_primary_of_keras_gets_rows_of_as_many_samples_as_classes(name):
    p = np.random.default_rng(0).dirichlet(np.ones(4), size=4)
    p, labels = p.astype("float32"), np.array([0, 2, 1, 3])
    primary = getattr(keras.losses, name)()
    loss = kc.losses.DCA(primary=primary, weight=0.0)
    expected = float(primary(np.eye(4, dtype="float32")[labels], p))
    assert float(loss(labels, p)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "name, kind",
    [
        ("categorical_crossentropy", keras.losses.CategoricalCrossentropy),
        ("CategoricalCrossentropy", keras.losses.CategoricalCrossentropy),
        ("kl_divergence", keras.losses.KLDivergence),
        ("mse", keras.losses.MeanSquaredError),
    ],
)
@pytest.mark.parametrize("from_logits", [True, False])
def test_a_primary_by_any_name_that_keras_knows(name, kind, from_logits):
    loss = kc.losses.DCA(primary=name, from_logits=from_logits)
    assert type(loss.primary) is kind
    takes = loss.primary.get_config().get("from_logits")
    assert takes in (None, from_logits)
    again = kc.losses.DCA.from_config(loss.get_config())
    assert type(again.primary) is kind


def test_a_primary_that_is_no_loss_is_named_as_it_was():
    with pytest.raises(ValueError, match="primary='crossentropy'"):
        kc.losses.DCA(primary="crossentropy")
