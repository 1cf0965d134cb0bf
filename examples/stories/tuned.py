"""KerasTuner chooses a loss by calibration, under a budget of accuracy.

In the manner of the KerasTuner guide: a function that builds a model from
hyperparameters, and a search on validation data. Each trial keeps its best
epoch by the NLL that temperature scaling would leave. Of the trials whose
accuracy is within a point of the best, the one with the lowest NLL wins: a
point is what may be paid for calibration. Half of the held-out data chooses,
the other half calibrates.

    python examples/stories/tuned.py
"""

import tempfile

import keras
import keras_tuner
import made
import numpy as np
from common import NLL
from common import probabilities
from common import tell

import keras_calib as kc

TRIALS = 4
BUDGET = 0.01


def build(hp):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(hp.Choice("units", [16, 64]), "relu"),
            keras.layers.Dense(3),
        ]
    )
    loss = kc.losses.FocalLoss(gamma=hp.Float("gamma", 0, 3), from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def search(train, validation):
    """The trained models of all trials."""
    with tempfile.TemporaryDirectory() as folder:
        tuner = keras_tuner.RandomSearch(
            build,
            objective=keras_tuner.Objective("val_refinement_loss", "min"),
            max_trials=TRIALS,
            seed=0,
            directory=folder,
        )
        monitor = kc.callbacks.CalibrationMonitor(
            refinement=True, from_logits=True
        )
        tuner.search(
            *train,
            validation_data=validation,
            epochs=8,
            verbose=0,
            callbacks=[monitor],
        )
        return tuner.get_best_models(TRIALS)


def within_budget(models, x, y):
    """The place of the lowest NLL among models of nearly the best accuracy."""
    found = [
        kc.metrics.calibration_errors(
            y, probabilities(model, x, True), metrics=["accuracy", NLL]
        )
        for model in models
    ]
    best = max(each["accuracy"] for each in found)
    nll = [
        each[NLL] if each["accuracy"] >= best - BUDGET else np.inf
        for each in found
    ]
    return int(np.argmin(nll)), best - found[np.argmin(nll)]["accuracy"]


def main():
    keras.utils.set_random_seed(0)
    train, (x, y), test = made.table(2000)
    middle = len(y) // 2
    validation, held = (x[:middle], y[:middle]), (x[middle:], y[middle:])
    models = search(train, validation)
    chosen, paid = within_budget(models, *validation)
    calibrated = kc.calibrate(models[chosen], *held, verbose=0)

    def draw():
        trials = {
            f"gamma {model.loss.gamma:.1f}{', chosen' * (i == chosen)}": (
                probabilities(model, test[0], True)
            )
            for i, model in enumerate(models)
        }
        return kc.plots.accuracy_vs_ece(test[1], trials)

    gamma = models[chosen].loss.gamma
    tell(
        models[chosen],
        calibrated,
        *test,
        draw=draw,
        gamma=gamma,
        accuracy_paid=paid,
    )


if __name__ == "__main__":
    main()
