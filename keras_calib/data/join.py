"""One array of what came in batches."""

import numpy as np


def concatenate(parts):
    """Join arrays and free each once it is copied: one copy at a time."""
    length = sum(len(part) for part in parts)
    whole = np.empty((length, *parts[0].shape[1:]), parts[0].dtype)
    start = 0
    while parts:
        part = parts.pop(0)
        whole[start : start + len(part)] = part
        start += len(part)
    return whole


def join_labels(parts, num_classes):
    """Labels of all batches; as rows if one batch has soft labels."""
    if any(part.ndim == 2 for part in parts):
        one_hot = np.eye(max(2, num_classes), dtype="float32")
        parts = [part if part.ndim == 2 else one_hot[part] for part in parts]
    return np.concatenate(parts)
