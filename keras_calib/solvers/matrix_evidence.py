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
from keras_calib.solvers.blocks import TINY64
from keras_calib.solvers.blocks import for_groups
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.blocks import sum_groups
from keras_calib.solvers.deviations import TOLERANCE
from keras_calib.solvers.deviations import WIDTHS
from keras_calib.solvers.evidence import average_by_evidence
from keras_calib.solvers.laplace import mix
from keras_calib.solvers.laplace import with_evidence
from keras_calib.solvers.multinomial_regression import fit_objective
from keras_calib.solvers.multinomial_regression import fit_regression
from keras_calib.solvers.multinomial_regression import unit_of
from keras_calib.solvers.preconditioners import kronecker
from keras_calib.solvers.regression_problems import BLOCKS
from keras_calib.solvers.regression_problems import DIGITS
from keras_calib.solvers.regression_problems import ROWS
from keras_calib.solvers.regression_problems import FullProblem

# Scale of the half-normal prior over `t`, and the widths that it allows.
MATRIX_WIDTH = 0.25
MATRIX_WIDTHS = WIDTHS[:6]
# Prior probability of a matrix, and that of temperature scaling without one.
MATRIX = 0.25
PLAIN = 2 / 3
# Widths below this count as this: a fit needs a penalty to be found.
LEAST_WIDTH = 0.01
# Parameters up to which the Hessian is computed whole.
DENSE = 450
# Classes whose Hessians a thread keeps at a time.
AT_ONCE = 4
# Classes above which there is no matrix.
MAX_CLASSES = 100


def average_matrices(
    x, labels, weights, paths, smoothing=0.0, bounds=None, factor=1.0
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

    Returns:
        `Average`; its `parameters` are a matrix above biases,
        `(num_classes + 1, num_classes)`.
    """
    data = labels, weights
    if not fits_matrix(x.shape[1]):
        found = _without_matrix(x, *data, paths, smoothing, factor=factor)
        return dataclasses.replace(found, parameters=_as_matrix(found))
    # Beside matrices, temperature scaling has the probability 1/2 again.
    diagonal = _without_matrix(x, *data, paths, smoothing, plain=PLAIN)
    problem = _MatrixDeviations(x, *data, smoothing)
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
    problem = _MatrixDeviations(x, labels, weights, 0.0)
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


class _MatrixDeviations(FullProblem):
    """The regression around temperature scaling, with a free common scale.

    Let g be x minus its row means, m the column means of g, and f = g - m. Then
    `x (1 + a)` is `f (1 + a) + m (1 + a)` but for a constant of each row, so
    that `f` with a bias is all that is needed. The penalty leaves out the
    direction of `a`: what is nearest to it costs nothing. In the memory of `x`
    there is f afterwards.
    """

    def __init__(self, x, labels, weights, smoothing):
        self.n = weights.sum()
        self.row_means = x.mean(axis=1, keepdims=True)
        f = x
        f -= self.row_means
        blocks = row_blocks(*f.shape)
        self.mean = sum(weights[rows] @ f[rows] for rows in blocks) / self.n
        f -= self.mean.astype(f.dtype)
        center = np.concatenate([np.eye(x.shape[1]), self.mean[None]])
        self.unpenalized = center
        super().__init__(
            f,
            labels,
            weights / self.n,
            smoothing,
            free=np.ones(x.shape[1]),
            ridge=np.zeros_like(center),
            center=center,
        )
        self.plain_value, _ = self.evaluate(center)
        self.plain_curvature = self._common_curvature()
        self.tolerance = TOLERANCE * unit_of(x)

    def inputs(self, rows):
        """The rows of `x`, float64."""
        return self.x[rows] + (self.row_means[rows] + self.mean)

    def of_x(self, parameters):
        """Matrix and biases for `x` instead of `f`."""
        matrix, bias = parameters[:-1], parameters[-1]
        return np.concatenate(
            [
                matrix - matrix.mean(axis=0),
                (bias - self.mean @ matrix)[None],
            ]
        )

    def penalize(self, width, average):
        """Set the penalty.

        Args:
            width: `t`.
            average: `Average` with the widths of slopes and biases, and the
                dispersion.
        """
        width = max(width, LEAST_WIDTH) / np.sqrt(self.center.shape[1])
        widths = np.full_like(self.center, width)
        scale = max(average.scale_width, LEAST_WIDTH)
        np.fill_diagonal(widths, np.hypot(width, scale))
        widths[-1] = max(average.bias_width, LEAST_WIDTH)
        self.phi = average.dispersion
        self.ridge = self.phi / (2 * self.n * widths**2)
        # What costs no penalty, beside one vector for all columns.
        self.unpenalized = self.center - super()._shift(self.center)
        self.inverse = kronecker(self, self.ridge)

    def fits_of_all_widths(self, average):
        """A `Fit` for each width, one after the other.

        The other widths are those of `average`.
        """
        start = self.center
        for width in MATRIX_WIDTHS:
            self.penalize(width, average)
            fit = self.fit(width, start)
            start = fit.parameters
            yield fit

    def fit(self, width, start):
        """The ridge fit for a width, and its evidence."""
        found = fit_regression(self, start, self.tolerance)
        self.inverse = None  # its memory is needed for the Hessians
        strengths = 2 * self.n * self.ridge
        dense = strengths.size < DENSE
        log_det = self._log_det if dense else self._log_det_by_class
        determinants = np.log(strengths).sum() - log_det(strengths)
        return with_evidence(self, found, width, self.phi, determinants)

    def renew(self):
        """One preconditioner serves all steps of a fit, see `penalize`."""

    def _half_penalty_gradient(self, away):
        away = away - self._shift(away)
        weighted = self.ridge * self.unpenalized
        size = max(float((weighted * self.unpenalized).sum()), TINY64)
        common = float((weighted * away).sum()) / size
        return self.ridge * (away - common * self.unpenalized)

    def _common_curvature(self):
        """The second derivative in `a` of the summed loss."""
        product = self._curvature(self.center)
        return self.n * max(float((product * self.center).sum()), TINY64)

    def _curvatures(self, rows, classes):
        """`w_i q_ik (1 - q_ik)`, with a row for each class."""
        q = self.q[rows, classes].T
        return q * (1 - q) * (self.n * self.weights[rows, 0])

    def _hessians_of_classes(self, classes, least):
        """The Hessian of each class by itself, of the summed loss.

        Args:
            classes: slice of class ids.
            least: curvatures up to which a row is left out, `(num_classes,)`.
        """
        n, num_classes = self.q.shape
        d = num_classes + 1
        hessians = np.zeros((classes.stop - classes.start, d, d), "float32")
        for rows in row_blocks(n, 1, ROWS // 4):
            inputs = self.with_ones(rows).astype("float32", copy=False)
            root = self._curvatures(rows, classes)
            root[root <= least[classes, None]] = 0.0
            root = np.sqrt(root, dtype="float32")
            for hessian, of_class in zip(hessians, root, strict=True):
                used = of_class.nonzero()[0]
                # NumPy computes half of a product with itself.
                if len(used) < 0.8 * len(inputs):
                    part = inputs[used] * of_class[used, None]
                else:
                    part = inputs * of_class[:, None]
                hessian += part.T @ part
        return hessians

    def _least_curvatures(self):
        """Up to which rows are left out, which costs no digit that counts.

        All of them together add less than a hundredth of a percent.
        """
        n, num_classes = self.q.shape
        sums = [
            self._curvatures(rows, slice(None)).sum(axis=1)
            for rows in row_blocks(n, num_classes, IN_CACHE // 4)
        ]
        return 1e-4 / n * sum(sums)

    def _log_det_by_class(self, strengths):
        """`log det(H + L)` without what couples the classes."""
        least = self._least_curvatures()
        found = np.empty(len(least))

        def add(classes):
            # A few classes at a time: their matrices are large.
            for some in row_blocks(len(classes), 1, AT_ONCE):
                some = classes[some]
                some = slice(some[0], some[-1] + 1)
                found[some] = self._log_dets(some, least, strengths)

        for_groups(add, len(least))
        return np.log(self._common_curvature()) + found.sum()

    def _log_dets(self, classes, least, strengths):
        """`log det(H + L)` of each class by itself."""
        hessians = self._hessians_of_classes(classes, least)
        found = []
        for hessian, own in zip(hessians, strengths.T[classes], strict=True):
            whole = hessian.astype(float)
            whole.flat[:: len(own) + 1] += own
            found.append(np.linalg.slogdet(whole)[1])
        return found

    def _log_det(self, strengths):
        """`log det(H + L)`, with the common scale in the first row.

        The block of the classes k and l is

            sum_i w_i ([k = l] q_ik - q_ik q_il) (f_i, 1) (f_i, 1)'
        """
        n, num_classes = self.q.shape
        d = num_classes + 1

        def part(rows):
            x = self.with_ones(rows).astype(float)
            q = self.q[rows].astype(float)
            w = self.n * self.weights[rows]
            slopes = (q[:, :, None] * x[:, None, :]).reshape(len(x), -1)
            slopes *= np.sqrt(w)
            hessian = -(slopes.T @ slopes)
            for k in range(num_classes):
                block = slice(k * d, (k + 1) * d)
                hessian[block, block] += x.T @ (w * q[:, k : k + 1] * x)
            return hessian

        hessian = sum_groups(part, row_blocks(n, d * num_classes))
        common = self.center.T.reshape(-1)
        row = hessian @ common
        hessian[np.diag_indices_from(hessian)] += strengths.T.reshape(-1)
        corner = np.array([[common @ row]])
        whole = np.block([[corner, row[None]], [row[:, None], hessian]])
        return np.linalg.slogdet(whole)[1]
