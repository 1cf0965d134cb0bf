"""Newton's method with one backtracking line search."""

import dataclasses

import numpy as np

from keras_calib.solvers.blocks import TINY64


@dataclasses.dataclass(frozen=True)
class Minimum:
    """The result of a minimizer.

    Attributes:
        parameters: the minimizer, in the shape of the start.
        value: the objective at `parameters`.
        gradient: the largest absolute entry of the gradient there.
        iterations: the number of steps.
        converged: whether `gradient` is at most the tolerance.
        separated: whether the fit was stopped because every sample was
            classified correctly, so that the likelihood has no optimum.
    """

    parameters: np.ndarray
    value: float
    gradient: float
    iterations: int
    converged: bool
    separated: bool = False


def newton(
    evaluate,
    find_step,
    start,
    *,
    tolerance=0.0,
    max_iterations=100,
    rounding=0.0,
    lower=-np.inf,
    least_decrease=-np.inf,
):
    """Minimize a smooth function by Newton steps, shortened where needed.

    Args:
        evaluate: `evaluate(x)` returns value and gradient.
        find_step: `find_step(x, gradient)` returns a descent direction at the
            point that was evaluated last, or `None` at the optimum.
        start: float64 array.
        tolerance: stop when no entry of the gradient is larger.
        max_iterations: int.
        rounding: relative rounding error of the value.
        lower: lower bound of every entry of `x`.
        least_decrease: stop after a step that lowers the value by less.

    Returns:
        `Minimum`.
    """
    x = start
    value, gradient = evaluate(x)
    decrease = np.inf
    # The last iteration breaks.
    for iteration in range(max_iterations + 1):  # pragma: no branch
        largest = float(np.abs(gradient).max())
        done = largest <= tolerance or decrease < least_decrease
        if done or iteration == max_iterations:
            break
        step = find_step(x, gradient)
        if step is None:
            break
        found = backtrack(evaluate, x, value, gradient, step, rounding, lower)
        del step  # before the next one is computed
        if found is None:
            evaluate(x)  # a problem keeps the state of its last evaluation
            break
        decrease = value - found[1]
        x, value, gradient = found
    return Minimum(x, value, largest, iteration, largest <= tolerance)


def backtrack(evaluate, x, value, gradient, step, rounding, lower):
    """Shorten a step until the value falls enough (Armijo's condition).

    Returns:
        The new point, its value and its gradient; `None` if no step is found.
    """
    slope = float((step * gradient).sum())
    step_size = 1.0
    # A value that is not a number ends the loop as well.
    while step_size > 1e-15:
        at = np.maximum(x + step_size * step, lower)
        new, new_gradient = evaluate(at)
        expected = min(float(((at - x) * gradient).sum()), 0.0)
        if new <= value + 1e-4 * expected + 1e-12 * abs(value):
            return at, new, new_gradient
        # Near the optimum the value has no digits left to compare. The slope
        # has, and a convex function is near its minimum where it is flat.
        flat = abs((step * new_gradient).sum()) <= -slope / 2
        if flat and new <= value + rounding * abs(value):
            return at, new, new_gradient
        if -step_size * slope < 1e-15 * abs(value):
            break
        # The minimum of the parabola through both values and the slope.
        curvature = new - value - step_size * slope
        step_size *= np.clip(-slope * step_size / (2 * curvature), 0.1, 0.5)
    return None


def dense_step(x, gradient, hessian, lower=-np.inf, tolerance=1e-14):
    """Newton step from a dense Hessian, within lower bounds.

    The step minimizes `g s + s' H s / 2` over `x + s >= lower` by an active
    set: fix the entry that reaches its bound first, release the entry with
    the most negative slope, until neither exists. Where the Hessian is
    singular, the step is the shortest.

    Returns:
        The step, or `None` at the optimum: no free entry of the gradient is
        above the tolerance, or the expected decrease is below 1e-20.

    Reference:
        Nocedal and Wright, "Numerical Optimization", 2006, Algorithm 16.3.
    """
    free = (x > lower) | (gradient < 0)
    if np.abs(gradient[free]).max(initial=0.0) < tolerance:
        return None
    # Entries may differ by orders of magnitude: scale each to curvature 1.
    unit = np.sqrt(np.maximum(np.diag(hessian), TINY64))
    hessian = hessian / unit / unit[:, None]
    slope, room = gradient / unit, (lower - x) * unit
    step = np.zeros_like(x)
    # The bound is for cycles by rounding, which no data is known for.
    for _ in range(4 * len(x)):  # pragma: no branch
        change = np.zeros_like(x)
        change[free] = np.linalg.lstsq(
            hessian[np.ix_(free, free)],
            -(slope + hessian @ step)[free],
            rcond=1e-12,
        )[0]
        with np.errstate(invalid="ignore", divide="ignore"):
            reach = np.where(
                free & (step + change < room), (room - step) / change, 1.0
            )
        first = reach.argmin()
        step += reach[first] * change
        if reach[first] < 1:
            step[first], free[first] = room[first], False
            continue
        release = np.where(free, 0.0, slope + hessian @ step)
        if release.min() >= -1e-12 * np.abs(slope).max():
            break
        free[release.argmin()] = True
    step = step / unit
    return step if -gradient @ step > 1e-20 else None


def conjugate_gradient_step(problem, gradient, tolerance):
    """Approximate Newton step; its accuracy rises near the optimum.

    Args:
        problem: `product(direction)` is the Hessian times a direction, and
            `precondition(gradient)` approximates the inverse.
        gradient: array.
        tolerance: of the largest entry of the gradient.
    """
    step = np.zeros_like(gradient)
    residual = -gradient
    direction = problem.precondition(residual)
    norm = float((residual * direction).sum())
    # Superlinear convergence: the remaining error is of the order of the
    # squared step.
    enough = min(0.25, np.sqrt(norm)) ** 2 * norm
    for _ in range(250):
        h = problem.product(direction)
        curvature = float((direction * h).sum())
        if curvature <= 1e-14 * float((direction * direction).sum()):
            break
        step_size = norm / curvature
        step += step_size * direction
        residual -= step_size * h
        del h  # before the next one is computed
        if np.abs(residual).max() <= tolerance / 4:
            break
        z = problem.precondition(residual)
        last, norm = norm, float((residual * z).sum())
        if norm <= enough:
            break
        direction = z + norm / last * direction
        del z
    return step if step.any() else direction
