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
