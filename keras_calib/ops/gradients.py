"""Gradients: of a function, and in closed form with a gradient themselves."""

import functools
import types

import keras
from keras import ops

from keras_calib.inputs.arrays import as_array


def value_and_gradient(function, x):
    """A function of one array, and the gradient of its sum, as NumPy.

    `keras.ops` has no gradient, so each backend's own function is used. Where
    nothing leads from the array to the value, the gradient is 0.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        x = tf.convert_to_tensor(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = function(x)
        gradient = tape.gradient(
            value, x, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
    elif backend == "jax":
        import jax

        def sum_and_value(x):
            value = function(x)
            return value.sum(), value

        differentiated = jax.value_and_grad(sum_and_value, has_aux=True)
        (_, value), gradient = differentiated(jax.numpy.asarray(x))
    else:
        x = ops.convert_to_tensor(x).detach().clone().requires_grad_(True)
        value = function(x)
        if value.requires_grad:
            value.sum().backward()
        gradient = ops.zeros_like(x) if x.grad is None else x.grad
    return as_array(value), as_array(gradient)


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
    def with_backward(*tensors):
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

    return with_backward


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
