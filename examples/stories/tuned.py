"""KerasTuner chooses a loss and its strength by calibration, not by accuracy.

In the manner of the KerasTuner guide: a function that builds a model from
hyperparameters, and a search by an objective of the validation data.

    python examples/stories/tuned.py
"""

import tempfile

import keras
import keras_tuner
import made
from common import tell

import keras_calib as kc


def build(hp):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(hp.Choice("units", [16, 64]), "relu"),
            keras.layers.Dense(3),
        ]
    )
    loss = kc.losses.FocalLoss(gamma=hp.Float("gamma", 0, 3), from_logits=True)
    model.compile(
        keras.optimizers.Adam(0.01),
        loss,
        metrics=[kc.metrics.BrierScore(from_logits=True, name="brier")],
    )
    return model


def main():
    keras.utils.set_random_seed(0)
    train, calibration, test = made.table()
    with tempfile.TemporaryDirectory() as folder:
        tuner = keras_tuner.RandomSearch(
            build,
            objective=keras_tuner.Objective("val_brier", "min"),
            max_trials=3,
            seed=0,
            directory=folder,
        )
        tuner.search(*train, validation_data=calibration, epochs=10, verbose=0)
        (best,) = tuner.get_best_hyperparameters(1)
    model = tuner.hypermodel.build(best)
    model.fit(*train, epochs=10, verbose=0)
    calibrated = kc.calibrate(model, *calibration, verbose=0)
    tell(model, calibrated, *test, gamma=best.get("gamma"))


if __name__ == "__main__":
    main()
