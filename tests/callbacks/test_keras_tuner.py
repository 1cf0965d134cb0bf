"""KerasTuner copies callbacks for each trial and reads their logs."""

import keras
import numpy as np
import pytest

import keras_calib as kc

keras_tuner = pytest.importorskip("keras_tuner")

OBJECTIVE = "restored_val_refinement_loss"
EPOCHS = 4


@pytest.mark.slow
def test_the_restored_value_is_an_objective(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4)).astype("float32")
    y = (2 * x[:, :3] + rng.gumbel(size=(240, 3))).argmax(axis=1)
    histories = {}

    class Recorded(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            rate = round(float(self.model.optimizer.learning_rate), 4)
            histories[rate] = self.model.history

    def build(choices):
        rate = choices.Choice("rate", [0.001, 0.1, 2.0])
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile(
            keras.optimizers.SGD(rate),
            kc.losses.FocalLoss(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    tuner = keras_tuner.GridSearch(
        build,
        objective=keras_tuner.Objective(OBJECTIVE, "min"),
        directory=tmp_path,
        project_name="tuned",
        seed=0,
    )
    tuner.search(
        x[:160],
        y[:160],
        epochs=EPOCHS,
        validation_data=(x[160:], y[160:]),
        verbose=0,
        callbacks=[
            kc.callbacks.CalibrationMonitor(refinement=True, from_logits=True),
            kc.callbacks.RestoreCalibrated(max_accuracy_loss=0.05),
            Recorded(),
        ],
    )
    trials = tuner.oracle.get_best_trials(3)
    scores = {trial.hyperparameters["rate"]: trial.score for trial in trials}
    assert set(scores) == set(histories) == {0.001, 0.1, 2.0}
    for rate, score in scores.items():
        logs = histories[rate].history
        assert len(logs["val_refinement_loss"]) == EPOCHS
        assert score == pytest.approx(logs[OBJECTIVE][-1])
        assert score in logs["val_refinement_loss"]
    assert list(scores.values()) == sorted(scores.values())
