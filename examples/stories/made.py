"""Data of the shapes that examples download: images, tokens, tables, series."""

import numpy as np
from common import noisy_labels
from common import three_parts


def table(n=1200, columns=8, classes=3, seed=0, strength=1.5):
    """Numbers in columns; labels follow sums of them, with noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, columns)).astype("float32")
    scores = strength * x @ rng.normal(size=(columns, classes))
    scores = scores / columns**0.5
    return three_parts(x, noisy_labels(scores))


def images(n=1200, size=12, seed=0):
    """Stripes, dots and gradients under noise that hides some of them."""
    rng = np.random.default_rng(seed)
    row, column = np.indices((size, size)) / size
    patterns = np.stack(
        [
            np.sin(18 * row),
            np.sin(18 * row) * np.sin(18 * column),
            row + column - 1,
        ]
    )
    classes = rng.integers(0, 3, n)
    noise = rng.normal(size=(n, size, size)) * rng.uniform(0.5, 6, (n, 1, 1))
    x = (patterns[classes] + noise)[..., None].astype("float32")
    return three_parts(x, classes)


def tokens(n=1200, length=20, words=200, seed=0):
    """Sentences padded with 0; labels follow the moods of their words."""
    rng = np.random.default_rng(seed)
    x = rng.integers(1, words, (n, length))
    lengths = rng.integers(5, length + 1, (n, 1))
    x = np.where(np.arange(length) < lengths, x, 0)
    moods = rng.normal(size=(words, 2)) * (rng.random((words, 1)) < 0.3)
    moods[0] = 0
    return three_parts(x.astype("int32"), noisy_labels(moods[x].sum(axis=1)))


def series(n=1200, length=60, seed=0):
    """Waves of two frequencies, one of them with bursts, under noise."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 3, n)
    time = np.arange(length) / length
    frequency = np.array([6.0, 9.0, 9.0])[classes][:, None]
    wave = np.sin(2 * np.pi * (frequency * time + rng.random((n, 1))))
    burst = rng.random((n, length)) < 0.1
    wave = wave + 2 * burst * (classes == 2)[:, None]
    x = wave + rng.normal(size=wave.shape) * rng.uniform(0.5, 3, (n, 1))
    return three_parts(x[..., None].astype("float32"), classes)
