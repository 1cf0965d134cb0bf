"""Functions that PyTorch's compiler must leave alone."""

import keras


def uncompiled_on_torch(function):
    """The function, which `torch.compile` calls instead of tracing it."""
    if keras.backend.backend() != "torch":
        return function
    import torch

    return torch.compiler.disable(function)
