"""What the stories share: data that are made, and the line that each prints."""

import json
import pathlib
import sys

import keras
import numpy as np

import keras_calib as kc

NLL, ECE = "negative_log_likelihood", "expected_calibration_error"


def noisy_labels(scores, seed=0):
    """Classes drawn from `softmax(scores)`: no model can be always right."""
    rng = np.random.default_rng(seed)
    return (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)


def three_parts(x, y):
    """Training, calibration and test data: half, a quarter, a quarter."""
    ends = [len(y) // 2, 3 * len(y) // 4]
    return list(zip(np.split(x, ends), np.split(y, ends), strict=True))


def found(model, x, y, *, from_logits):
    return kc.metrics.calibration_errors(
        y,
        model.predict(x, verbose=0),
        metrics=[NLL, ECE],
        from_logits=from_logits,
        floor=True,
    )


def tell(model, calibrated, x, y, *, from_logits=True, **more):
    """Print one line of JSON: test NLL and ECE, before and after."""
    before = found(model, x, y, from_logits=from_logits)
    after = found(calibrated, x, y, from_logits=False)
    print(
        json.dumps(
            {
                "story": pathlib.Path(sys.argv[0]).stem,
                "backend": keras.backend.backend(),
                "method": kc.calibration_record(calibrated)["method"],
                "nll_before": before[NLL],
                "nll_after": after[NLL],
                "ece_before": before[ECE],
                "ece_after": after[ECE],
                "ece_floor": after[f"{ECE}_floor"],
                **more,
            }
        )
    )


def train_and_tell(model_class, loss, data):
    """Train with the `train_step` of a class, calibrate, and print."""
    keras.utils.set_random_seed(0)
    train, calibration, test = data
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(64, activation="relu")(inputs)
    model = model_class(inputs, keras.layers.Dense(3)(hidden))
    model.compile(
        keras.optimizers.Adam(0.01),
        loss,
        metrics=[kc.metrics.ExpectedCalibrationError(from_logits=True)],
    )
    history = model.fit(*train, epochs=30, verbose=0).history
    calibrated = kc.calibrate(model, *calibration, verbose=0)
    watched = history["expected_calibration_error"][-1]
    tell(model, calibrated, *test, training_ece=watched)
