"""Ridge fits around temperature scaling, averaged by their evidence."""

import types

import keras
import numpy as np
import pytest
from scipy import optimize

import keras_calib as kc
from keras_calib.inputs.arrays import log_softmax
from keras_calib.solvers import dense_evidence
from keras_calib.solvers import deviations
from keras_calib.solvers import evidence
from keras_calib.solvers import ridge_paths
from keras_calib.solvers.evidence import average_by_evidence
from keras_calib.solvers.laplace import with_evidence
from keras_calib.solvers.multinomial_regression import fit_regression
from keras_calib.solvers.temperature import fit_temperature

FIRST = np.eye(5)[0]
SCALE, BIAS, BOTH = (True, False), (False, True), (True, True)
PATHS = {
    "class": (SCALE,),
    "bias corrected": (BIAS,),
    "vector": (SCALE, BIAS, BOTH),
}


@pytest.fixture(params=["whole Hessians", "products"])
def each_way(request, monkeypatch):
    """Fits by whole Hessians, and by products with them."""
    if request.param == "products":
        without_whole_steps(monkeypatch)


def without_whole_steps(monkeypatch):
    monkeypatch.setattr(deviations, "fit_paths", lambda *_: None)


def drawn(num_samples, num_classes, seed, change=None):
    """Log-probabilities x, labels that follow `change(x)`, and that."""
    rng = np.random.default_rng(seed)
    x = log_softmax(2 * rng.normal(size=(num_samples, num_classes)))
    truth = x if change is None else log_softmax(change(x))
    labels = (truth + rng.gumbel(size=x.shape)).argmax(axis=1)
    return x, labels, truth


def expected_nll(scores, truth):
    """The NLL that labels drawn from `truth` have on average."""
    return -(np.exp(truth) * log_softmax(scores)).sum(axis=1).mean()


def around(x, labels, paths, weights=None):
    """The average, and the temperature that it starts from."""
    weights = np.ones(len(x)) if weights is None else weights
    temperature = fit_temperature(x, labels, weights).temperature
    found = average_by_evidence(x / temperature, labels, weights, paths)
    return found, temperature


def integral(x, labels, width, uses):
    """The evidence by a sum over a grid of (a, d_1, d_2), two classes."""
    t = np.linspace(-4, 4, 61) * width
    a = np.linspace(-1.5, 1.5, 81)
    n = len(x)
    rows = np.arange(n)

    def loss(a, d):
        w, b = 1 + a, 0.0
        w, b = (w + d, b) if uses == "scale" else (w, d)
        return -log_softmax(x * w + b)[rows, labels].sum()

    base = loss(0.0, np.zeros(2))
    total = 0.0
    for first in t:
        for second in t:
            d = np.array([first, second])
            prior = np.exp(-(d @ d) / (2 * width**2)) / (2 * np.pi * width**2)
            scores = (
                x * ((1 + a)[:, None, None] + d)
                if uses == "scale"
                else x * (1 + a)[:, None, None] + d
            )
            log_p = log_softmax(scores)[:, rows, labels].sum(axis=1)
            total += prior * np.exp(log_p + base).sum()
    total *= (t[1] - t[0]) ** 2 * (a[1] - a[0])
    p = np.exp(log_softmax(x))
    mean = (p * x).sum(axis=1)
    curvature = ((p * x * x).sum(axis=1) - mean**2).sum()
    return np.log(total) - 0.5 * np.log(2 * np.pi / curvature)


@pytest.mark.parametrize("uses, widths", [("scale", (1, 0)), ("bias", (0, 1))])
@pytest.mark.parametrize("width", [0.1, 0.4])
def test_the_evidence_is_the_integral_over_the_prior(uses, widths, width):
    x, labels, _ = drawn(60, 2, seed=0, change=lambda x: x + FIRST[:2] / 2)
    temperature = fit_temperature(x, labels, np.ones(60)).temperature
    x = x / temperature
    problem = deviations.Deviations(x, labels, np.ones(60), 0.0)
    fit = problem.fit(width * np.array(widths), 1.0, problem.center)
    expected = integral(x, labels, width, uses)
    assert fit.log_evidence == pytest.approx(expected, abs=0.1)


def test_slopes_turn_around_typical_log_probabilities(each_way, monkeypatch):
    monkeypatch.setattr(deviations, "WIDTHS", np.array([0.3]))
    x, labels, _ = drawn(50, 3, seed=4, change=lambda x: x * [0.5, 1, 1.5])
    weights = np.random.default_rng(1).uniform(0.5, 1.5, 50)
    weights *= 50 / weights.sum()
    problem = deviations.Deviations(x, labels, weights, 0.0)
    q = np.exp(x)
    r = weights[:, None] * q * (1 - q)
    typical = (r * x).sum(axis=0) / r.sum(axis=0)
    [plain, fit], phi = problem.fits_of_all_widths((BOTH,))
    assert fit.typical and not plain.typical
    # Both change the scores by as much.
    tv, tb = fit.widths
    moved = (r * (x - typical) ** 2).sum() / r.sum()
    assert tb == pytest.approx(0.3)
    assert tv**2 * moved == pytest.approx(tb**2)

    def posterior(numbers):
        """The negative logarithm, and the numbers `a`, `v` and `b`."""
        a, v, b = np.split(numbers, [1, 4])
        scores = x * (1 + a) + (x - typical) * v + b
        loss = -log_softmax(scores)[np.arange(50), labels] @ weights / phi
        return loss + 0.5 * ((v / tv) ** 2 + (b / tb) ** 2).sum(), (a, v, b)

    start = np.zeros(7)
    found = optimize.minimize(lambda d: posterior(d)[0], start, tol=1e-9)
    a, v, b = posterior(found.x)[1]
    slopes, biases = fit.parameters
    np.testing.assert_allclose(slopes, 1 + a + v, atol=1e-4)
    expected = b - typical * v
    np.testing.assert_allclose(
        biases - biases.mean(), expected - expected.mean(), atol=1e-4
    )
    # The Hessian of the posterior by finite differences.
    step = 1e-3 * np.eye(7)
    hessian = np.array(
        [
            [
                posterior(found.x + i + j)[0]
                - posterior(found.x + i - j)[0]
                - posterior(found.x - i + j)[0]
                + posterior(found.x - i - j)[0]
                for i in step
            ]
            for j in step
        ]
    ) / (4 * 1e-6)
    mean = (q * x).sum(axis=1)
    curvature = weights @ ((q * x * x).sum(axis=1) - mean**2) / phi
    determinant = np.linalg.slogdet(hessian)[1] - np.log(curvature)
    log_evidence = posterior(start)[0] - found.fun
    log_evidence -= 3 * np.log(tv * tb) + determinant / 2
    assert fit.log_evidence == pytest.approx(log_evidence, abs=2e-3)


@pytest.mark.parametrize("path", [SCALE, BIAS, BOTH])
def test_many_classes_are_taken_one_by_one(path, monkeypatch):
    x, labels, _ = drawn(300, 12, seed=1)
    whole, _ = around(x, labels, (path,))
    monkeypatch.setattr(deviations, "DENSE", 0)
    by_class, _ = around(x, labels, (path,))
    assert by_class.plain != whole.plain
    assert by_class.plain == pytest.approx(whole.plain, abs=0.05)
    np.testing.assert_allclose(by_class.parameters, whole.parameters, atol=0.02)


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("together", [0, 1 << 20])
def test_few_classes_have_the_same_fits_in_less_time(
    name, together, monkeypatch
):
    x, labels, _ = drawn(80, 6, seed=3, change=lambda x: 1.5 * x - x.max())
    weights = np.random.default_rng(0).uniform(0.5, 1.5, 80)
    data = x / 1.3, labels, 80 * weights / weights.sum(), PATHS[name], 0.1
    monkeypatch.setattr(dense_evidence, "TOGETHER", together)
    found = average_by_evidence(*data)
    without_whole_steps(monkeypatch)
    expected = average_by_evidence(*data)
    assert found.iterations < expected.iterations
    assert found.log_evidence == pytest.approx(expected.log_evidence, abs=1e-4)
    assert found.value == pytest.approx(expected.value, abs=1e-6)
    np.testing.assert_allclose(found.parameters, expected.parameters, atol=1e-5)


# What classes need, with the log-probabilities x of 12 of them.
NEEDS = {
    "nothing": lambda x: x,
    "a bias": lambda x: x + 2 * (np.arange(12) == 3),
    "slopes and biases": lambda x: (
        x * np.linspace(0.5, 1.5, 12) + np.linspace(-1, 1, 12)
    ),
    "no such class": lambda x: x - 9 * (np.arange(12) == 3),
    "a class that is never predicted": lambda x: x,
}


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("need", NEEDS)
@pytest.mark.parametrize("num_samples", [150, 1500, 6000])
def test_fits_without_evidence_need_not_be_found(
    num_samples, need, name, monkeypatch
):
    def change(x):
        return NEEDS[need](x - x[:, :1])

    x, labels, _ = drawn(num_samples, 12, seed=5, change=change)
    if need == "a class that is never predicted":
        x[:, 3] -= 14
        x, labels[:20] = log_softmax(x), 3
    data = x, labels, np.ones(num_samples), PATHS[name]
    monkeypatch.setattr(dense_evidence, "TOGETHER", 0)
    monkeypatch.setattr(dense_evidence, "SAMPLES", 0)
    monkeypatch.setattr(ridge_paths, "DECREASE", 1e-11)
    passes, at = [], dense_evidence._Problem.at
    monkeypatch.setattr(
        dense_evidence._Problem,
        "at",
        lambda self, *given: passes.append(None) or at(self, *given),
    )
    found = average_by_evidence(*data)
    few, passes[:] = len(passes), []
    monkeypatch.setattr(ridge_paths, "MARGIN", np.inf)
    expected = average_by_evidence(*data)
    many = need == "slopes and biases" and num_samples == 6000
    assert few < len(passes) if many else few <= len(passes)
    assert found.log_evidence == pytest.approx(expected.log_evidence, abs=1e-6)
    assert found.plain == pytest.approx(expected.plain, rel=1e-6, abs=1e-12)
    # They are means over fits around 0 alone.
    assert found.scale_width == pytest.approx(expected.scale_width, abs=1e-4)
    assert found.bias_width == pytest.approx(expected.bias_width, abs=1e-4)
    np.testing.assert_allclose(found.parameters, expected.parameters, atol=1e-6)
    # One after the other from narrow to wide they are the same.
    monkeypatch.setattr(dense_evidence, "SAMPLES", np.inf)
    expected = average_by_evidence(*data)
    np.testing.assert_allclose(found.parameters, expected.parameters, atol=1e-6)


def test_fits_that_are_not_found_are_left_to_the_other_way(monkeypatch):
    x, labels, _ = drawn(80, 6, seed=3)
    data = x, labels, np.ones(80), PATHS["vector"]
    monkeypatch.setattr(ridge_paths, "MAX_STEPS", 0)
    found = average_by_evidence(*data)
    without_whole_steps(monkeypatch)
    expected = average_by_evidence(*data)
    np.testing.assert_array_equal(found.parameters, expected.parameters)


@pytest.mark.parametrize("name", ["vector", "bias corrected"])
def test_third_derivatives_save_steps(name, monkeypatch):
    x, labels, _ = drawn(400, 12, seed=2, change=NEEDS["slopes and biases"])
    data = x, labels, np.ones(400), PATHS[name]
    found = average_by_evidence(*data)
    monkeypatch.setattr(ridge_paths.Path, "_bent", lambda _, step, here: step)
    plain = average_by_evidence(*data)
    assert found.iterations < 0.9 * plain.iterations
    np.testing.assert_allclose(found.parameters, plain.parameters, atol=1e-4)
    assert found.log_evidence == pytest.approx(plain.log_evidence, abs=1e-4)


def test_a_first_step_that_third_derivatives_would_turn_stays():
    path = ridge_paths.Path(np.array([[1.0, 0.0]]), np.zeros(2), 1.0)
    step = ridge_paths._Step(np.zeros(3), 1.0, np.array([1.0, 0.0, 0.0]), 0.5)

    def here(hessian, penalty):
        curvatures = hessian.diagonal()
        hessian = hessian + penalty * np.eye(3)
        diagonal = hessian.diagonal()
        return ridge_paths._Here(
            0.0, np.zeros(3), hessian, diagonal, curvatures
        )

    def bent(changed, penalty=0.0):
        hessian = np.eye(3)
        hessian[:, 0] = hessian[0] = changed
        before = here((1 - penalty) * np.eye(3), 7.0)
        path.before = np.array([-1.0, 0.0, 0.0]), before
        hessian -= penalty * np.eye(3)
        return path._bent(step, here(hessian, penalty)).change

    # One step further as far as before: half of the change of the Hessian.
    turned = bent([1.0, 0.2, 0.0])
    expected = np.linalg.solve([[1, 0.2], [0.2, 1]], [0, 0.1])
    np.testing.assert_allclose(turned[:2], [1, 0] - expected)
    # A penalty is in the Hessian of the step, and in no change of the loss.
    np.testing.assert_allclose(bent([1.0, 0.2, 0.0], 0.5), turned)
    np.testing.assert_array_equal(bent([1.0, 0.9, 0.4]), step.change)


def test_large_scores_change_no_derivative():
    # The same probabilities, of logits that are 100 higher or lower.
    x, labels, _ = drawn(30, 3, seed=0)
    x = log_softmax(x)
    points = np.zeros((2, 7))
    points[1, 4:] = 0.3, -0.1, 0.2
    found = []
    for shift in (0.0, 100.0, -100.0):
        moments = np.stack(
            [
                np.bincount(labels, (x + shift)[np.arange(30), labels], 3),
                np.bincount(labels, minlength=3),
            ]
        )
        problem = dense_evidence._Problem(x + shift, moments, np.ones(30))
        value, slope, hessian = problem.at(points, slice(None))
        found.append([value, slope[:, 4:], hessian[:, 4:, 4:]])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-11)


def test_a_step_that_does_not_lower_the_loss_is_shortened():
    # Slopes alone are free: two deviations and the common scale.
    path = ridge_paths.Path(np.array([[1.0, 0.0]]), np.zeros(2), 1.0)
    gradient, hessian = np.array([1.0, -2.0, 0.5, 0.0, 0.0]), np.eye(3)
    path.advance(3.0, gradient, hessian)
    step = path.point.copy()
    # The ridge of 1 is on the deviations.
    np.testing.assert_allclose(step, [-0.5, 1.0, -0.5, 0.0, 0.0])
    lengths = [1.0]
    for _ in range(3):
        path.advance(4.0, gradient, hessian)
        lengths.append(path.point[1])
        np.testing.assert_allclose(path.point, lengths[-1] * step)
    assert (np.diff(lengths) < 0).all() and lengths[-1] > 0


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("num_samples, limit", [(50, 0.01), (200, 0.002)])
def test_no_harm_where_temperature_scaling_is_right(name, num_samples, limit):
    _, _, truth = drawn(5000, 10, seed=0)
    probe = 1.7 * truth
    harm = []
    for seed in range(10):
        x, labels, _ = drawn(num_samples, 10, seed=1 + seed)
        found, temperature = around(1.7 * x, labels, PATHS[name])
        w, b = found.parameters
        harm.append(
            expected_nll(probe / temperature * w + b, truth)
            - expected_nll(probe / temperature, truth)
        )
        assert found.plain > 0.2
    assert np.mean(harm) < limit


@pytest.mark.parametrize("name", PATHS)
def test_nothing_is_lost_with_many_samples(name):
    def change(x):
        slopes = np.linspace(0.7, 1.3, 5) if name != "bias corrected" else 1.0
        biases = np.linspace(-1, 1, 5) if name != "class" else 0.0
        return x * slopes + biases

    x, labels, truth = drawn(5000, 5, seed=2, change=change)
    found, temperature = around(x, labels, PATHS[name])
    w, b = found.parameters
    assert found.plain < 1e-6
    least = expected_nll(truth, truth)
    after = expected_nll(x / temperature * w + b, truth)
    assert expected_nll(x / temperature, truth) > least + 0.02
    assert after < least + 0.002


def test_temperature_scaling_can_have_no_probability_at_all():
    # exp(-2000) is 0 in float64.
    posterior, found = evidence.mix([2000.0, 1999.0], np.zeros(2), 0.0, 0.5)
    assert posterior == pytest.approx([0.7310586, 0.2689414, 0.0])
    assert found == pytest.approx(2000 + np.log((1 + np.exp(-1.0)) / 4))
    posterior, found = evidence.mix([-np.inf, -2000.0], np.zeros(2), 0.0, 0.5)
    assert posterior == pytest.approx([0.0, 0.0, 1.0])
    assert found == pytest.approx(np.log(0.5))


@pytest.mark.parametrize("determinants", [np.nan, np.inf, -np.inf, 0.5])
def test_a_fit_whose_curvature_is_rounding_is_left_out(determinants):
    problem = types.SimpleNamespace(
        n=10,
        plain_value=1.0,
        plain_curvature=1.0,
        center=np.zeros(3),
        penalty=lambda _: 0.0,
        settle=lambda parameters: parameters,
    )
    found = types.SimpleNamespace(
        parameters=np.ones(3), value=0.9, iterations=4
    )
    fit = with_evidence(problem, found, None, 1.0, determinants)
    if determinants == 0.5:
        assert fit.log_evidence == pytest.approx(10 * 0.1 + 0.25)
        np.testing.assert_array_equal(fit.parameters, 1.0)
    else:
        assert fit.log_evidence == -np.inf
        np.testing.assert_array_equal(fit.parameters, 0.0)


@pytest.mark.parametrize("layer", ["MatrixScaling", "DirichletScaling"])
def test_matrices_take_samples_that_rule_temperature_scaling_out(layer):
    def change(x):
        return x * np.linspace(0.3, 1.7, 5) + np.linspace(-2, 2, 5)

    x, labels, truth = drawn(5000, 5, seed=8, change=change)
    found = getattr(kc.layers, layer)().adapt(x, labels)
    assert found.record["temperature_scaling_probability"] == 0
    scores = np.asarray(keras.ops.convert_to_numpy(found(x)), "float64")
    least = expected_nll(truth, truth)
    assert expected_nll(scores, truth) < least + 0.004


def test_the_result_is_between_temperature_scaling_and_the_ridge_fit():
    x, labels, _ = drawn(400, 5, seed=3, change=lambda x: x + FIRST)
    found, temperature = around(x, labels, (BIAS,))
    problem = deviations.Deviations(x / temperature, labels, np.ones(400), 0.0)
    problem.penalize(np.array([0.0, 1e3]), 1.0)
    free = fit_regression(problem, problem.center, 1e-8).parameters
    assert 0 < found.plain < 0.5
    spread, widest = np.ptp(found.parameters[1]), np.ptp(free[1])
    assert 0.5 * widest < spread < widest


@pytest.mark.parametrize("name", PATHS)
def test_unequal_weights_hold_less_information(name):
    x, labels, _ = drawn(3000, 5, seed=4)
    weights = np.where(np.arange(3000) % 5, 1.0, 9.0)
    weights *= 3000 / weights.sum()
    plain, _ = around(x, labels, PATHS[name])
    weighted, _ = around(x, labels, PATHS[name], weights)
    assert plain.dispersion < 1.1
    effect = (weights**2).sum() / weights.sum()
    assert weighted.dispersion == pytest.approx(effect, rel=0.1)


@pytest.mark.parametrize("scale", [True, False])
def test_dispersion_of_groups(scale):
    x, labels, _ = drawn(200, 4, seed=4)
    rng = np.random.default_rng(0)
    # Rows of a group have one label, and are wrong together.
    group, weights = 4 * rng.integers(0, 6, 200), rng.uniform(0.5, 1.5, 200)
    group += labels
    weights *= 200 / weights.sum()
    problem = deviations.Deviations(x, labels, weights, 0.0, group * 7 - 3)
    q = np.exp(x - x.max(axis=1, keepdims=True))
    q /= q.sum(axis=1, keepdims=True)
    power = x if scale else np.ones_like(x)
    scores = weights[:, None] * (q - np.eye(4)[labels]) * power
    sums = np.stack([scores[group == g].sum(axis=0) for g in range(24)])
    variance = (weights[:, None] * q * (1 - q) * power**2).sum()
    expected = max(1.0, (sums**2).sum() / variance)
    assert expected > 1.2
    assert problem.dispersion(scale) == pytest.approx(expected, rel=1e-9)
    alone = deviations.Deviations(x, labels, weights, 0.0, np.arange(200))
    plain = deviations.Deviations(x, labels, weights, 0.0)
    assert alone.dispersion(scale) == pytest.approx(plain.dispersion(scale))
    fits, phi = alone.fits_of_all_widths((BOTH,))
    expected, of_rows = plain.fits_of_all_widths((BOTH,))
    assert phi == pytest.approx(of_rows)
    np.testing.assert_allclose(fits[3].parameters, expected[3].parameters)


def test_few_groups_say_nothing_of_dispersion():
    x, labels, _ = drawn(300, 4, seed=4)
    group = labels // 2
    problem = deviations.Deviations(x, labels, np.ones(300), 0.0, group)
    expected = problem.dispersion(scale=True)
    _, phi = problem.fits_of_all_widths((BOTH,))
    assert phi == expected > 1


def test_what_the_map_can_mend_is_no_dispersion(each_way):
    x, labels, _ = drawn(2000, 5, 7, change=lambda x: x * (1 - 0.9 * FIRST))
    found, temperature = around(x, labels, PATHS["vector"])
    problem = deviations.Deviations(x / temperature, labels, np.ones(2000), 0.0)
    assert problem.dispersion(scale=True) > 1.1
    assert found.dispersion < 1.02


@pytest.mark.parametrize("name", PATHS)
def test_dispersion_by_degrees_of_freedom(name, each_way):
    x, labels, _ = drawn(90, 5, seed=9, change=lambda x: x * (1 - FIRST))
    weights = np.where(np.arange(90) % 3, 0.5, 2.0)
    found, temperature = around(x, labels, PATHS[name], weights)
    problem = deviations.Deviations(x / temperature, labels, weights, 0.0)
    scale, bias = np.any(PATHS[name], axis=0)
    at_temperature = problem.dispersion(scale)
    ww, _, bb = problem.class_hessians.mean(axis=1)
    widths = 1.6 * np.array([np.sqrt(bb / ww) if bias else 1.0, 1.0])
    fit = problem.fit(widths * [scale, bias], 1.0, problem.center)
    problem.evaluate(fit.parameters)
    m = weights.sum() ** 2 / (weights**2).sum()
    p = 1 + 5 * (int(scale) + int(bias))
    corrected = problem.dispersion(scale) * m / (m - p)
    expected = min(at_temperature, corrected)
    assert expected > 1.05
    assert found.dispersion == pytest.approx(expected, rel=1e-4)


def test_fits_of_too_few_samples_say_nothing_of_dispersion():
    x, labels, _ = drawn(20, 10, seed=9)
    weights = np.where(np.arange(20) % 4, 0.5, 2.5)
    problem = deviations.Deviations(x, labels, weights, 0.0)
    expected = problem.dispersion(scale=True)
    _, phi = problem.fits_of_all_widths((BOTH,))
    assert phi == expected > 1


def test_a_class_without_samples_is_held_by_the_prior():
    x, labels, _ = drawn(300, 6, seed=5)
    keep = labels != 2
    found, _ = around(x[keep], labels[keep], PATHS["vector"])
    assert np.isfinite(found.parameters).all()
    # It never came although it was predicted: its bias falls.
    assert found.parameters[1].argmin() == 2


def test_another_objective_keeps_the_widths():
    x, labels, _ = drawn(2000, 5, seed=6, change=lambda x: x + FIRST)
    data = x, labels, np.ones(2000)
    average = average_by_evidence(*data, (BIAS,))
    objective = kc.layers.FocalObjective()
    found = evidence.minimize_around(*data, objective, average)
    w, b = average.parameters
    at_average, _ = objective.value_and_gradient(x * w + b, *data[1:])
    assert found.value < at_average
    assert np.ptp(found.parameters[0]) < 1e-12  # one common slope
    assert found.parameters[1].argmax() == 0


@pytest.mark.parametrize("path", PATHS)
def test_widths_have_half_normal_priors(path, monkeypatch):
    seen, mix = [], evidence.mix
    monkeypatch.setattr(
        evidence, "mix", lambda *given: seen.append(given) or mix(*given)
    )
    x, labels, _ = drawn(60, 3, 0)
    average_by_evidence(x, labels, np.ones(60), PATHS[path])
    problem = deviations.Deviations(x, labels, np.ones(60), 0.0)
    fits, _ = problem.fits_of_all_widths(PATHS[path])
    scale, bias = np.stack([fit.widths for fit in fits]).T
    (_, log_prior, *_), (_, of_widths, *_) = seen
    expected = -(scale**2) / (2 * 0.5**2) - bias**2 / 2
    np.testing.assert_allclose(log_prior, expected, rtol=1e-12)
    # The widths of the record are those of fits around 0.
    around_zero = [not fit.typical for fit in fits]
    np.testing.assert_array_equal(of_widths, log_prior[around_zero])


def test_the_evidence_of_a_path_may_have_two_peaks(each_way, monkeypatch):
    # Most classes need no bias. One is hardly ever predicted, and occurs.
    x = np.random.default_rng(0).normal(size=(10_000, 40))
    x[:, 0] = -14
    x = log_softmax(x)
    rng = np.random.default_rng(1)
    labels = (x + rng.gumbel(size=x.shape)).argmax(axis=1)
    labels[:20] = 0
    average = average_by_evidence(x, labels, np.ones(len(x)), (BIAS,))
    monkeypatch.setattr(ridge_paths, "MARGIN", np.inf)
    problem = deviations.Deviations(x, labels, np.ones(len(x)), 0.0)
    fits, _ = problem.fits_of_all_widths((BIAS,))
    found = [fit.log_evidence for fit in fits]
    assert min(found) < found[0] - 5 and found[-1] > found[0] + 20
    assert average.plain < 1e-6 and average.log_evidence > 10


@pytest.mark.parametrize(
    "name",
    [
        "BiasCorrectedTemperatureScaling",
        "ClassTemperatureScaling",
        "VectorScaling",
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_two_classes_with_huge_logits(name):
    # Side by side no fit is found, and the whole Hessian is summed by blocks.
    rng = np.random.default_rng(0)
    data = (1e6 * rng.normal(size=(100, 2))).astype("float32")
    data = data, rng.integers(0, 2, 100)
    layer = getattr(kc.layers, name)().adapt(*data)
    plain = kc.layers.TemperatureScaling().adapt(*data)
    limit = plain.record["nll_after"] * (1 + 1e-6)
    assert layer.record["nll_after"] <= limit


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("num_classes", [10, 60, 260])
def test_constant_logits_tell_no_scale(name, num_classes):
    labels = np.random.default_rng(0).integers(0, num_classes, 500)
    x = np.full((500, num_classes), -np.log(num_classes), "float32")
    found = average_by_evidence(x, labels, np.ones(500), PATHS[name])
    assert found.plain > 0.4 and abs(found.log_evidence) < 1
    log_p = log_softmax(x[0] * found.parameters[0] + found.parameters[1])
    assert np.abs(log_p + np.log(num_classes)).max() < 0.5


def test_an_evidence_of_rounding_alone_is_refused():
    # A Hessian without curvature, as of logits of which nothing is left.
    path = ridge_paths.Path(np.array([[1.0, 0.0]]), np.zeros(2), 1.0)
    path.plain = 1.0, 1.0
    step = ridge_paths._Step(np.zeros(3), 1.0, np.zeros(3), 0.0)
    nothing = np.zeros((3, 3))
    here = ridge_paths._Here(1.0, np.zeros(3), nothing, *2 * [np.zeros(3)])
    log_evidence = path._log_evidence(0, step, here)
    with pytest.raises(ArithmeticError, match="only rounding"):
        path._keep(0, step, log_evidence)


def test_a_step_upwards_is_refused():
    # Of huge logits rounding leaves a curvature below zero.
    strengths = np.array([[1.0, 1.0]])
    path = ridge_paths.Path(strengths, np.zeros(2), 1.0)
    hessian = np.diag([1.0, 1.0, -1e-6, 1.0, 1.0])
    with pytest.raises(ArithmeticError, match="only rounding"):
        path.advance(1.0, np.array([0.0, 0.0, 1.0, 0.0, 0.0]), hessian)
