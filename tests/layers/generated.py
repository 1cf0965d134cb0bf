"""The exactly reproducible set of calibration data, for golden numbers."""

import numpy as np


def hashed(size, salt):
    """Numbers in `(0, 1)` from integers alone, the same everywhere."""
    x = np.arange(1, size + 1, dtype="uint64") + np.uint64(1000003 * salt)
    mask = np.uint64(0xFFFFFFFF)
    x = (x * np.uint64(2654435761)) & mask
    x ^= x >> np.uint64(16)
    x = (x * np.uint64(2246822519)) & mask
    x ^= x >> np.uint64(13)
    x = (x * np.uint64(3266489917)) & mask
    x ^= x >> np.uint64(16)
    return (x.astype("float64") + 0.5) / 2**32


def generated(count=500, num_classes=5):
    """Overconfident logits, and labels."""
    shape = (count, num_classes)
    u = hashed(count * num_classes, 1).reshape(shape)
    logits = 3 * np.log(u / (1 - u))
    gumbel = -np.log(-np.log(hashed(count * num_classes, 2).reshape(shape)))
    bias = 0.3 * (np.arange(num_classes) - (num_classes - 1) / 2)
    return logits, (logits / 2 + bias + gumbel).argmax(-1)


def noisy(labels, num_classes, rate=0.3):
    """Labels of which a share is replaced by any class."""
    count = len(labels)
    other = (num_classes * hashed(count, 8)).astype("int64")
    return np.where(hashed(count, 7) < rate, other, labels)


def softmax(logits):
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def nll(logits, labels, weight=None):
    z = np.asarray(logits, "float64")
    z = z - z.max(-1, keepdims=True)
    chosen = z[np.arange(len(labels)), labels]
    losses = np.log(np.exp(z).sum(-1)) - chosen
    return float(np.average(losses, weights=weight))


def top_label(logits, labels):
    """The prediction as a binary problem: log-odds, and whether right."""
    p = softmax(logits)
    confidence = np.clip(p.max(-1), 1e-12, 1 - 1e-12)
    log_odds = np.log(confidence) - np.log1p(-confidence)
    return log_odds, (p.argmax(-1) == labels).astype("int64")


def overconfident(num_classes, scale=60.0, n=2000):
    """Logits whose probabilities float32 mostly rounds to 0 and 1; labels."""
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(n, num_classes)) * scale).astype("float32")
    random = rng.integers(0, num_classes, n)
    right = logits.argmax(axis=1)
    return logits, np.where(rng.uniform(size=n) < 0.3, random, right)
