"""Gradients in closed form that have a gradient themselves."""

import functools

from keras import ops


def closed_gradient(function):
    """`keras.ops.custom_gradient`, right also for second derivatives.

    TensorFlow and JAX differentiate what a closed gradient is made of. Torch
    computes it without recording: where the gradient is to be differentiated
    it is computed again, and costs nothing where it is not.

    Args:
        function: tensors -> value, gradient; `gradient(upstream)` gives one
            tensor for each argument, a tuple if there are several.
    """

    @functools.wraps(function)
    @ops.custom_gradient
    def wrapped(*tensors):
        value, gradient = function(*tensors)

        # JAX and TensorFlow pass `upstream` by position; torch passes it by
        # name, after the tensors.
        def backward(*arguments, upstream=None):
            if upstream is None:
                return gradient(*arguments)
            if _torch_records():
                return function(*arguments)[1](upstream)
            return gradient(upstream)

        return value, backward

    return wrapped


def _torch_records():
    """Whether torch records the gradient that it computes now."""
    import torch

    return torch.is_grad_enabled()
