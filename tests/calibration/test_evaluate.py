"""`evaluate` of the calibrated model gives the NLL of its record."""

import keras
import numpy as np
import pytest

import keras_calib as kc

X = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
VOID = -1


def network(units, activation):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    head = keras.layers.Dense(units, activation=activation)
    return keras.Model(inputs, head(inputs))


def labels(kind):
    """Labels of which some are void, where the kind has void labels."""
    rng = np.random.default_rng(1)
    if kind == "several sigmoid units":
        y = rng.integers(0, 2, (60, 3))
        y[:10, 1] = VOID
        return y
    y = rng.integers(0, 2 if kind == "one sigmoid unit" else 3, 60)
    y[:10] = VOID
    return y


@pytest.mark.parametrize("output", ["probabilities", "logits"])
@pytest.mark.parametrize(
    "kind", ["softmax", "one sigmoid unit", "several sigmoid units"]
)
def test_void_labels_do_not_count(kind, output, tmp_path):
    y = labels(kind)
    several = kind == "several sigmoid units"
    calibrated = kc.calibrate(
        network(
            1 if kind == "one sigmoid unit" else 3,
            "softmax" if kind == "softmax" else "sigmoid",
        ),
        X,
        y,
        ignore_class=VOID,
        multi_label=several,
        output=output,
        guard=False,
        verbose=0,
    )
    expected = kc.calibration_record(calibrated)["nll_after"]
    if several:
        # A label counts as often as it is known.
        known = y != VOID
        p = calibrated.predict(X, verbose=0)
        if output == "logits":
            p = 1 / (1 + np.exp(-p))
        expected = -np.log(np.where(y == 1, p, 1 - p))[known].mean()
    found = calibrated.evaluate(X, y, batch_size=60, verbose=0)
    assert found == pytest.approx(expected, rel=1e-5)
    calibrated.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert again.evaluate(X, y, batch_size=60, verbose=0) == found


def test_one_hot_labels_of_a_void_class_do_not_count():
    y = np.eye(3)[np.random.default_rng(1).integers(0, 3, 60)]
    model = network(3, "softmax")
    calibrated = kc.calibrate(model, X, y, ignore_class=2, verbose=0)
    p = calibrated.predict(X, verbose=0)
    expected = -np.log((p * y).sum(axis=-1))[y[:, 2] == 0].mean()
    found = calibrated.evaluate(X, y, batch_size=60, verbose=0)
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_accuracy_has_one_name():
    y = np.random.default_rng(1).integers(0, 2, (60, 3))
    for kind, multi_label, target in (
        ("softmax", False, y[:, 0]),
        ("sigmoid", True, y),
    ):
        calibrated = kc.calibrate(
            network(3, kind), X, target, multi_label=multi_label, verbose=0
        )
        logs = calibrated.evaluate(X, target, verbose=0, return_dict=True)
        assert set(logs) == {"loss", "accuracy"}


def steps(units):
    keras.utils.set_random_seed(0)
    activation = "softmax" if units > 1 else "sigmoid"
    return keras.Sequential(
        [
            keras.Input((5, 3)),
            keras.layers.Masking(),
            keras.layers.SimpleRNN(4, return_sequences=True),
            keras.layers.Dense(units, activation=activation),
        ]
    )


def images(units):
    keras.utils.set_random_seed(0)
    activation = "softmax" if units > 1 else "sigmoid"
    layer = keras.layers.Conv2D(units, 1, activation=activation)
    return keras.Sequential([keras.Input((5, 5, 3)), layer])


@pytest.mark.parametrize("ignore_class", [None, VOID])
@pytest.mark.parametrize("units", [1, 3])
@pytest.mark.parametrize("network", [steps, images])
@pytest.mark.parametrize("weights", ["of rows", "of labels", None])
def test_sequences_and_images_weigh_as_a_whole(
    network, units, weights, ignore_class, tmp_path
):
    # Batches as long as a sequence: a weight of a row fits a label, too.
    model = network(units)
    rng = np.random.default_rng(0)
    shape = (5, *model.output_shape[1:-1])
    x = rng.normal(size=(*shape, 3)).astype("float32")
    y = rng.integers(0, max(units, 2), shape)
    counts = np.ones(shape, bool)
    if network is steps:
        x[0, 2:], counts[0, 2:] = 0.0, False
    if ignore_class is not None:
        y[1, :2] = VOID
        counts[1, :2] = False
    w = None
    if weights is not None:
        w = rng.integers(1, 4, shape if weights == "of labels" else 5)
        w = w.astype("float32")
    calibrated = kc.calibrate(
        model, x, y, w, ignore_class=ignore_class, verbose=0
    )
    calibrated.save(tmp_path / "model.keras")
    p = calibrated.predict(x, verbose=0).astype("float64")
    if units == 1:
        p = np.concatenate([1 - p, p], axis=-1)
    own = np.take_along_axis(p, np.maximum(y, 0)[..., None], axis=-1)[..., 0]
    each = np.ones(5) if w is None else w
    each = each.reshape(each.shape + (1,) * (len(shape) - each.ndim))
    expected = (-np.log(own) * each)[counts].sum() / counts.sum()
    for found in calibrated, keras.saving.load_model(tmp_path / "model.keras"):
        logs = found.evaluate(
            x, y, sample_weight=w, batch_size=5, verbose=0, return_dict=True
        )
        assert logs["loss"] == pytest.approx(expected, rel=1e-5)


def test_rows_of_two_for_one_unit():
    y = np.eye(2)[np.random.default_rng(1).integers(0, 2, 60)]
    calibrated = kc.calibrate(network(1, "sigmoid"), X, y, verbose=0)
    p = calibrated.predict(X, verbose=0)
    expected = -np.log((np.concatenate([1 - p, p], 1) * y).sum(1)).mean()
    found = calibrated.evaluate(X, y, verbose=0)
    assert found == pytest.approx(expected, rel=1e-5)


def test_several_labels_some_unknown_weigh_as_their_rows():
    y = labels("several sigmoid units")[::15][:3]
    y[0, 1] = VOID
    w = np.array([1.0, 2.0, 3.0], "float32")
    calibrated = kc.calibrate(
        network(3, "sigmoid"),
        X[:3],
        y,
        w,
        ignore_class=VOID,
        multi_label=True,
        guard=False,
        verbose=0,
    )
    p = calibrated.predict(X[:3], verbose=0)
    losses = -np.log(np.where(y == 1, p, 1 - p)) * w[:, None]
    expected = losses[y != VOID].sum() / (y != VOID).sum()
    found = calibrated.evaluate(X[:3], y, sample_weight=w, verbose=0)
    assert found == pytest.approx(expected, rel=1e-5)


def test_labels_of_masked_steps_do_not_count():
    model = steps(3)
    model.layers[-1].activation = keras.activations.sigmoid
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 5, 3)).astype("float32")
    y = rng.integers(0, 2, (5, 5, 3))
    x[0, 2:], y[0, 2:], y[1, :2, 0] = 0.0, VOID, VOID
    calibrated = kc.calibrate(
        model, x, y, ignore_class=VOID, multi_label=True, guard=False, verbose=0
    )
    p = calibrated.predict(x, verbose=0)
    expected = -np.log(np.where(y == 1, p, 1 - p))[y != VOID].mean()
    found = calibrated.evaluate(x, y, verbose=0)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("ignore_class", [None, 1])
@pytest.mark.parametrize("units", [1, 3])
def test_a_fused_model_has_no_loss_of_this_package(
    units, ignore_class, one_hot
):
    y = np.random.default_rng(1).integers(0, max(units, 2), 60)
    model = network(units, "softmax" if units > 1 else "sigmoid")
    y = np.eye(max(units, 2))[y] if one_hot else y
    if units == 1 and ignore_class is not None:
        y[:10] = -1 if not one_hot else y[:10]
        ignore_class = -1 if not one_hot else None
    calibrated = kc.calibrate(
        model, X, y, ignore_class=ignore_class, fuse=True, verbose=0
    )
    if calibrated.compiled:
        assert type(calibrated.loss).__module__.startswith("keras.")
    # Only what no loss of Keras computes is left without one.
    known = (units == 3 and not one_hot) or (
        ignore_class is None and not (units == 1 and one_hot)
    )
    assert calibrated.compiled == known
