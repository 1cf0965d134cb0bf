"""Ridge fits around temperature scaling, averaged by their evidence.

There is a fit of `solvers.deviations` for each of several widths of the prior,
and with slopes and biases for slopes around 0 and around typical inputs. The
result is the mean of these fits, weighted by posterior probability.
"""

import dataclasses

import numpy as np

from keras_calib.solvers.deviations import Deviations
from keras_calib.solvers.laplace import mix
from keras_calib.solvers.multinomial_regression import fit_objective

# Scales of the half-normal prior over the widths of slopes and biases.
SCALE_WIDTH = 0.5
BIAS_WIDTH = 1.0
# Prior probability of temperature scaling.
PLAIN = 0.5


@dataclasses.dataclass(frozen=True)
class Average:
    """The mean of all fits.

    Attributes:
        parameters: slopes and biases, `(2, num_classes)`.
        plain: posterior probability of temperature scaling.
        scale_width: posterior mean of `tv` where `m` is 0; it is 0 under
            temperature scaling.
        bias_width: posterior mean of `tb`.
        dispersion: factor `phi >= 1` by which the summed loss is divided.
        log_evidence: of the mean, against temperature scaling.
        value: mean loss.
        iterations: Newton steps of all fits.
        matrix_width: posterior mean of the width of a matrix, if there is one.
    """

    parameters: np.ndarray
    plain: float
    scale_width: float
    bias_width: float
    dispersion: float
    log_evidence: float
    value: float
    iterations: int
    matrix_width: float = 0.0


def average_by_evidence(
    x,
    labels,
    weights,
    paths,
    smoothing=0.0,
    bounds=(-np.inf, np.inf),
    factor=1.0,
    plain=PLAIN,
    group=None,
):
    """Fit the deviations from temperature scaling for every width.

        P(fit) ~ (1 - plain) E p(t),    P(temperature scaling) ~ plain
        E: evidence of the fit against temperature scaling, see `with_evidence`
        p(t) ~ exp(-tv^2 / (2 * 0.5^2) - tb^2 / (2 * 1^2))
        result = factor sum P(fit) parameters

    Args:
        x: log-probabilities divided by the temperature, `(n, num_classes)`.
        labels: class ids, `(n,)`.
        weights: `(n,)`, with the number of samples as their sum.
        paths: `(scale, bias)` pairs of booleans: which deviations are free
            together. Where both are, `tv / tb` is such that both change the
            scores by as much.
        smoothing: weight of the uniform distribution in the labels. The
            evidence is then that of a loss, not of a likelihood.
        bounds: least and largest slope of the result.
        factor: of all scores of the result; see `cautious_scale`.
        plain: prior probability of temperature scaling.
        group: ids of groups of rows that are alike, `(n,)`, or `None`.

    Returns:
        `Average`.
    """
    problem = Deviations(x, labels, weights, smoothing, group)
    fits, phi = problem.fits_of_all_widths(paths)
    widths = np.stack([fit.widths for fit in fits])
    log_prior = log_prior_of(widths)
    evidence = np.array([fit.log_evidence for fit in fits])
    posterior, log_evidence = mix(evidence, log_prior, 0.0, plain)
    around_zero = np.array([not fit.typical for fit in fits])
    of_widths, _ = mix(
        evidence[around_zero], log_prior[around_zero], 0.0, plain
    )
    parameters = np.stack([fit.parameters for fit in fits] + [problem.center])
    parameters = factor * np.tensordot(posterior, parameters, 1)
    parameters[0] = np.clip(parameters[0], *bounds)
    parameters[1] -= parameters[1].mean()  # which changes no probability
    widths = of_widths[:-1] @ widths[around_zero]
    return Average(
        parameters,
        plain=float(posterior[-1]),
        scale_width=float(widths[0]),
        bias_width=float(widths[1]),
        dispersion=phi,
        log_evidence=log_evidence,
        value=problem.loss(parameters),
        iterations=sum(fit.iterations for fit in fits),
    )


def log_prior_of(widths):
    """Of pairs of `tv` and `tb`, but for a constant."""
    return -0.5 * (widths**2 @ [SCALE_WIDTH**-2, BIAS_WIDTH**-2])


def minimize_around(x, labels, weights, objective, average):
    """Minimize another objective, with the widths that the evidence found.

    Args:
        x: see `average_by_evidence`.
        labels: class ids, `(n,)`.
        weights: `(n,)`.
        objective: `Objective`.
        average: `Average` of the likelihood.

    Returns:
        `Minimum`.
    """
    problem = Deviations(x, labels, weights, 0.0)
    widths = np.array([average.scale_width, average.bias_width])
    problem.penalize(widths, average.dispersion)
    problem.evaluate(average.parameters)  # for the preconditioner
    return fit_objective(
        problem, objective, labels, weights, average.parameters
    )
