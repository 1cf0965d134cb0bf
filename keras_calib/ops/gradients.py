"""Gradients in closed form that have a gradient themselves."""

import functools
import types

import keras
from keras import ops


def closed_gradient(function):
    """`keras.ops.custom_gradient`, right also for second derivatives.

    TensorFlow and JAX differentiate what a closed gradient is made of. Torch
    computes it without recording: where the gradient is to be differentiated
    it is computed again, and costs nothing where it is not. On torch the
    transforms of `torch.func` work, too.

    Args:
        function: tensors -> value, gradient; `gradient(upstream)` gives one
            tensor for each argument, a tuple if there are several. It is linear
            in `upstream`.
    """
    by_keras = ops.custom_gradient(_in_the_way_of_keras(function))

    @functools.wraps(function)
    def wrapped(*tensors):
        if keras.backend.backend() == "torch":
            import torch

            # The compiler knows Keras' own way better.
            if not torch.compiler.is_compiling():
                found = types.SimpleNamespace(value=None, gradient=None)
                apply = _torch_function().apply
                return apply(function, found, *tensors)
        return by_keras(*tensors)

    return wrapped


def _in_the_way_of_keras(function):
    @functools.wraps(function)
    def value_and_gradient(*tensors):
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

    return value_and_gradient


def _torch_records():
    """Whether torch records the gradient that it computes now."""
    import torch

    return torch.is_grad_enabled()


@functools.cache
def _torch_function():
    """The `torch.autograd.Function` of all functions with a closed gradient.

    The function of Keras has no `setup_context`, which `torch.func` needs.
    """
    import torch

    class ClosedGradient(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(function, found, *tensors):
            found.value, found.gradient = function(*tensors)
            return found.value

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.function, found, *tensors = inputs
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)
            # Under a transform the output is another tensor than the one of
            # `forward`, whose gradient then knows nothing of the transform.
            same = output is found.value
            ctx.gradient = found.gradient if same else None
            ctx.output = output.shape, output.dtype, output.device

        @staticmethod
        def backward(ctx, upstream):
            gradient = ctx.gradient
            if gradient is None or torch.is_grad_enabled():
                _, gradient = ctx.function(*ctx.saved_tensors)
            return None, None, *_as_tuple(gradient(upstream))

        @staticmethod
        def jvp(ctx, _function, _found, *tangents):
            # The gradient is linear in `upstream`; its transpose is wanted.
            tensors = ctx.saved_tensors
            _, gradient = ctx.function(*tensors)
            shape, dtype, device = ctx.output
            nothing = torch.zeros(shape, dtype=dtype, device=device)
            _, transposed = torch.func.vjp(
                lambda upstream: _as_tuple(gradient(upstream)), nothing
            )
            tangents = tuple(
                torch.zeros_like(tensor) if tangent is None else tangent
                for tensor, tangent in zip(tensors, tangents, strict=True)
            )
            return transposed(tangents)[0]

    return ClosedGradient


def _as_tuple(gradients):
    return gradients if isinstance(gradients, tuple) else (gradients,)
