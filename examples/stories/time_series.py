"""Time series: convolutions, the usual three callbacks, and the file kept best.

In the manner of the Keras example on time series classification from scratch.
`ModelCheckpoint` keeps the epoch of the best Brier score, `ReduceLROnPlateau`
and `EarlyStopping` watch the NLL that our monitor adds. Half of the held-out
data chooses the epoch, the other half calibrates: vector scaling learns six
numbers, which would make up for what was chosen by the same samples.

    python examples/stories/time_series.py
"""

import pathlib
import tempfile

import keras
import made
from common import tell
from keras import callbacks
from keras import layers

import keras_calib as kc

NLL = "val_negative_log_likelihood"


def convnet():
    tensor = inputs = keras.Input((60, 1))
    for filters in (16, 16):
        tensor = layers.Conv1D(filters, 5, padding="same")(tensor)
        tensor = layers.BatchNormalization()(tensor)
        tensor = layers.ReLU()(tensor)
    pooled = layers.GlobalAveragePooling1D()(tensor)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(pooled))


def main():
    keras.utils.set_random_seed(0)
    train, (x, y), test = made.series(2000)
    middle = len(y) // 2
    validation, calibration = (x[:middle], y[:middle]), (x[middle:], y[middle:])
    model = convnet()
    model.compile(
        keras.optimizers.Adam(0.01),
        kc.losses.EntropyRegularization(weight=0.05),
        metrics=["accuracy"],
    )
    with tempfile.TemporaryDirectory() as folder:
        best = pathlib.Path(folder) / "best.keras"
        model.fit(
            *train,
            validation_data=validation,
            epochs=15,
            verbose=0,
            callbacks=[
                kc.callbacks.CalibrationMonitor(),
                callbacks.ModelCheckpoint(
                    best,
                    "val_brier_score",
                    mode="min",
                    save_best_only=True,
                ),
                callbacks.ReduceLROnPlateau(NLL, mode="min", patience=3),
                callbacks.EarlyStopping(NLL, mode="min", patience=8),
            ],
        )
        model = keras.saving.load_model(best)
    calibrated = kc.calibrate(model, *calibration, method="vector", verbose=0)
    tell(model, calibrated, *test, from_logits=False)


if __name__ == "__main__":
    main()
