"""The average by evidence for matrices: `solvers.evidence` with one more group.

With x the log-probabilities divided by the temperature of temperature scaling,
and f = x minus the means of its rows and then of its columns, the scores of a
fit are

    x_ik (1 + a) + b_k + sum_j f_ij M_jk

    M_jk ~ N(0, t^2 / K),    M_kk ~ N(0, t^2 / K + tv^2),    b_k ~ N(0, tb^2)

for each width `t`; `tv` and `tb` are those of the average without a matrix.
"""

import dataclasses

import numpy as np

from keras_calib.inputs import arrays
from keras_calib.solvers.blocks import GROUPS
from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.evidence import average_by_evidence
from keras_calib.solvers.laplace import mix
from keras_calib.solvers.matrix_deviations import AT_ONCE
from keras_calib.solvers.matrix_deviations import DENSE
from keras_calib.solvers.matrix_deviations import MATRIX_WIDTHS
from keras_calib.solvers.matrix_deviations import MatrixDeviations
from keras_calib.solvers.multinomial_regression import fit_objective
from keras_calib.solvers.regression_problems import BLOCKS
from keras_calib.solvers.regression_problems import DIGITS

# Scale of the half-normal prior over `t`.
MATRIX_WIDTH = 0.25
# Prior probability of a matrix, and that of temperature scaling without one.
MATRIX = 0.25
PLAIN = 2 / 3
# Classes above which there is no matrix.
MAX_CLASSES = 100


def average_matrices(
    x,
    labels,
    weights,
    paths,
    smoothing=0.0,
    bounds=None,
    factor=1.0,
    group=None,
):
    """Fit matrices for every width, and average with what has none.

        P(fit) ~ MATRIX E p(t),    P(no matrix) ~ (1 - MATRIX) E_0
        E: evidence of the fit, E_0: of the average without a matrix
        p(t) ~ exp(-t^2 / (2 MATRIX_WIDTH^2))
        result = factor sum P parameters

    Args:
        x: see `average_by_evidence`, as the other arguments; its memory is
            used for other numbers.
        labels: class ids, `(n,)`.
        weights: `(n,)`, with the number of samples as their sum.
        paths: of the average without a matrix.
        smoothing: weight of the uniform distribution in the labels.
        bounds: not used; slopes of a matrix have none.
        factor: of all scores of the result.
        group: see `average_by_evidence`.

    Returns:
        `Average`; its `parameters` are a matrix above biases,
        `(num_classes + 1, num_classes)`.
    """
    data = labels, weights
    if not fits_matrix(x.shape[1]):
        found = _without_matrix(
            x, *data, paths, smoothing, factor=factor, group=group
        )
        return dataclasses.replace(found, parameters=_as_matrix(found))
    # Beside matrices, temperature scaling has the probability 1/2 again.
    diagonal = _without_matrix(
        x, *data, paths, smoothing, plain=PLAIN, group=group
    )
    problem = MatrixDeviations(x, *data, smoothing)
    del x  # the problem has the same numbers
    log_prior = -0.5 * (MATRIX_WIDTHS / MATRIX_WIDTH) ** 2
    fits = problem.fits_of_all_widths(diagonal)
    mean, evidence, iterations = _mean(fits, log_prior)
    without = diagonal.log_evidence, 1 - MATRIX
    posterior, log_evidence = mix(evidence, log_prior, *without)
    parameters = posterior[:-1].sum() * problem.of_x(mean)
    parameters += posterior[-1] * _as_matrix(diagonal)
    parameters *= factor
    return dataclasses.replace(
        diagonal,
        parameters=parameters,
        plain=diagonal.plain * float(posterior[-1]),
        log_evidence=log_evidence,
        value=_mean_loss(problem.inputs, *data, parameters, smoothing),
        iterations=diagonal.iterations + iterations,
        matrix_width=float(posterior[:-1] @ MATRIX_WIDTHS),
    )


def _mean(fits, log_prior):
    """The mean of fits by prior and evidence, of which one exists at a time.

    Returns:
        mean: parameters.
        log_evidence: list, of each fit.
        iterations: of all fits.
    """
    mean, log_total = 0.0, -np.inf
    log_evidence, iterations = [], 0
    for fit, own in zip(fits, log_prior, strict=True):
        log_evidence.append(fit.log_evidence)
        iterations += fit.iterations
        own += fit.log_evidence
        log_total = np.logaddexp(log_total, own)
        # Where no fit has any evidence so far, it is the last one.
        share = np.exp(own - log_total) if log_total > -np.inf else 1.0
        mean = mean + share * (fit.parameters - mean)
    return mean, log_evidence, iterations


def _without_matrix(x, *data, **kwargs):
    """`average_by_evidence`, of inputs as `FullProblem` keeps them."""
    if x.size >= DIGITS:
        x = x.astype("float32", copy=False)
    return average_by_evidence(x, *data, **kwargs)


def _as_matrix(average):
    """Slopes and biases as a matrix above biases."""
    slopes, biases = average.parameters
    return np.concatenate([np.diag(slopes), biases[None]])


def fits_matrix(num_classes):
    """Whether `average_matrices` fits more than slopes and biases."""
    return num_classes <= MAX_CLASSES


def bytes_needed(num_samples, num_classes, *, around_temperature):
    """An estimate of the memory of a fit beside its logits.

    Inputs and probabilities are float32; around twenty float64 matrices are
    those of parameters, penalty and conjugate gradients. Without
    `around_temperature`, up to `BLOCKS` classes, each class may have a matrix
    of its own; with it, `AT_ONCE` in each thread have, and above `MAX_CLASSES`
    only slopes and biases are fitted, which the layer keeps as a matrix.

    Args:
        num_samples: int.
        num_classes: int.
        around_temperature: whether for `average_matrices`.
    """
    numbers, square = num_samples * num_classes, (num_classes + 1) ** 2
    if around_temperature and not fits_matrix(num_classes):
        return 16 * numbers + 26 * square
    if around_temperature:
        found = 12 * numbers + (160 + 4 * AT_ONCE * GROUPS) * square
        # The whole Hessian about ten times: sums of several threads.
        return found + 80 * square**2 * (square < DENSE)
    per_class = num_classes if num_classes <= BLOCKS else 0
    return 12 * numbers + (160 + 4 * per_class) * square


def minimize_matrix_around(x, labels, weights, objective, average):
    """`solvers.evidence.minimize_around` for a matrix."""
    problem = MatrixDeviations(x, labels, weights, 0.0)
    problem.penalize(average.matrix_width, average)
    found = fit_objective(problem, objective, labels, weights, problem.center)
    parameters = problem.of_x(problem.settle(found.parameters))
    return dataclasses.replace(found, parameters=parameters)


def _mean_loss(inputs, labels, weights, parameters, smoothing):
    matrix, bias = parameters[:-1], parameters[-1]
    loss = np.empty(len(labels))
    for rows in row_blocks(len(labels), len(bias), IN_CACHE // 4):
        log_p = arrays.log_softmax(inputs(rows) @ matrix + bias)
        own = labels[rows]
        loss[rows] = -(1 - smoothing) * log_p[np.arange(len(own)), own]
        if smoothing:
            loss[rows] -= smoothing * log_p.mean(axis=1)
    return float(np.average(loss, weights=weights))
