"""L-BFGS in NumPy: the same steps on every backend and in every run."""

import collections

import numpy as np


def minimize(function, start, iterations=200, tolerance=1e-6, memory=10):
    """Minimise a function of a vector; the value never rises.

    Steps are found by bisection until the function falls enough and its slope
    flattens (weak Wolfe conditions), which also suits the kinks of a ReLU.

    Args:
        function: vector -> value, gradient.
        start: float64, `(size,)`.
        iterations: int, the largest number of steps.
        tolerance: float; stop when no entry of the gradient is larger.
        memory: int, how many steps the curvature is learned from.

    Returns:
        The best vector, and the value there.

    Reference:
        Nocedal and Wright, "Numerical Optimization", 2006, Algorithm 7.4.
        Lewis and Overton, "Nonsmooth optimization via quasi-Newton methods",
        2013, Algorithm 2.6 (the line search).
    """
    x = np.array(start, "float64")
    value, gradient = function(x)
    history = collections.deque(maxlen=memory)
    for _ in range(iterations):
        if np.abs(gradient).max() <= tolerance:
            break
        direction = _direction(gradient, history)
        slope = float(gradient @ direction)
        if not slope < 0:
            history.clear()
            direction = -gradient
            slope = float(gradient @ direction)
        length = 1.0 if history else min(1.0, 1 / np.abs(gradient).sum())
        found = _search(function, x, value, direction, slope, length)
        if found is None:
            if not history:
                break
            history.clear()
            continue
        new, value, new_gradient = found
        step, change = new - x, new_gradient - gradient
        if step @ change > 1e-12 * (step @ step):
            history.append((step, change))
        x, gradient = new, new_gradient
    return x, value


def _direction(gradient, history):
    """Minus the gradient times the inverse Hessian, as the history has it."""
    direction = -gradient
    factors = []
    for step, change in reversed(history):
        factor = (step @ direction) / (step @ change)
        direction = direction - factor * change
        factors.append(factor)
    if history:
        step, change = history[-1]
        direction = direction * ((step @ change) / (change @ change))
    for (step, change), factor in zip(history, reversed(factors), strict=True):
        direction = (
            direction + (factor - (change @ direction) / (step @ change)) * step
        )
    return direction


def _search(function, x, value, direction, slope, length, trials=40):
    low, high, best = 0.0, np.inf, None
    for _ in range(trials):
        new = x + length * direction
        new_value, gradient = function(new)
        if not new_value <= value + 1e-4 * length * slope:
            high = length
        else:
            best = new, new_value, gradient
            if gradient @ direction >= 0.9 * slope:
                break
            low = length
        length = 2 * low if high == np.inf else (low + high) / 2
    return best
