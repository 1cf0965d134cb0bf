"""The logs reach other people's loggers without code of ours."""

import csv

import keras
import numpy as np
import pytest

import keras_calib as kc

KEYS = {
    "val_expected_calibration_error",
    "val_smooth_calibration_error",
    "val_brier_score",
    "val_negative_log_likelihood",
    "val_refinement_loss",
}


def fit_with(logger):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 4)).astype("float32"), np.arange(64) % 3
    model = keras.Sequential([keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    monitor = kc.callbacks.CalibrationMonitor(refinement=True)
    return model.fit(
        x,
        y,
        epochs=2,
        validation_data=(x, y),
        verbose=0,
        callbacks=[monitor, logger],
    ).history


def test_csv_logger(tmp_path):
    path = tmp_path / "log.csv"
    history = fit_with(keras.callbacks.CSVLogger(str(path)))
    rows = list(csv.DictReader(path.open()))
    for key in KEYS:
        found = [float(row[key]) for row in rows]
        assert found == pytest.approx(history[key], rel=1e-6)


def test_mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    logger = pytest.importorskip("mlflow.keras").MlflowCallback
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        history = fit_with(logger(run))
    found = mlflow.get_run(run.info.run_id).data.metrics
    for key in KEYS:
        assert found[key] == pytest.approx(history[key][-1], rel=1e-6)


@pytest.mark.backends("tensorflow", reason="W&B's callback imports it")
def test_wandb(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    logger = pytest.importorskip("wandb.integration.keras").WandbMetricsLogger
    with wandb.init(mode="offline", dir=str(tmp_path)) as run:
        history = fit_with(logger())
        found = dict(run.summary)
    for key in KEYS:
        assert found[f"epoch/{key}"] == pytest.approx(history[key][-1])
