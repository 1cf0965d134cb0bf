"""A KerasHub classifier takes raw strings, before and after calibration.

A BERT of one layer, made here and not downloaded, with its tokenizer in front.
The calibrated model keeps the preprocessor: strings go in, probabilities come
out, also from the file. With `from_preset` in place of the body that is made
here, nothing else changes.

    python examples/stories/keras_hub_text.py
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import keras_hub
import made
import numpy as np
from common import tell

import keras_calib as kc

LENGTH = 20
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"word{i}" for i in range(1, 200)]


def classifier():
    tokenizer = keras_hub.models.BertTokenizer(
        vocabulary=SPECIAL + WORDS, lowercase=True
    )
    return keras_hub.models.BertTextClassifier(
        backbone=keras_hub.models.BertBackbone(
            vocabulary_size=len(SPECIAL + WORDS),
            num_layers=1,
            num_heads=2,
            hidden_dim=16,
            intermediate_dim=32,
            max_sequence_length=LENGTH + 2,
        ),
        preprocessor=keras_hub.models.BertTextClassifierPreprocessor(
            tokenizer, sequence_length=LENGTH + 2
        ),
        num_classes=2,
    )


def as_text(part):
    """Numbers of words as sentences; 0 is padding."""
    x, y = part
    sentences = [" ".join(WORDS[i - 1] for i in row if i) for row in x]
    return np.array(sentences), y


def main():
    keras.utils.set_random_seed(0)
    train, calibration, test = map(as_text, made.tokens(2000))
    model = classifier()
    model.compile(
        keras.optimizers.Adam(0.005),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(*train, epochs=8, batch_size=50, verbose=0)
    calibrated = kc.calibrate(model, *calibration, verbose=0)
    tell(model, calibrated, *test)


if __name__ == "__main__":
    main()
