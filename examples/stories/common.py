"""What the stories share: labels that are made, a line, and a picture.

Each story prints a line of JSON; `--figure FILE` makes it draw, too.
"""

import argparse
import json
import pathlib
import sys

import keras
import numpy as np

import keras_calib as kc

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import pictures

NLL, ECE = "negative_log_likelihood", "expected_calibration_error"


# Before a story trains, which a file that cannot be written would stop.
PARSER = argparse.ArgumentParser()
pictures.add_option(PARSER)
OPTIONS = PARSER.parse_args()


def noisy_labels(scores, seed=0):
    """Classes drawn from `softmax(scores)`: no model can be always right."""
    rng = np.random.default_rng(seed)
    return (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)


def three_parts(x, y):
    """Training, calibration and test data: half, a quarter, a quarter."""
    ends = [len(y) // 2, 3 * len(y) // 4]
    return list(zip(np.split(x, ends), np.split(y, ends), strict=True))


def probabilities(model, x, from_logits=False):
    """What a model predicts, as probabilities."""
    scores = model.predict(x, verbose=0)
    if from_logits:
        scores = keras.ops.convert_to_numpy(keras.ops.softmax(scores))
    return scores


def save_picture(draw, *arguments, **options):
    """Draw only if a picture was asked for."""
    if OPTIONS.figure:
        pictures.save(draw(*arguments, **options), OPTIONS.figure)


def tell(
    model,
    calibrated,
    x,
    y,
    *,
    from_logits=True,
    ignore_class=None,
    class_id=None,
    draw=None,
    **more,
):
    """Print one line of JSON: test NLL and ECE, before and after.

    The picture, if one is asked for, is that of `draw`, by default reliability
    diagrams before and after; of the probability of a class with `class_id`.
    """
    rows = {
        "before": probabilities(model, x, from_logits),
        "after": probabilities(calibrated, x),
    }
    before, after = (
        kc.metrics.calibration_errors(
            y, p, metrics=[NLL, ECE], ignore_class=ignore_class, floor=True
        )
        for p in rows.values()
    )
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
    if draw:
        save_picture(draw)
    else:
        options = {"ignore_class": ignore_class, "class_id": class_id}
        save_picture(kc.plots.reliability_diagram, y, rows, **options)


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
