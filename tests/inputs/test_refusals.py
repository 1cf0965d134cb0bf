"""Arguments of another kind, each refused by its name; numbers of any kind."""

import functools

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.data.batches import as_batches
from keras_calib.inputs import label_rules
from keras_calib.inputs.arguments import are_numbers
from keras_calib.inputs.arguments import is_number
from keras_calib.inputs.arguments import require_integer
from tests.helpers import small_network

LABELS = np.arange(12) % 3
P = np.random.default_rng(0).dirichlet(np.ones(3), 12)


def test_a_tensor_without_axes_is_a_number():
    assert is_number(keras.ops.convert_to_tensor(1.5))
    assert is_number(keras.Variable(1.5))
    assert not is_number(keras.ops.convert_to_tensor([1.5]))
    assert are_numbers(np.array([0.0, 1.0]))
    assert not are_numbers(np.array([[0.0, 1.0]]))
    assert not are_numbers(np.array(["0", "1"]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: kc.metrics.calibration_errors(LABELS, P, metrics=3),
            "`metrics` must be a list of names",
        ),
        (
            lambda: kc.metrics.calibration_errors(LABELS, P, ignore_class="x"),
            "`ignore_class` is the label of rows",
        ),
        (
            lambda: kc.report(P, y=LABELS, class_names=3),
            "`class_names` must be a list of names",
        ),
        (
            lambda: kc.calibrate(small_network(3, inputs=4), [(3.0, 1)]),
            "Inputs must be arrays with an axis",
        ),
    ],
)
def test_what_is_no_such_argument_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_names_of_fewer_classes_than_are_drawn():
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="a name for each class"):
        kc.plots.classwise_reliability(LABELS, P, class_names=["a"])


def test_names_of_models_that_read_the_same():
    with pytest.raises(ValueError, match=r"must differ.* \[1, '1'\]"):
        kc.report({1: P, "1": P}, y=LABELS)


HINT = "ass the probability of every class, no predicted classes"
CLASSES = {
    "of one unit": (np.arange(12) % 2, P[:, 0] > 0.5),
    "of one unit, integers": (np.arange(12) % 2, (P[:, 0] > 0.5).astype(int)),
    "class ids": (LABELS, P.argmax(axis=1)),
    "one-hot rows": (LABELS, np.eye(3, dtype=int)[P.argmax(axis=1)]),
    "a list": (LABELS[:3], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_predicted_classes_are_no_probabilities(kind):
    labels, given = CLASSES[kind]
    tensor = keras.ops.convert_to_tensor(given)
    calls = [
        lambda: kc.metrics.calibration_errors(labels, given),
        lambda: kc.metrics.calibration_errors(labels, tensor),
        lambda: kc.report(given, y=labels, num_resamples=2),
    ]
    for call in calls:
        if kind == "class ids":
            # Ids of three classes do not fit one number for each sample.
            with pytest.raises(ValueError, match=HINT):
                call()
            continue
        with pytest.warns(UserWarning, match="Predictions of dtype") as raised:
            call()
        assert any(HINT in str(each.message) for each in raised)


def test_logits_may_be_whole_numbers():
    z = np.array([[1, 0, 3], [0, 2, 0], [0, 0, 4]])
    found = kc.metrics.calibration_errors([2, 1, 2], z, from_logits=True)
    assert found["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"alive": 0, "dead": 1, "lost": 2}, "must be the class ids 0, 1"),
        ({"a", "b", "c"}, "list of names, in the order"),
        ("abc", "list of names, in the order"),
        ([["a"], "b", "c"], "list of names, in the order"),
        (iter("abc"), "list of names, in the order"),
        ([], "list of names, in the order"),
        (["a", "b", "a"], "must differ.* Received: 'a' for 2 classes"),
        (["a", "b"], "Received: 2 names for 3 classes"),
    ],
)
def test_names_of_classes_that_leave_open_which_is_which(names, words):
    pytest.importorskip("matplotlib")
    for call in (kc.report, kc.plots.classwise_reliability):
        data = (LABELS, P) if call is not kc.report else (P, None, LABELS)
        with pytest.raises(ValueError, match=words):
            call(*data, class_names=names)


def test_names_of_classes_are_checked_before_a_model_runs():
    class Never(keras.Model):
        def call(self, x):
            raise AssertionError

    for names in ("abc", ["a", "a"]):
        with pytest.raises(ValueError, match="`class_names` must"):
            kc.report(Never(), P, LABELS, class_names=names)


@pytest.mark.parametrize(
    "names",
    [("a", "b", "c"), np.array(["a", "b", "c"]), {1: "b", 0: "a", 2: "c"}],
)
def test_names_of_classes_in_order(names):
    report = kc.report(
        P, y=LABELS, class_names=names, num_resamples=2, verbose=0
    )
    found = {row["class"]: row["name"] for row in report.models[0].classes}
    assert found == {k: "abc"[k] for k in found}


def test_a_report_of_one_sample_has_no_intervals():
    report = kc.report(P[:1], y=LABELS[:1], num_resamples=2, verbose=0)
    (found,) = report.models
    assert found.intervals == "none for one sample, image or text"
    assert all(row["low"] is None for row in found.metrics.values())


def test_a_layer_may_be_called_by_name():
    layer = kc.layers.TemperatureScaling().adapt(np.log(P), LABELS)
    named = layer(logits=np.log(P).astype("float32"))
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(named),
        keras.ops.convert_to_numpy(layer(np.log(P).astype("float32"))),
    )


def test_weights_of_each_label_move_with_the_axis():
    rng = np.random.default_rng(1)
    labels, units = rng.integers(0, 2, (8, 3, 5)), rng.random((8, 3, 5))
    weights = rng.random((8, 3, 5)).astype("float32")
    found = []
    for axis, parts in (
        (1, (labels, units, weights)),
        (-1, [np.moveaxis(each, 1, -1) for each in (labels, units, weights)]),
    ):
        metric = kc.metrics.MultilabelCalibrationError(axis=axis)
        metric.update_state(*parts)
        found.append(float(metric.result()))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_first_inputs_of_no_axis():
    with pytest.raises(ValueError, match="Inputs must be arrays"):
        as_batches([(3.0, [1])]).first_inputs()


@pytest.mark.parametrize("ids", [[{}], [{}, {}], [None]], ids=str)
def test_ids_without_an_order(ids):
    array = np.empty(len(ids), object)
    array[:] = ids
    with pytest.raises(ValueError, match="without an order"):
        label_rules.checked_group_ids(array, "`groups`")


def test_integers_are_below_two_to_the_31():
    require_integer(0, seed=2**31 - 1)
    with pytest.raises(ValueError, match="seed"):
        require_integer(0, seed=2**31)


@pytest.mark.parametrize("label", [2**32, 2**32 + 1, -(2**32), 2**63 - 1])
def test_an_id_beyond_32_bits_is_no_small_one(label):
    labels, p = np.array([0, 1, 2, label]), np.full((4, 3), 1 / 3)
    with pytest.raises(ValueError, match="0 to 2"):
        kc.losses.BrierLoss(from_logits=False)(labels, p)
    metric = kc.metrics.ExpectedCalibrationError()
    with pytest.raises(ValueError, match="0 to 2"):
        metric.update_state(labels, p)
    with pytest.raises(ValueError, match="0 to 2"):
        # It is not the class -1.
        kc.losses.BrierLoss(from_logits=False, ignore_class=-1)(
            np.array([0, 1, 2, 2**32 - 1], "uint32"), p
        )


@pytest.mark.parametrize("seed", [2**31, 2**32, -(2**31) - 1, 0.5])
def test_a_seed_of_corruptions_has_32_bits(seed):
    images = np.zeros((1, 16, 16, 3), "uint8")
    with pytest.raises(ValueError, match="an integer of 32 bits"):
        kc.shift.corrupt(images, "gaussian_noise", 1, seed=seed)
    kc.shift.corrupt(images, "gaussian_noise", 1, seed=-(2**31))


def test_fractions_as_several_labels_need_0_or_1():
    fractions = np.full((12, 3), 0.5)
    with pytest.raises(ValueError, match="as of several labels, needs 0 or 1"):
        kc.metrics.MultilabelCalibrationError()(fractions, P)
    with pytest.raises(ValueError) as caught:
        kc.metrics.calibration_errors(np.full(12, 0.5), P)
    assert "several labels" not in str(caught.value)


def _refuses(call, seed):
    with pytest.raises(ValueError, match="`seed` must be at least 0, an int"):
        call(seed=seed)


@pytest.mark.parametrize("seed", ["a", -1, 1.5])
@pytest.mark.parametrize(
    "layer",
    [
        kc.layers.ConformalSets,
        kc.layers.IntraOrderPreserving,
        kc.layers.LocalTemperatureScaling,
        kc.layers.ParameterizedTemperatureScaling,
        kc.layers.RiskThreshold,
    ],
)
def test_a_seed_of_a_layer_is_checked_when_it_is_made(layer, seed):
    _refuses(layer, seed)


@pytest.mark.parametrize("seed", ["a", -1, 1.5])
def test_a_seed_is_checked_also_where_none_is_needed(seed):
    x, y = np.zeros((8, 4)), np.arange(8) % 3
    _refuses(functools.partial(kc.callbacks.DataPruning, x, y), seed)
    model = small_network(3, inputs=4)
    _refuses(functools.partial(kc.calibrate, model, x, y, verbose=0), seed)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_probabilities_of_any_precision_are_no_logits(dtype):
    p = keras.ops.cast(np.repeat(P, 4, axis=0), dtype)
    labels = np.repeat(LABELS, 4)
    for call in (
        lambda: kc.metrics.calibration_errors(labels, p, from_logits=True),
        lambda: kc.metrics.NegativeLogLikelihood(from_logits=True)(labels, p),
        lambda: kc.losses.LabelSmoothing(from_logits=True)(labels, p),
        lambda: kc.layers.TemperatureScaling().adapt(p, labels),
    ):
        with pytest.raises(ValueError, match="Logits are scores before soft"):
            call()
