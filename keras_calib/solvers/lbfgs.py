"""L-BFGS in NumPy: the same steps on every backend and in every run."""

import collections

import numpy as np

from keras_calib.solvers.newton import Minimum


def lbfgs(
    function,
    start,
    *,
    precondition=None,
    tolerance=1e-6,
    max_iterations=200,
    memory=10,
):
    """Minimize a function of an array; the value never rises.

    Steps are found by bisection until the function falls enough and its slope
    flattens (weak Wolfe conditions), which also suits the kinks of a ReLU.

    Args:
        function: `function(x)` returns value and gradient.
        start: float64 array.
        precondition: function that approximates the inverse Hessian times a
            gradient; by default a multiple of the identity.
        tolerance: stop when no entry of the gradient is larger.
        max_iterations: int.
        memory: number of past steps that approximate the Hessian.

    Returns:
        `Minimum`.

    Reference:
        Nocedal and Wright, "Numerical Optimization", 2006, Algorithm 7.4.
        Lewis and Overton, "Nonsmooth optimization via quasi-Newton methods",
        2013, Algorithm 2.6 (the line search).
    """
    x = np.array(start, "float64")
    value, gradient = function(x)
    history = collections.deque(maxlen=memory)
    # The last iteration breaks.
    for iteration in range(max_iterations + 1):  # pragma: no branch
        largest = float(np.abs(gradient).max())
        if largest <= tolerance or iteration == max_iterations:
            break
        direction = _inverse_hessian(-gradient, history, precondition)
        slope = float((gradient * direction).sum())
        found = None
        if slope < 0:
            step_size = 1.0
            if not history and precondition is None:
                step_size = min(1.0, 1 / np.abs(gradient).sum())
            found = _search(function, x, value, direction, slope, step_size)
        # Where rounding hides any decrease, the gradient cannot converge.
        if found is None or not found[1] < value:
            if not history:
                break
            history.clear()
            continue
        new, value, new_gradient = found
        step, change = new - x, new_gradient - gradient
        curvature = np.vdot(step, change)
        if curvature > 1e-12 * np.vdot(step, step):
            history.append((step, change, curvature))
        x, gradient = new, new_gradient
    return Minimum(x, value, largest, iteration, largest <= tolerance)


def _inverse_hessian(direction, history, precondition):
    """The inverse Hessian, as past steps approximate it, times an array."""
    factors = []
    for step, change, curvature in reversed(history):
        factor = np.vdot(step, direction) / curvature
        direction = direction - factor * change
        factors.append(factor)
    if precondition is not None:
        direction = precondition(direction)
    elif history:
        _, change, curvature = history[-1]
        direction = direction * (curvature / np.vdot(change, change))
    factors.reverse()
    for (step, change, curvature), factor in zip(history, factors, strict=True):
        back = np.vdot(change, direction) / curvature
        direction = direction + (factor - back) * step
    return direction


def _search(function, x, value, direction, slope, step_size):
    low, high, best = 0.0, np.inf, None
    for _ in range(20):
        at = x + step_size * direction
        new, gradient = function(at)
        if not new <= value + 1e-4 * step_size * slope:
            high = step_size
        else:
            best = at, new, gradient
            if np.vdot(gradient, direction) >= 0.9 * slope:
                break
            low = step_size
        step_size = 2 * low if high == np.inf else (low + high) / 2
    return best
