"""A table with a rare class: class weights, one sigmoid unit, Platt scaling.

In the manner of the Keras example on imbalanced classification. Class weights
make the probabilities of the rare class far too large; the map mends them.

    python examples/stories/imbalanced_table.py
"""

import keras
import numpy as np
from common import tell
from common import three_parts
from keras import layers

import keras_calib as kc


def rare_events(n=6000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype("float32")
    log_odds = 1.5 * x[:, 0] - x[:, 1] + 0.5 * x[:, 2] * x[:, 3] - 3.5
    y = rng.random(n) < 1 / (1 + np.exp(-log_odds))
    return three_parts(x, y.astype("int32"))


def main():
    keras.utils.set_random_seed(0)
    train, calibration, test = rare_events()
    scaling = layers.Normalization()
    scaling.adapt(train[0])
    model = keras.Sequential(
        [
            keras.Input((6,)),
            scaling,
            layers.Dense(32, activation="relu"),
            layers.Dropout(0.1),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.005),
        keras.losses.BinaryCrossentropy(),
        metrics=[kc.metrics.ExpectedCalibrationError(name="ece")],
    )
    share = float(train[1].mean())
    weights = {0: 0.5 / (1 - share), 1: 0.5 / share}
    model.fit(*train, epochs=8, class_weight=weights, batch_size=64, verbose=0)
    calibrated = kc.calibrate(model, *calibration, method="platt", verbose=0)
    tell(
        model,
        calibrated,
        *test,
        from_logits=False,
        class_id=1,
        share_of_events=share,
    )


if __name__ == "__main__":
    main()
