"""The average by evidence with a matrix."""

import tracemalloc

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.inputs.arrays import log_softmax
from keras_calib.layers import FocalObjective
from keras_calib.solvers import matrix_deviations
from keras_calib.solvers import matrix_evidence
from keras_calib.solvers.evidence import average_by_evidence
from keras_calib.solvers.matrix_deviations import MatrixDeviations
from keras_calib.solvers.matrix_evidence import average_matrices
from keras_calib.solvers.preconditioners import kronecker
from keras_calib.solvers.temperature import fit_temperature
from tests.solvers.test_evidence import FIRST
from tests.solvers.test_evidence import PATHS
from tests.solvers.test_evidence import drawn
from tests.solvers.test_evidence import expected_nll

VECTOR = PATHS["vector"]


def average(x, labels, weights=None):
    """Parameters for `x`, and the average."""
    weights = np.ones(len(x)) if weights is None else weights
    temperature = fit_temperature(x, labels, weights).temperature
    found = average_matrices(x / temperature, labels, weights, VECTOR)
    matrix, bias = found.parameters[:-1], found.parameters[-1]
    return matrix / temperature, bias, found


def mixed(x):
    """Classes 0 and 1 are confused with each other."""
    matrix = np.eye(x.shape[1])
    matrix[:2, :2] = [[0.6, 0.4], [0.4, 0.6]]
    return x @ matrix


def test_the_value_is_the_likelihood_of_the_result():
    x, labels, _ = drawn(500, 5, seed=0, change=mixed)
    matrix, bias, found = average(x, labels)
    log_p = log_softmax(x @ matrix + bias)
    nll = -log_p[np.arange(500), labels].mean()
    assert found.value == pytest.approx(nll, rel=1e-12)


def test_the_value_is_that_of_smoothed_labels():
    x, labels, _ = drawn(300, 4, seed=0, change=mixed)
    found = average_matrices(
        x.copy(), labels, np.ones(300), VECTOR, smoothing=0.1
    )
    matrix, bias = found.parameters[:-1], found.parameters[-1]
    log_p = log_softmax(x @ matrix + bias)
    smoothed = 0.9 * np.eye(4)[labels] + 0.1 / 4
    expected = -(smoothed * log_p).sum(axis=1).mean()
    assert found.value == pytest.approx(expected, rel=1e-12)


def test_another_objective_keeps_the_width_of_the_matrix():
    x, labels, _ = drawn(1000, 4, seed=2, change=mixed)
    data = labels, np.ones(1000)
    average = average_matrices(x.copy(), *data, VECTOR)
    objective = FocalObjective()

    def value(parameters):
        scores = x @ parameters[:-1] + parameters[-1]
        return objective.value(scores, *data)

    found = matrix_evidence.minimize_matrix_around(
        x.copy(), *data, objective, average
    )
    # The value is that of the objective and of the penalty.
    assert value(found.parameters) < value(average.parameters)
    assert value(found.parameters) <= found.value < value(average.parameters)
    np.testing.assert_allclose(found.parameters, average.parameters, atol=0.6)


def test_a_matrix_is_found_where_there_is_one():
    x, labels, truth = drawn(5000, 5, seed=1, change=mixed)
    matrix, bias, found = average(x, labels)
    assert found.matrix_width > 0.1
    assert found.plain < 1e-6
    after = expected_nll(x @ matrix + bias, truth)
    assert after < expected_nll(truth, truth) + 0.003
    weights = np.ones(5000)
    temperature = fit_temperature(x, labels, weights).temperature
    vector = average_by_evidence(x / temperature, labels, weights, VECTOR)
    w, b = vector.parameters
    assert expected_nll(x / temperature * w + b, truth) > after + 0.005


@pytest.mark.parametrize("num_samples, limit", [(50, 0.01), (200, 0.002)])
def test_no_harm_where_temperature_scaling_is_right(num_samples, limit):
    _, _, truth = drawn(5000, 8, seed=0)
    harm, plain = [], []
    for seed in range(8):
        x, labels, _ = drawn(num_samples, 8, seed=1 + seed)
        matrix, bias, found = average(1.7 * x, labels)
        plain.append(found.plain)
        temperature = fit_temperature(
            1.7 * x, labels, np.ones(num_samples)
        ).temperature
        harm.append(
            expected_nll(1.7 * truth @ matrix + bias, truth)
            - expected_nll(1.7 / temperature * truth, truth)
        )
    assert np.mean(plain) > 0.3
    assert np.mean(harm) < limit


def test_the_hessian_of_all_classes_is_that_of_finite_differences():
    x, labels, _ = drawn(40, 3, seed=2)
    problem = MatrixDeviations(x, labels, np.ones(40), 0.0)
    problem.evaluate(problem.center)
    strengths = np.full((4, 3), 2.0)
    found = problem._log_det(strengths)

    # In the common scale, then the parameters of each class.
    start = problem.center
    direction = start.T.reshape(-1)

    def loss(values):
        parameters = start + values[0] * start
        parameters = parameters + values[1:].reshape(3, 4).T
        scores = problem.scores(parameters)
        return -log_softmax(scores)[np.arange(40), labels].sum()

    h, size = 1e-4, 1 + len(direction)
    unit = h * np.eye(size)
    hessian = np.array(
        [
            [
                loss(a + b) - loss(a - b) - loss(b - a) + loss(-a - b)
                for b in unit
            ]
            for a in unit
        ]
    ) / (4 * h * h)
    hessian[np.arange(1, size), np.arange(1, size)] += 2.0
    assert found == pytest.approx(np.linalg.slogdet(hessian)[1], abs=1e-3)


def test_many_classes_are_taken_one_by_one(monkeypatch):
    x, labels, truth = drawn(1000, 6, seed=3, change=mixed)
    matrix, bias, _ = average(x, labels)
    monkeypatch.setattr(matrix_deviations, "DENSE", 0)
    other, other_bias, _ = average(x, labels)
    assert np.abs(other - matrix).max() > 0
    assert expected_nll(x @ other + other_bias, truth) == pytest.approx(
        expected_nll(x @ matrix + bias, truth), abs=0.002
    )


def test_too_many_classes_have_no_matrix(monkeypatch):
    x, labels, _ = drawn(300, 6, seed=4, change=mixed)
    monkeypatch.setattr(matrix_evidence, "MAX_CLASSES", 5)
    matrix, _, found = average(x, labels)
    assert found.matrix_width == 0.0
    np.testing.assert_array_equal(matrix, np.diag(np.diag(matrix)))
    # It is the average without a matrix.
    temperature = fit_temperature(x, labels).temperature
    data = x / temperature, labels, np.ones(300)
    plain = average_by_evidence(*data, VECTOR).parameters / temperature
    np.testing.assert_allclose(np.diag(matrix), plain[0], rtol=1e-12)


@pytest.mark.parametrize("name", ["MatrixScaling", "DirichletScaling"])
def test_record_and_memory_without_a_matrix(name):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1000, 400)).astype("float32")
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    layer = getattr(kc.layers, name)()
    tracemalloc.start()
    layer.adapt(logits, labels)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert layer.record["matrix"] == "left out: more than 100 classes"
    estimate = matrix_evidence.bytes_needed(
        *logits.shape, around_temperature=True
    )
    assert peak / 2 < estimate < 4 * peak
    # A matrix of so many classes needs more, and with few it is fitted.
    assert estimate < 0.5 * matrix_evidence.bytes_needed(
        *logits.shape, around_temperature=False
    )
    few = getattr(kc.layers, name)()
    few.adapt(logits[:, :4], labels % 4)
    assert "matrix" not in few.record


def test_the_order_of_weighted_rows_does_not_matter():
    x, labels, _ = drawn(300, 4, seed=5, change=mixed)
    weights = np.random.default_rng(0).uniform(0.2, 3.0, 300)
    weights *= 300 / weights.sum()
    order = np.random.default_rng(1).permutation(300)
    matrix, bias, _ = average(x, labels, weights)
    other, other_bias, _ = average(x[order], labels[order], weights[order])
    np.testing.assert_allclose(other, matrix, atol=1e-5)
    np.testing.assert_allclose(other_bias, bias, atol=1e-5)


@pytest.mark.parametrize("sharpness", [1.0, 8.0])
def test_the_hessians_of_classes_are_sums_over_all_rows(sharpness):
    # Two blocks of rows and two groups of classes. Where predictions are
    # sharp, most rows have next to no variance, and are left out.
    x, labels, _ = drawn(1500, 40, seed=6)
    weights = np.random.default_rng(2).uniform(0.5, 1.5, 1500)
    weights *= 1500 / weights.sum()
    data = log_softmax(sharpness * x), labels, weights
    problem = MatrixDeviations(*data, 0.0)
    problem.evaluate(problem.center)
    least = problem._least_curvatures()
    found = problem._hessians_of_classes(slice(0, 40), least)

    inputs = problem.with_ones(slice(None)).astype(float)
    q = problem.q.astype(float)
    for k in (0, 19, 20, 39):
        variance = weights * q[:, k] * (1 - q[:, k])
        exact = inputs.T @ (variance[:, None] * inputs)
        size = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
        assert (np.abs(found[k] - exact) / size).max() < 1e-2
        if sharpness == 1.0:
            assert (np.abs(found[k] - exact) / size).max() < 1e-5


def test_determinants_are_those_of_the_classes_by_themselves():
    # More classes than are kept at a time, in two groups.
    x, labels, _ = drawn(300, 40, seed=8)
    problem = MatrixDeviations(log_softmax(x), labels, np.ones(300), 0.0)
    problem.evaluate(problem.center)
    strengths = np.random.default_rng(4).uniform(0.5, 2.0, (41, 40))

    inputs = problem.with_ones(slice(None)).astype(float)
    expected = np.log(problem._common_curvature())
    for k, q in enumerate(problem.q.T.astype(float)):
        hessian = inputs.T @ ((q * (1 - q))[:, None] * inputs)
        hessian += np.diag(strengths[:, k])
        expected += np.linalg.slogdet(hessian)[1]
    assert problem._log_det_by_class(strengths) == pytest.approx(
        expected, rel=1e-4
    )


@pytest.mark.parametrize("confused", [False, True])
def test_narrow_fits_without_evidence_are_not_found(confused, monkeypatch):
    monkeypatch.setattr(matrix_deviations, "DENSE", 0)

    def change(x):
        # Of each two classes, one is taken for the other.
        pairs = np.kron(np.eye(6), [[0.7, 0.3], [0.3, 0.7]])
        return x @ pairs if confused else x

    x, labels, _ = drawn(4000, 12, seed=1, change=change)
    fits, fit = [], MatrixDeviations.fit

    def counted(self, *given):
        fits.append(fit(self, *given))
        return fits[-1]

    monkeypatch.setattr(MatrixDeviations, "fit", counted)
    _, _, found = average(x, labels)
    few, fits[:] = len(fits), []
    monkeypatch.setattr(matrix_deviations, "MARGIN", np.inf)
    _, _, expected = average(x, labels)
    assert (few < len(fits)) == confused and len(fits) == 6
    assert found.log_evidence == pytest.approx(expected.log_evidence, abs=1e-6)
    assert found.matrix_width == pytest.approx(expected.matrix_width, abs=1e-6)
    np.testing.assert_allclose(found.parameters, expected.parameters, atol=1e-6)


def test_a_wide_fit_of_rounding_alone_leaves_narrower_ones(monkeypatch):
    monkeypatch.setattr(matrix_deviations, "DENSE", 0)
    seen, with_evidence = [], matrix_deviations.with_evidence

    def first_is_rounding(*given):
        seen.append(with_evidence(*given[:-1], given[-1] if seen else np.nan))
        return seen[-1]

    monkeypatch.setattr(matrix_deviations, "with_evidence", first_is_rounding)
    x, labels, _ = drawn(600, 5, seed=0, change=mixed)
    _, _, found = average(x, labels)
    assert len(seen) == 6 and seen[0].log_evidence == -np.inf
    assert np.isfinite([fit.log_evidence for fit in seen[1:]]).all()
    assert found.matrix_width > 0


@pytest.mark.parametrize("change", [None, mixed, lambda x: x * FIRST])
def test_evidence_is_at_most_what_is_possible(change, monkeypatch):
    monkeypatch.setattr(matrix_deviations, "DENSE", 0)
    x, labels, _ = drawn(600, 5, seed=0, change=change)
    diagonal = average_by_evidence(x, labels, np.ones(600), VECTOR)
    problem = MatrixDeviations(x.copy(), labels, np.ones(600), 0.0)
    possible, at = [], problem._possible

    def keep(found):
        possible.append(at(found))
        return np.inf

    monkeypatch.setattr(problem, "_possible", keep)
    fits = list(problem.fits_of_all_widths(diagonal))
    assert len(fits) == len(possible) == 6
    # Nor is that of narrower ones.
    for number in range(6):
        highest = max(fit.log_evidence for fit in fits[number:])
        assert highest < possible[number] + 1e-6


def test_the_shared_preconditioner_is_an_inverse():
    x, labels, _ = drawn(500, 5, seed=9)
    weights = np.random.default_rng(5).uniform(0.5, 1.5, 500)
    problem = MatrixDeviations(x, labels, weights, 0.0)
    problem.evaluate(problem.center)
    # The class itself is penalized less, as around temperature scaling.
    ridge = np.random.default_rng(6).uniform(0.05, 0.2, (6, 1)) * np.ones(5)
    ridge[np.arange(5), np.arange(5)] *= np.linspace(0.1, 1.0, 5)
    gradient = np.random.default_rng(7).normal(size=(6, 5))
    found = kronecker(problem, ridge)(gradient)

    inputs = problem.with_ones(slice(None))
    q, w = problem.q, problem.weights
    variances = (w * q * (1 - q)).sum(axis=0)
    shared = inputs.T @ ((w * q * (1 - q)).sum(axis=1)[:, None] * inputs)
    shared /= variances.sum()
    for k in range(5):
        hessian = variances[k] * shared + 2 * np.diag(ridge[:, k])
        expected = np.linalg.solve(hessian, gradient[:, k])
        np.testing.assert_allclose(found[:, k], expected, rtol=1e-4)


def test_a_changed_penalty_counts_at_the_same_point():
    x, labels, _ = drawn(300, 4, seed=7)
    weights = np.ones(300)
    average = average_by_evidence(x, labels, weights, VECTOR)
    problem, fresh = (
        MatrixDeviations(x.copy(), labels, weights, 0.0) for _ in range(2)
    )
    away = problem.center + np.random.default_rng(3).normal(size=(5, 4))
    problem.penalize(0.1, average)
    first, _ = problem.evaluate(away)
    problem.penalize(0.4, average)
    fresh.penalize(0.4, average)
    value, gradient = problem.evaluate(away)
    expected, slope = fresh.evaluate(away)
    assert value == expected < first
    np.testing.assert_array_equal(gradient, slope)


def test_widths_of_the_matrix_have_a_half_normal_prior(monkeypatch):
    seen, mix = [], matrix_evidence.mix
    monkeypatch.setattr(
        matrix_evidence,
        "mix",
        lambda *given: seen.append(given) or mix(*given),
    )
    x, labels, _ = drawn(60, 3, 0)
    average_matrices(x, labels, np.ones(60), VECTOR)
    widths = matrix_deviations.MATRIX_WIDTHS
    [(_, log_prior, *_)] = seen
    expected = -(widths**2) / (2 * 0.25**2)
    np.testing.assert_allclose(log_prior, expected, rtol=1e-12)
