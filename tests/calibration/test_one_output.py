"""`output_name=`: one of several outputs is calibrated, the others stay."""

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.calibration._one_output import one_output
from tests.calibration.networks import KERNEL
from tests.calibration.networks import Subclassed
from tests.calibration.networks import X
from tests.calibration.networks import Y

OTHER = np.arange(len(Y)) % 2
KINDS = {
    "dict": lambda a, b: {"kind": a, "size": b},
    "list": lambda a, b: [a, b],
}


def two_outputs(kind):
    inputs = keras.Input((8,))
    kinds = keras.layers.Dense(3, "softmax", use_bias=False, name="kind")
    sizes = keras.layers.Dense(1, "sigmoid", name="size")
    model = keras.Model(inputs, KINDS[kind](kinds(inputs), sizes(inputs)))
    kinds.set_weights([3 * KERNEL])
    return model


def alone(model, name):
    """A model with this output and nothing else."""
    return keras.Model(model.inputs, model.get_layer(name).output)


def outputs_of(kind, model):
    found = model.predict(X, verbose=0)
    return (found["kind"], found["size"]) if kind == "dict" else tuple(found)


@pytest.mark.parametrize("kind", KINDS)
def test_one_output_is_calibrated_and_the_others_stay(kind, tmp_path):
    model = two_outputs(kind)
    calibrated = kc.calibrate(model, X, Y, output_name="kind", verbose=0)
    expected = kc.calibrate(alone(model, "kind"), X, Y, verbose=0)
    kinds, sizes = outputs_of(kind, calibrated)
    np.testing.assert_allclose(kinds, expected.predict(X, verbose=0), atol=1e-6)
    np.testing.assert_array_equal(sizes, outputs_of(kind, model)[1])
    assert np.abs(kinds - outputs_of(kind, model)[0]).max() > 0.05
    record = kc.calibration_record(calibrated)
    assert record == kc.calibration_record(expected)
    if kind == "list":
        with pytest.raises(ValueError, match="keep their places"):
            kc.calibration_record(calibrated, output_name="kind")
    calibrated.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(outputs_of(kind, again)[0], kinds)
    assert kc.calibration_record(again) == record


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_all_outputs(kind):
    model = two_outputs(kind)
    y = KINDS[kind](Y, OTHER)
    weight = np.linspace(0, 2, len(Y))
    expected = kc.calibrate(model, X, Y, weight, output_name="kind", verbose=0)
    weights = KINDS[kind](weight, np.ones(len(Y)))
    found = kc.calibrate(model, X, y, weights, output_name="kind", verbose=0)
    assert kc.calibration_record(found) == kc.calibration_record(expected)
    batches = [
        (
            X[part],
            KINDS[kind](Y[part], OTHER[part]),
            KINDS[kind](weight[part], None),
        )
        for part in (slice(0, 100), slice(100, None))
    ]
    found = kc.calibrate(model, batches, output_name="kind", verbose=0)
    record = kc.calibration_record(found)
    assert record["temperature"] == pytest.approx(
        kc.calibration_record(expected)["temperature"], rel=1e-5
    )
    # Compiled for this output alone.
    values = found.evaluate(X, y, verbose=0, return_dict=True)
    p = outputs_of(kind, found)[0][np.arange(len(Y)), Y]
    assert values["loss"] == pytest.approx(-np.log(p).mean(), rel=1e-4)


def test_one_output_after_the_other():
    model = two_outputs("dict")
    data = X, {"kind": Y, "size": OTHER}
    first = kc.calibrate(model, *data, output_name="kind", verbose=0)
    both = kc.calibrate(
        first, *data, output_name="size", guard=False, verbose=0
    )
    alone_ = kc.calibrate(
        alone(model, "size"), X, OTHER, guard=False, verbose=0
    )
    found = both.predict(X, verbose=0)
    np.testing.assert_allclose(
        found["kind"], first.predict(X, verbose=0)["kind"], atol=1e-6
    )
    np.testing.assert_allclose(
        found["size"], alone_.predict(X, verbose=0), atol=1e-6
    )


def test_fused():
    model = two_outputs("dict")
    plain = kc.calibrate(model, X, Y, output_name="kind", verbose=0)
    fused = kc.calibrate(model, X, Y, output_name="kind", fuse=True, verbose=0)
    assert len(fused.layers) < len(plain.layers)
    np.testing.assert_allclose(
        fused.predict(X, verbose=0)["kind"],
        plain.predict(X, verbose=0)["kind"],
        atol=1e-6,
    )


def test_a_subclassed_model_has_no_names():
    model = Subclassed("softmax")
    model(X[:1])
    with pytest.raises(ValueError, match="`output_name` needs a Functional"):
        kc.calibrate(model, X, Y, output_name="kind")


def test_lists_that_are_not_of_all_outputs_are_labels_of_this_one():
    place = one_output(two_outputs("list"), "kind")
    assert place.part_of([Y, OTHER]) is Y
    labels = [0, 1, 2]
    assert place.part_of(labels) is labels


def test_names_that_are_none():
    with pytest.raises(ValueError, match=r"\['kind', 'size'\].*'color'"):
        kc.calibrate(two_outputs("dict"), X, Y, output_name="color")
    with pytest.raises(ValueError, match="leave out `output_name`"):
        kc.calibrate(
            alone(two_outputs("dict"), "kind"), X, Y, output_name="kind"
        )
    with pytest.raises(ValueError, match="output_name"):
        kc.calibrate(two_outputs("dict"), X, Y)


@pytest.mark.parametrize(
    "nested",
    [
        lambda a, b: {"kind": [a], "size": b},
        lambda a, b: {"kind": {"x": a}, "size": b},
        lambda a, b: [[a, b], b],
    ],
)
def test_an_output_that_is_no_tensor_is_named(nested):
    model = two_outputs("list")
    model = keras.Model(model.input, nested(*model.output))
    with pytest.raises(ValueError, match="Each output must be a tensor"):
        kc.calibrate(model, X, Y, output_name="kind")


def test_one_tensor_beside_a_nested_one_is_calibrated():
    model = two_outputs("list")
    kinds, sizes = model.output
    model = keras.Model(model.input, {"kind": kinds, "size": [sizes]})
    calibrated = kc.calibrate(model, X, Y, output_name="kind", verbose=0)
    expected = kc.calibrate(alone(model, "kind"), X, Y, verbose=0)
    np.testing.assert_allclose(
        calibrated.predict(X, verbose=0)["kind"],
        expected.predict(X, verbose=0),
        atol=1e-6,
    )


def test_a_name_of_two_outputs_is_refused():
    inputs = keras.Input((8,))
    head = keras.layers.Dense(3, "softmax", name="kind")
    one = head(inputs)
    for outputs in ([one, one], [one, head(2 * inputs)]):
        model = keras.Model(inputs, outputs)
        with pytest.raises(ValueError, match="'kind', which 2 outputs have"):
            kc.calibrate(model, X, Y, output_name="kind")
    # Of another name there is one.
    sizes = keras.layers.Dense(1, "sigmoid", name="size")(inputs)
    model = keras.Model(inputs, [one, one, sizes])
    kc.calibrate(model, X, OTHER, output_name="size", verbose=0)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_as_fit_takes_them_for_the_other_kind(kind):
    model = two_outputs(kind)
    # By name for a list, and for a dict in the order of its sorted keys.
    y = [Y, OTHER] if kind == "dict" else {"kind": Y, "size": OTHER}
    model.compile(loss=KINDS[kind](kc.losses.BrierLoss(), None))
    losses = model.evaluate(X, y, verbose=0, return_dict=True)
    away = outputs_of(kind, model)[0] - np.eye(3)[Y]
    expected = (away**2).sum(axis=1).mean()
    assert losses["loss"] == pytest.approx(expected, rel=1e-4)
    expected = kc.calibrate(model, X, Y, output_name="kind", verbose=0)
    for source in ((X, y), ([(X, y)],)):
        found = kc.calibrate(model, *source, output_name="kind", verbose=0)
        assert kc.calibration_record(found)["temperature"] == pytest.approx(
            kc.calibration_record(expected)["temperature"], rel=1e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_labels_in_a_table_with_the_outputs_as_columns(kind):
    pandas = pytest.importorskip("pandas")
    model = two_outputs(kind)
    weight = np.linspace(0, 2, len(Y))
    weights = pandas.DataFrame({"kind": weight, "size": np.ones(len(Y))})
    # By their names, whatever their order, and by their place.
    y = pandas.DataFrame(
        {"size": OTHER, "kind": Y}, index=np.arange(len(Y)) + 7
    )
    expected = kc.calibrate(model, X, Y, weight, output_name="kind", verbose=0)
    found = kc.calibrate(model, X, y, weights, output_name="kind", verbose=0)
    assert kc.calibration_record(found) == kc.calibration_record(expected)
    rows = pandas.DataFrame(np.eye(3)[Y], columns=["a", "b", "c"])
    found = kc.calibrate(model, X, rows, weight, output_name="kind", verbose=0)
    assert kc.calibration_record(found)["temperature"] == pytest.approx(
        kc.calibration_record(expected)["temperature"], rel=1e-5
    )


def test_weights_of_another_output_alone_are_refused():
    model = two_outputs("dict")
    weights = {"size": np.ones(len(Y))}
    with pytest.raises(ValueError, match=r"keys \['size'\], without 'kind'"):
        kc.calibrate(model, X, Y, weights, output_name="kind", verbose=0)


def chain():
    """A layer whose output is used by another output, too."""
    inputs = keras.Input((8,))
    early = keras.layers.Dense(3, "softmax", name="early")(inputs)
    both = keras.layers.Concatenate()([inputs, early])
    late = keras.layers.Dense(3, "softmax", name="late")(both)
    return keras.Model(inputs, {"kind": early, "size": late})


def predicted_class():
    inputs = keras.Input((8,))
    p = keras.layers.Dense(3, "softmax")(inputs)
    return keras.Model(
        inputs, {"kind": p, "size": keras.ops.argmax(p, axis=-1)}
    )


def one_tensor_twice():
    inputs = keras.Input((8,))
    p = keras.layers.Dense(3, "softmax")(inputs)
    return keras.Model(inputs, {"kind": p, "size": p})


def towers(head):
    """Two bodies and one head."""
    inputs = keras.Input((8,))
    first, second = (keras.layers.Dense(4)(inputs) for _ in range(2))
    return keras.Model(inputs, {"kind": head(first), "size": head(second)})


SHARED = {
    "layer before another output": chain,
    "predicted class": predicted_class,
    "one tensor twice": one_tensor_twice,
    "one head": lambda: towers(keras.layers.Dense(3, "softmax")),
    "one nested head": lambda: towers(
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    ),
}


@pytest.mark.parametrize("case", SHARED)
@pytest.mark.filterwarnings("ignore:The temperature was set")
def test_a_layer_of_several_outputs_is_saved_once(case, tmp_path):
    model = SHARED[case]()
    calibrated = kc.calibrate(
        model, X, Y, output_name="kind", guard=False, verbose=0
    )
    calibrated.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    for name, expected in calibrated.predict(X, verbose=0).items():
        found = again.predict(X, verbose=0)[name]
        np.testing.assert_array_equal(found, expected)
    assert len(again.weights) == len(calibrated.weights)


def test_a_map_that_is_not_fused_takes_the_place_of_one_that_was():
    model = two_outputs("dict")
    arguments = {"output_name": "kind", "verbose": 0}
    first = kc.calibrate(model, X, Y, fuse=True, **arguments)
    second = kc.calibrate(first, X[:100], Y[:100], **arguments)
    for name in ("kind", None):
        record = kc.calibration_record(second, output_name=name)
        assert record["num_samples"] == 100


@pytest.mark.parametrize("fuse", [False, True])
def test_a_dict_of_one_output(fuse):
    plain = alone(two_outputs("dict"), "kind")
    model = keras.Model(plain.inputs, {"kind": plain.output})
    calibrated = kc.calibrate(
        *(model, X, Y), output_name="kind", fuse=fuse, verbose=0
    )
    for name in ("kind", None):
        record = kc.calibration_record(calibrated, output_name=name)
        assert record["num_samples"] == len(X)


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_both_outputs_have_their_own_records(kind, fuse):
    # The same samples twice: each output sees them once.
    model = two_outputs(kind)
    y = {"kind": Y, "size": OTHER}
    once = [
        kc.calibration_record(
            kc.calibrate(model, X, y, output_name=name, fuse=fuse, verbose=0)
        )
        for name in ("kind", "size")
    ]
    both = model
    for place, name in enumerate(("kind", "size")):
        if kind == "list":
            name = both.output_names[place]
        both = kc.calibrate(
            *(both, X, [Y, OTHER][place]),
            output_name=name,
            fuse=fuse,
            verbose=0,
        )
    names = ("kind", "size") if kind == "dict" else both.output_names
    for name, expected in zip(names, once, strict=True):
        found = kc.calibration_record(both, output_name=name)
        assert found == expected
        assert str(found["num_samples"]) in str(
            kc.model_card(both, output_name=name)
        )
    with pytest.raises(ValueError, match="Several outputs were calibrated"):
        kc.calibration_record(both)
    with pytest.raises(ValueError, match="already been calibrated on these"):
        kc.calibrate(
            *(both, X, OTHER), output_name=names[1], fuse=fuse, verbose=0
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source_prior", [None, np.full(3, 1 / 3)])
def test_a_prior_is_adjusted_of_one_output(kind, source_prior):
    model = two_outputs(kind)
    calibrated = kc.calibrate(model, X, Y, output_name="kind", verbose=0)
    prior = np.array([0.1, 0.2, 0.7])
    with pytest.raises(ValueError, match="needs one output"):
        kc.adjust_prior(calibrated, prior=prior, source_prior=source_prior)
    # What the message says works.
    kinds = calibrated.output["kind" if kind == "dict" else 0]
    one = keras.Model(calibrated.inputs, kinds)
    corrected = kc.adjust_prior(one, prior=prior, verbose=0)
    record = kc.calibration_record(corrected)["prior_correction"]
    expected = one.predict(X, verbose=0) * prior / record["source_prior"]
    expected /= expected.sum(axis=1, keepdims=True)
    found = corrected.predict(X, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-6)
