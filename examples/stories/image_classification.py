"""Small images: augmentation, batch normalization, ECE, early stopping.

In the manner of the Keras examples on image classification from scratch.

    python examples/stories/image_classification.py
"""

import keras
import made
from common import tell
from keras import layers

import keras_calib as kc


def convnet():
    return keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.RandomFlip("horizontal"),
            layers.Conv2D(16, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.MaxPooling2D(),
            layers.SeparableConv2D(32, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(3, activation="softmax"),
        ]
    )


def main():
    keras.utils.set_random_seed(0)
    train, calibration, test = made.images(2000)
    model = convnet()
    model.compile(
        keras.optimizers.Adam(0.01),
        kc.losses.MarginLabelSmoothing(margin=6.0),
        metrics=["accuracy", kc.metrics.ExpectedCalibrationError(name="ece")],
    )
    history = model.fit(
        *train,
        validation_data=calibration,
        epochs=15,
        batch_size=50,
        verbose=0,
        callbacks=[
            kc.callbacks.CalibrationMonitor(),
            keras.callbacks.EarlyStopping(
                "val_accuracy", patience=6, restore_best_weights=True
            ),
        ],
    ).history
    # The same data chose the epoch; where there are enough, take others.
    calibrated = kc.calibrate(model, *calibration, verbose=0)
    best = max(history["val_accuracy"])
    tell(model, calibrated, *test, from_logits=False, best_val_accuracy=best)


if __name__ == "__main__":
    main()
