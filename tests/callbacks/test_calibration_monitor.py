import csv

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.metrics import exact
from tests.helpers import small_network


def network(from_logits=True):
    model = small_network(activation=None if from_logits else "softmax")
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits),
        metrics=["accuracy"],
    )
    return model


@pytest.mark.parametrize("from_logits", [True, False])
def test_values_are_exact_and_seen_by_later_callbacks(
    from_logits, digits, tmp_path
):
    (x, y), validation, _ = digits
    model = network(from_logits)
    key = "val_adaptive_calibration_error"
    history = model.fit(
        x,
        y,
        validation_data=validation,
        epochs=2,
        verbose=0,
        callbacks=[
            kc.callbacks.CalibrationMonitor(
                validation, from_logits=from_logits
            ),
            keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
            keras.callbacks.EarlyStopping(key, mode="min", patience=5),
            keras.callbacks.ModelCheckpoint(
                str(tmp_path / "best.keras"),
                monitor=key,
                mode="min",
                save_best_only=True,
            ),
        ],
    ).history
    outputs = model.predict(validation[0], verbose=0)
    if from_logits:
        outputs = np.asarray(keras.ops.softmax(outputs))
    confidence, correct = exact.top_label(validation[1], outputs)
    expected = exact.expected_calibration_error(
        confidence, correct, binning="mass"
    )
    assert history[key][-1] == pytest.approx(expected, abs=1e-7)
    assert history["val_accuracy"][-1] == pytest.approx(correct.mean())
    assert history["val_negative_log_likelihood"][-1] == pytest.approx(
        history["val_loss"][-1], rel=1e-4
    )
    with open(tmp_path / "log.csv") as file:
        assert key in next(csv.reader(file))
    assert (tmp_path / "best.keras").exists()


def test_every_other_epoch_and_the_last(digits):
    (x, y), validation, _ = digits
    monitor = kc.callbacks.CalibrationMonitor(
        validation, from_logits=True, every=2
    )
    history = network().fit(x, y, epochs=5, verbose=0, callbacks=[monitor])
    # After epochs 2 and 4, and after the fifth, which is the last.
    assert len(history.history["val_expected_calibration_error"]) == 3


def test_bad_arguments(digits):
    with pytest.raises(ValueError, match="at least 1"):
        kc.callbacks.CalibrationMonitor(digits[1], num_bins=0)
    (x, y), validation, _ = digits
    with pytest.raises(ValueError, match="from_logits=True"):
        network().fit(
            x,
            y,
            verbose=0,
            callbacks=[kc.callbacks.CalibrationMonitor(validation)],
        )
