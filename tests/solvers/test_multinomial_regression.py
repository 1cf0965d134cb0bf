import types

import numpy as np
import pytest

from keras_calib.inputs.arrays import log_softmax
from keras_calib.solvers import multinomial_regression as regression
from keras_calib.solvers import regression_problems as problems
from keras_calib.solvers.lbfgs import lbfgs
from keras_calib.solvers.multinomial_regression import fit_regression
from tests.layers.generated import generated


def samples(dtype):
    """Logits, labels and shares of 500 samples, and no smoothing."""
    logits, labels = generated()
    return logits.astype(dtype), labels, np.full(500, 1 / 500), 0.0


def diagonal_problem(dtype="float64", shared=False, ridge=0.0):
    return problems.DiagonalProblem(
        *samples(dtype),
        shared=shared,
        free=np.ones((2, 5)),
        ridge=np.full((2, 5), ridge),
        center=np.zeros((2, 5)),
    )


def full_problem(dtype="float64", ridge=0.01):
    return problems.FullProblem(
        *samples(dtype),
        free=np.ones(5),
        ridge=np.full((6, 5), ridge),
        center=np.zeros((6, 5)),
    )


def test_hessians_of_classes_are_sums_over_samples():
    # ww, wb and bb: means of q (1 - q) times x^2, x and 1.
    problem = diagonal_problem()
    parameters = np.random.default_rng(0).normal(size=(2, 5))
    problem.evaluate(parameters)
    w, b = parameters
    x, _, weights, _ = samples("float64")
    q = np.exp(log_softmax(x * w + b))
    curvature = weights[:, None] * q * (1 - q)
    expected = [(curvature * x**power).sum(axis=0) for power in (2, 1, 0)]
    np.testing.assert_allclose(problem.class_hessians, expected, rtol=1e-10)


STARTS = {
    "zero": 0.0,
    "one": 1.0,
    "minus": -3.0,
    "large": 30.0,
    "random": None,
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_the_optimum_is_reached_from_any_start(kind, start):
    problem = diagonal_problem() if kind == "diagonal" else full_problem()
    shape = (2, 5) if kind == "diagonal" else (6, 5)
    value = STARTS[start]
    at = np.full(shape, value) if value is not None else None
    if at is None:
        at = np.random.default_rng(1).normal(size=shape) * 5
    found = fit_regression(problem, at, 1e-9)
    expected = fit_regression(problem, np.ones(shape) * 0.5, 1e-9)
    assert found.converged
    assert found.gradient <= 1e-9
    assert found.value == pytest.approx(expected.value, abs=1e-13)
    if kind == "diagonal":
        assert found.value == pytest.approx(0.659753069148, abs=1e-12)


@pytest.mark.parametrize("kind", ["diagonal", "shared", "full"])
def test_gradient_and_hessian(kind):
    problem = {
        "diagonal": lambda: diagonal_problem(ridge=0.1),
        "shared": lambda: diagonal_problem(shared=True, ridge=0.1),
        "full": full_problem,
    }[kind]()
    shape = (6, 5) if kind == "full" else (2, 5)
    at, direction = np.random.default_rng(0).normal(size=(2, *shape)) / 5
    if kind == "shared":
        at[0], direction[0] = 0.5, 0.3
    # Within what may move: a constant on all columns changes nothing.
    centered = direction - direction.mean(axis=1, keepdims=True)
    if kind == "full":
        direction = centered
    else:
        direction[1] = centered[1]
    h = 1e-5
    up, up_gradient = problem.evaluate(at + h * direction)
    down, down_gradient = problem.evaluate(at - h * direction)
    _, gradient = problem.evaluate(at)
    assert (gradient * direction).sum() == pytest.approx(
        (up - down) / (2 * h), rel=1e-7
    )
    np.testing.assert_allclose(
        problem.product(direction),
        (up_gradient - down_gradient) / (2 * h),
        atol=1e-8,
    )


def test_float32_logits_reach_the_same_optimum():
    found = fit_regression(
        diagonal_problem("float32"), np.full((2, 5), 0.5), 1e-6
    )
    assert found.converged
    assert found.value == pytest.approx(0.659753069148, abs=1e-6)


def test_many_classes_share_a_preconditioner(monkeypatch):
    expected = fit_regression(full_problem(), np.zeros((6, 5)), 1e-9)
    monkeypatch.setattr(problems, "BLOCKS", 1)
    found = fit_regression(full_problem(), np.zeros((6, 5)), 1e-9)
    assert found.converged
    assert found.value == pytest.approx(expected.value, abs=1e-13)


def test_lbfgs():
    problem = full_problem()
    expected = fit_regression(problem, np.zeros((6, 5)), 1e-9)
    found = lbfgs(
        problem.evaluate,
        np.zeros((6, 5)),
        precondition=problem.precondition,
        tolerance=1e-7,
    )
    assert found.converged
    assert found.value == pytest.approx(expected.value, abs=1e-12)


class Rounded:
    """`|p|^2 / 2`, whose value drifts up by what float32 rounds."""

    wide = "float32"

    def __init__(self):
        self.calls = 0

    def evaluate(self, parameters):
        self.calls += 1
        value = 5.76 + (parameters**2).sum() / 2
        return value * (1 + 1e-9 * self.calls), parameters

    def renew(self):
        pass

    def product(self, direction):
        return direction

    def precondition(self, gradient):
        return gradient


def test_rounding_of_the_value_does_not_shorten_a_good_step():
    problem = Rounded()
    found = fit_regression(problem, np.full((2, 3), 1e-5), 1e-9)
    assert found.converged
    assert problem.calls == 2


def test_slopes_that_change_sides_for_ever_end_after_20_fits(monkeypatch):
    # A free slope is fitted beyond its bound, and pulled back from it.
    problem = types.SimpleNamespace(
        free=np.ones((2, 1)),
        unconstrained_gradient=lambda _: (np.array([1.0]), None),
    )
    fits = []

    def fit(problem, start, tolerance):
        high = regression.SLOPES[1]
        free = problem.free[0, 0] > 0
        fits.append(free)
        parameters = np.array([[high + 1.0 if free else high], [0.0]])
        return types.SimpleNamespace(parameters=parameters)

    monkeypatch.setattr(regression, "fit_regression", fit)
    found = regression.fit_within_bounds(problem, np.ones((2, 1)), 1e-6)
    assert fits == [True, False] * 10
    assert found.parameters[0, 0] == regression.SLOPES[1]


def test_values_have_the_digits_of_the_inputs_or_more():
    assert diagonal_problem("float32").wide == np.dtype("float32")
    assert diagonal_problem("float64").wide == np.dtype("float64")
    # A small full problem is float64 while its values are computed.
    assert full_problem("float32").wide == "float64"
