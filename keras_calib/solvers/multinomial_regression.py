"""The affine map of logits with the smallest penalized likelihood.

Every affine map is a multinomial logistic regression: scores `x W + b` with a
scalar, a diagonal or a full `W`. The mean negative log-likelihood is convex in
`(W, b)`, and so is a quadratic penalty: a truncated Newton method reaches the
one optimum from any start.
"""

import dataclasses

import numpy as np

from keras_calib.solvers.lbfgs import lbfgs
from keras_calib.solvers.newton import conjugate_gradient_step
from keras_calib.solvers.newton import newton
from keras_calib.solvers.temperature import BOUNDS

# Slopes that a temperature within its bounds can have.
SLOPES = 1 / BOUNDS[1], 1 / BOUNDS[0]
MAX_ITERATIONS = 100


def unit_of(x):
    """The size of the inputs, for tolerances of a gradient: 1 to 100.

    One class that is ruled out does not make it the largest.
    """
    x = np.clip(x[:1000], -100.0, 100.0)
    return max(float(np.sqrt(np.mean(np.square(x)))), 1.0)


def fit_regression(
    problem, start, tolerance, labels=None, max_iterations=MAX_ITERATIONS
):
    """Minimize a convex problem by truncated Newton steps.

    Args:
        problem: `DiagonalProblem` or `FullProblem`.
        start: float64 array, the first parameters.
        tolerance: of the largest entry of the gradient.
        labels: class ids if only they bound the parameters, all of which are
            free: as soon as every sample is classified correctly, the
            likelihood has no optimum, and the fit stops.
        max_iterations: int, Newton steps after which the fit stops anyway.

    Returns:
        `Minimum`.
    """

    def separated():
        return labels is not None and problem.all_correct(labels)

    def find_step(_, gradient):
        if separated():
            return None
        problem.renew()
        return conjugate_gradient_step(problem, gradient, tolerance)

    rounding = np.finfo(problem.wide).eps
    found = newton(
        problem.evaluate,
        find_step,
        start,
        tolerance=tolerance,
        max_iterations=max_iterations,
        rounding=rounding,
    )
    if separated():
        found = dataclasses.replace(found, converged=False, separated=True)
    return found


def fit_within_bounds(problem, start, tolerance):
    """Minimize with slopes in `SLOPES`: an active set of slopes is fixed.

    Slopes outside the bounds are fixed at them; a fixed slope is released
    where the gradient points inwards.
    """
    low, high = SLOPES
    free = problem.free[0] > 0
    for _ in range(20):
        found = fit_regression(problem, start, tolerance)
        w = found.parameters[0]
        moving = problem.free[0] > 0
        outside = moving & ((w < low) | (w > high))
        released = free & ~moving
        if released.any():
            slope, _ = problem.unconstrained_gradient(found.parameters)
            inwards = np.where(w <= low, -slope, slope)
            released &= inwards > tolerance
        if not (outside.any() or released.any()):
            break
        start = found.parameters.copy()
        start[0] = np.clip(w, low, high)
        mask = np.where(outside, 0.0, np.where(released, 1.0, problem.free[0]))
        problem.free = np.stack([mask, problem.free[1]])
    return found


def fit_objective(problem, objective, labels, weights, start):
    """Minimize a smooth objective from `start`, the optimum of the likelihood.

    Returns:
        `Minimum`.
    """

    def function(parameters):
        value, gradient = objective.value_and_gradient(
            problem.scores(parameters), labels, weights
        )
        value += problem.penalty(parameters)
        return value, problem.chain(gradient, parameters)

    return lbfgs(
        function,
        start,
        precondition=problem.precondition,
        max_iterations=500,
        memory=20,
    )
