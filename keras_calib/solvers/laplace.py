"""The evidence of penalized fits by Laplace's approximation."""

import dataclasses

import numpy as np

from keras_calib.inputs import arrays


@dataclasses.dataclass(frozen=True)
class Fit:
    """One ridge fit.

    Attributes:
        parameters: slopes and biases, `(2, num_classes)`.
        widths: `tv` and `tb`, 0 for what is not free; `t` of a matrix.
        log_evidence: against temperature scaling.
        iterations: Newton steps.
        typical: whether slopes turn around `m`, see `solvers.deviations`.
    """

    parameters: np.ndarray
    widths: np.ndarray | float
    log_evidence: float
    iterations: int
    typical: bool = False


def mix(log_evidence, log_prior, simpler, probability):
    """Posterior probabilities of fits and of a simpler model.

    Args:
        log_evidence: of each fit, `(num_fits,)`.
        log_prior: of each fit but for a constant, `(num_fits,)`.
        simpler: log evidence of the simpler model.
        probability: prior probability of the simpler model.

    Returns:
        posterior: `(num_fits + 1,)`; the last one is the simpler model's.
        log_evidence: float, of all together.
    """
    log_prior = arrays.log_softmax(np.asarray(log_prior))
    joint = np.append(
        log_evidence + log_prior + np.log1p(-probability),
        simpler + np.log(probability),
    )
    log_posterior = arrays.log_softmax(joint)
    # By the most probable one: the probability of another can be 0.
    best = joint.argmax()
    return np.exp(log_posterior), float(joint[best] - log_posterior[best])


def with_evidence(problem, found, widths, phi, determinants):
    """What a regression found, with its evidence by Laplace's approximation.

    With the summed loss f, the strengths L = phi / t^2 of the penalty, and the
    Hessian H of f at the fit:

        log E = (f(0) - f(d)) / phi - sum d^2 / (2 t^2)
            + (log det L - log det(H + L) + log H_aa(0)) / 2

    Args:
        problem: the regression, with its value and the curvature `H_aa` at
            temperature scaling.
        found: `Minimum`.
        widths: see `Fit`.
        phi: see `Average`.
        determinants: `log det L - log det(H + L)`.

    Returns:
        `Fit`.
    """
    # The penalty of the mean loss is phi sum d^2 / (2 n t^2).
    penalty = problem.penalty(found.parameters)
    gain = problem.plain_value - (found.value - penalty)
    log_evidence = problem.n * gain / phi - problem.n * penalty / phi
    log_evidence += (determinants + np.log(problem.plain_curvature)) / 2
    parameters = problem.settle(found.parameters)
    if not np.isfinite(log_evidence):
        # The logits are so large that the curvature is only rounding.
        parameters, log_evidence = problem.center, -np.inf
    return Fit(parameters, widths, float(log_evidence), found.iterations)
