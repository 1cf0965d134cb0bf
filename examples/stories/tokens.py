"""Tokens: the next word of a sentence, with padding, and no logits kept.

In the manner of the Keras example on text generation: a recurrent network gives
scores for every word of a vocabulary at every place. `stream=True` reads the
data once for each step of the fit and keeps none of the scores, which for a
real vocabulary are larger than the data. Padding is left out by its label.

    python examples/stories/tokens.py
"""

import keras
import numpy as np
from common import tell
from common import three_parts
from keras import layers

import keras_calib as kc

WORDS, LENGTH, PADDING = 60, 16, 0


def sentences(n=1200, seed=0):
    """Words that follow each other with fixed probabilities, then padding."""
    rng = np.random.default_rng(seed)
    scores = 2.0 * rng.normal(size=(WORDS, WORDS))
    scores[:, PADDING] = -np.inf
    words = np.empty((n, LENGTH + 1), "int32")
    words[:, 0] = rng.integers(1, WORDS, n)
    for place in range(LENGTH):
        noise = rng.gumbel(size=(n, WORDS))
        words[:, place + 1] = (scores[words[:, place]] + noise).argmax(axis=1)
    ends = rng.integers(4, LENGTH + 1, (n, 1))
    words[np.arange(LENGTH + 1) > ends] = PADDING
    return three_parts(words[:, :-1], words[:, 1:])


def language_model():
    inputs = keras.Input((LENGTH,), dtype="int32")
    embedded = layers.Embedding(WORDS, 32, mask_zero=True)(inputs)
    states = layers.GRU(64, return_sequences=True)(embedded)
    return keras.Model(inputs, layers.Dense(WORDS)(states))


def main():
    keras.utils.set_random_seed(0)
    train, calibration, test = sentences()
    model = language_model()
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=PADDING
        ),
    )
    # Long enough to know the training sentences better than the others.
    model.fit(*train, epochs=8, batch_size=50, verbose=0)
    calibrated = kc.calibrate(
        model, *calibration, ignore_class=PADDING, stream=True, verbose=0
    )
    tell(
        model,
        calibrated,
        *test,
        ignore_class=PADDING,
        temperature=kc.calibration_record(calibrated)["temperature"],
        tokens=int((test[1] != PADDING).sum()),
    )


if __name__ == "__main__":
    main()
