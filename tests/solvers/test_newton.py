import itertools

import numpy as np
import pytest

from keras_calib.solvers.logistic import fit_logistic
from keras_calib.solvers.newton import backtrack
from keras_calib.solvers.newton import conjugate_gradient_step
from keras_calib.solvers.newton import dense_step
from keras_calib.solvers.newton import newton


def test_a_shortened_step_reaches_the_minimum():
    # A full Newton step from 2 diverges.
    def evaluate(x):
        return float(np.log(np.cosh(x)).sum()), np.tanh(x)

    found = newton(
        evaluate, lambda x, g: -g * np.cosh(x) ** 2, np.array([2.0, -3.0]),
        tolerance=1e-12,
    )  # fmt: skip
    assert found.converged
    np.testing.assert_allclose(found.parameters, 0.0, atol=1e-12)


def test_a_step_that_lowers_the_value_by_too_little_is_the_last():
    # x^2 / 2 at 1, 1/2, 1/4 falls by 3/8 and 3/32, and would by 3/128.
    found = newton(
        lambda x: (float(x @ x / 2), x), lambda x, g: -g / 2, np.ones(1),
        least_decrease=0.1,
    )  # fmt: skip
    assert found.iterations == 2
    assert found.parameters == 0.25
    assert not found.converged


def test_a_step_that_is_too_long_ends_at_the_minimum_of_the_parabola():
    # x^2 / 2 from 1 by -4: the parabola through both values and the slope is
    # the function itself.
    places = []

    def evaluate(x):
        places.append(x[0])
        return float(x @ x / 2), x

    one = np.ones(1)
    backtrack(evaluate, one, 0.5, one, -4 * one, 0.0, -np.inf)
    assert places == [-3.0, 0.0]


def test_a_value_that_is_not_a_number_ends_the_fit():
    def evaluate(x):
        return (1.0 if x[0] == 0 else np.nan), np.ones(1)

    found = newton(evaluate, lambda x, g: -g, np.zeros(1))
    assert not found.converged
    assert found.parameters == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_step_within_bounds_is_the_best_of_all_active_sets(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(6, 4)) * 10.0 ** rng.uniform(-3, 3, 4)
    hessian, gradient = root.T @ root, root.T @ rng.normal(size=6)
    x = np.where(rng.uniform(size=4) < 0.5, 0.0, rng.uniform(size=4))
    step = dense_step(x, gradient, hessian, 0.0)

    def value(step):
        return gradient @ step + step @ hessian @ step / 2

    best = 0.0
    for fixed in itertools.product([True, False], repeat=4):
        fixed = np.array(fixed)
        found = np.where(fixed, -x, 0.0)
        free = np.ix_(~fixed, ~fixed)
        right = gradient + hessian @ found
        found[~fixed] = np.linalg.solve(hessian[free], -right[~fixed])
        if (x + found >= -1e-12).all():
            best = min(best, value(found))
    assert (x + step >= -1e-12).all()
    assert value(step) == pytest.approx(best, rel=1e-6)


def test_a_bound_that_newton_steps_cross_does_not_stop_the_fit():
    # Steps shortened at one bound must not end the fit of the others.
    rng = np.random.default_rng(0)
    for _ in range(50):
        features = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 3))
        targets = (rng.uniform(size=40) < 0.5).astype(float)
        theta, value = fit_logistic(features, targets, np.ones(3), None, 0.0)
        q = 1 / (1 + np.exp(-features @ theta))
        gradient = features.T @ (q - targets) / 40
        assert (theta >= 0).all()
        assert np.abs(gradient[theta > 0]).max(initial=0.0) < 1e-7
        assert (gradient[theta == 0] > -1e-7).all()
        assert value <= np.log(2)


def test_conjugate_gradients_end_after_250_products():
    # As many different curvatures as would need 400 products.
    curvature = np.logspace(-8, 0, 400)
    gradient = np.ones(400)
    products = []

    class Problem:
        def product(self, direction):
            products.append(direction)
            return curvature * direction

        def precondition(self, gradient):
            return gradient.copy()

    step = conjugate_gradient_step(Problem(), gradient, 0.0)
    assert len(products) == 250
    # A step of conjugate gradients lowers the parabola.
    assert gradient @ step + step @ (curvature * step) / 2 < 0
