"""Text: embeddings with a mask, attention, a focal loss, prediction sets.

In the manner of the Keras example on text classification with a transformer.

    python examples/stories/text_classification.py
"""

import keras
import made
import numpy as np
from common import tell
from keras import layers

import keras_calib as kc


def transformer(words=200, length=20, width=16):
    inputs = keras.Input((length,), dtype="int32")
    embedded = layers.Embedding(words, width, mask_zero=True)(inputs)
    attended = layers.MultiHeadAttention(2, width // 2)(embedded, embedded)
    normal = layers.LayerNormalization()(embedded + attended)
    pooled = layers.GlobalAveragePooling1D()(normal)
    hidden = layers.Dense(32, activation="relu")(pooled)
    return keras.Model(inputs, layers.Dense(2)(hidden))


def main():
    keras.utils.set_random_seed(0)
    train, calibration, test = made.tokens(3000)
    model = transformer()
    model.compile(
        keras.optimizers.Adam(0.005),
        kc.losses.DualFocalLoss(gamma=2.0, from_logits=True),
        metrics=["accuracy", kc.metrics.BrierScore(from_logits=True)],
    )
    model.fit(*train, epochs=5, verbose=0)
    x, y = calibration
    calibrated = kc.calibrate(model, x[:300], y[:300], verbose=0)
    # Samples that neither training nor the map has seen.
    sets = kc.layers.ConformalSets(coverage=0.9)
    sets.adapt(np.log(calibrated.predict(x[300:], verbose=0)), y[300:])
    log_p = np.log(calibrated.predict(test[0], verbose=0))
    inside = np.asarray(sets(log_p))[np.arange(len(log_p)), test[1]]
    tell(model, calibrated, *test, coverage=float(inside.mean()))


if __name__ == "__main__":
    main()
