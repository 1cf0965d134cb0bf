"""Ridge fits around temperature scaling, averaged by their evidence.

The scores of a fit are, with x the log-probabilities divided by the temperature
of temperature scaling, and not normalized again,

    x_ik (1 + a + v_k) + b_k,    v_k ~ N(0, tv^2),    b_k ~ N(0, tb^2)

The common scale `a` is free. There is a fit for each of several widths, and the
result is the mean of these fits, weighted by posterior probability.
"""

import dataclasses

import numpy as np

from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import TINY64
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.blocks import sum_groups
from keras_calib.solvers.dense_evidence import fit_paths
from keras_calib.solvers.dispersion import dispersion_of
from keras_calib.solvers.laplace import Fit
from keras_calib.solvers.laplace import mix
from keras_calib.solvers.laplace import with_evidence
from keras_calib.solvers.multinomial_regression import fit_objective
from keras_calib.solvers.multinomial_regression import fit_regression
from keras_calib.solvers.multinomial_regression import unit_of
from keras_calib.solvers.regression_problems import DiagonalProblem

# Prior widths, and the scales of the half-normal prior over them. No single
# width is right for all networks and numbers of samples, and a choice by
# evidence is often luck.
WIDTHS = 0.025 * 2.0 ** np.arange(7)
SCALE_WIDTH = 0.5
BIAS_WIDTH = 1.0
# Prior probability of temperature scaling.
PLAIN = 0.5
# Parameters up to which the Hessian is computed whole, and the steps from it.
DENSE, FEW = 400, 81
# A fit stops when no entry of its gradient is above this times the unit of x.
TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class Average:
    """The mean of all fits.

    Attributes:
        parameters: slopes and biases, `(2, num_classes)`.
        plain: posterior probability of temperature scaling.
        scale_width: posterior mean of `tv`; 0 under temperature scaling.
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
    plain=PLAIN,
):
    """Fit the deviations from temperature scaling for every width.

        P(fit) ~ (1 - plain) E p(t),    P(temperature scaling) ~ plain
        E: evidence of the fit against temperature scaling, see `with_evidence`
        p(t) ~ exp(-tv^2 / (2 * 0.5^2) - tb^2 / (2 * 1^2))
        result = sum P(fit) parameters

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
        plain: prior probability of temperature scaling.

    Returns:
        `Average`.
    """
    problem = _Deviations(x, labels, weights, smoothing)
    fits, phi = problem.fits_of_all_widths(paths)
    widths = np.stack([fit.widths for fit in fits])
    log_prior = -0.5 * (widths**2 @ [SCALE_WIDTH**-2, BIAS_WIDTH**-2])
    evidence = [fit.log_evidence for fit in fits]
    posterior, log_evidence = mix(evidence, log_prior, 0.0, plain)
    parameters = np.stack([fit.parameters for fit in fits] + [problem.center])
    parameters = np.tensordot(posterior, parameters, 1)
    parameters[0] = np.clip(parameters[0], *bounds)
    widths = posterior[:-1] @ widths
    problem.ridge = np.zeros_like(problem.ridge)  # for the value below
    return Average(
        parameters,
        plain=float(posterior[-1]),
        scale_width=float(widths[0]),
        bias_width=float(widths[1]),
        dispersion=phi,
        log_evidence=log_evidence,
        value=problem.evaluate(parameters)[0],
        iterations=sum(fit.iterations for fit in fits),
    )


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
    problem = _Deviations(x, labels, weights, 0.0)
    widths = np.array([average.scale_width, average.bias_width])
    problem.penalize(widths, average.dispersion)
    problem.evaluate(average.parameters)  # for the preconditioner
    return fit_objective(
        problem, objective, labels, weights, average.parameters
    )


def _strengths(widths, phi):
    """`phi / t^2`; 0 for what is not free, with the width 0."""
    used = widths > 0
    return np.where(used, phi / np.where(used, widths, 1.0) ** 2, 0.0)


class _Deviations(DiagonalProblem):
    """The regression around temperature scaling, with a free common scale.

    The penalty on the slopes is that on their distances from their mean,
    because the common scale takes their mean at no cost.
    """

    def __init__(self, x, labels, weights, smoothing):
        self.n = weights.sum()
        num_classes = x.shape[1]
        center = np.stack([np.ones(num_classes), np.zeros(num_classes)])
        super().__init__(
            x,
            labels,
            weights / self.n,
            smoothing,
            free=np.ones_like(center),
            ridge=np.zeros_like(center),
            center=center,
        )
        self.labels = labels
        self.plain_value, _ = self.evaluate(center)
        self.plain_curvature = self._common_curvature()
        self.tolerance = TOLERANCE * unit_of(x)

    def dispersion(self, scale):
        """Squared residuals over their variance, at the last point, >= 1.

        Args:
            scale: whether slopes are free.
        """
        weights = self.n * self.weights.astype(float)
        x = self.x if scale else None
        return dispersion_of(self.q, self.labels, weights, x, self.slices)

    def penalize(self, widths, phi):
        """Set the penalty; a deviation with the width 0 is not free.

        Returns:
            The strengths `phi / t^2` of the summed loss, `(2,)`.
        """
        used = widths > 0
        self.shared = not used[0]
        self.free = np.ones_like(self.center) * [[1.0], [used[1]]]
        strengths = _strengths(widths, phi)
        self.ridge = np.ones_like(self.center)
        self.ridge *= strengths[:, None] / (2 * self.n)
        return strengths

    def fits_of_all_widths(self, paths):
        """A `Fit` for each path and each of `WIDTHS`, and the dispersion `phi`.

        With both deviations, `tv / tb` is the root of the ratio of Hessians at
        temperature scaling, where the problem is now.
        """
        ww, _, bb = np.maximum(self.class_hessians.mean(axis=1), TINY64)
        ratio = np.sqrt(bb / ww)

        def grid(widths, path):
            _, bias = path
            return np.outer(widths, [ratio if bias else 1.0, 1.0]) * path

        freest = np.any(paths, axis=0)
        phi = self.dispersion(freest[0])
        if phi > 1:
            widest = grid(WIDTHS[-1:], freest)
            phi = min(phi, self._dispersion_without_misfit(widest))
        return self._fits([grid(WIDTHS, path) for path in paths], phi), phi

    def _dispersion_without_misfit(self, widths):
        """The dispersion at a fit, by its degrees of freedom.

            phi n / (n - p),    n = 1 / sum_i w_i^2

        with its `p` parameters. Where biases are far from 0, say, residuals of
        temperature scaling are large for this reason, and not because single
        samples are erratic.

        Args:
            widths: those of the fit, `(1, 2)`.

        Returns:
            Infinity if there are not more samples than parameters.
        """
        n = 1 / float((self.weights.astype(float) ** 2).sum())
        size = 1 + self.center.shape[1] * int(np.count_nonzero(widths))
        if n <= size:
            return np.inf
        [found] = self._fits([widths], 1.0)
        self.evaluate(found.parameters)
        return self.dispersion(widths[0, 0] > 0) * n / (n - size)

    def _fits(self, all_widths, phi):
        """The fits of each path, each fit from the one before."""
        fits = self._dense_fits(all_widths, phi)
        if fits is not None:
            return fits
        fits = []
        for widths in all_widths:
            parameters = self.center
            for each in widths:
                fits.append(self.fit(each, phi, parameters))
                parameters = fits[-1].parameters
        return fits

    def _dense_fits(self, all_widths, phi):
        """The fits of few classes; `None` for many, or if one is not found."""
        if self.center.size + 1 > FEW:
            return None
        data = self.x, self.n * self.moments, self.n * self.weights
        paths = [_strengths(widths, phi) for widths in all_widths]
        found = fit_paths(*data, paths, phi)
        if found is None:
            return None
        found = zip(found, np.concatenate(all_widths), strict=True)
        return [Fit(each[0], widths, *each[1:]) for each, widths in found]

    def fit(self, widths, phi, start):
        """The ridge fit for one pair of widths, and its evidence."""
        strengths = self.penalize(widths, phi)
        used = strengths > 0
        found = fit_regression(self, start, self.tolerance)
        num_classes = start.shape[1]
        log_det_l = num_classes * np.log(strengths[used]).sum()
        size = 1 + num_classes * used.sum()
        log_det = self._log_det if size <= DENSE else self._log_det_by_class
        return with_evidence(
            self, found, widths, phi, log_det_l - log_det(strengths)
        )

    def _half_penalty_gradient(self, away):
        w, b = away
        return self.ridge * np.stack([w - w.mean(), b])

    def _common_curvature(self):
        """`H_aa` of the summed loss at the last point."""
        ones = np.zeros_like(self.center)
        ones[0] = 1.0
        return self.n * max(float(self._curvature(ones)[0].sum()), TINY64)

    def _log_det(self, strengths):
        """`log det(H + L)`, with the common scale in the first row.

            H[kp, lr] = sum_i w_i ([k = l] q_ik - q_ik q_il) x_ik^p x_il^r

        where the power p or r is 1 for a slope and 0 for a bias.
        """
        powers = [power for power in (1, 0) if strengths[1 - power]]
        num_classes = self.q.shape[1]

        def part(rows):
            x, q = self.x[rows].astype(float), self.q[rows].astype(float)
            w = self.n * self.weights[rows].astype(float)
            qx = q * x
            moments = [w @ q, w @ qx, w @ (qx * x)]
            # The derivatives of each row's log-sum-exp.
            slopes = [qx.sum(axis=1, keepdims=True)]
            slopes += [qx if power else q for power in powers]
            slopes = np.concatenate(slopes, axis=1)
            slopes *= np.sqrt(w)[:, None]
            outer = slopes.T @ slopes
            found = np.empty(2, object)
            found[:] = np.stack(moments), outer
            return found

        blocks = row_blocks(*self.q.shape, IN_CACHE // 4)
        moments, outer = sum_groups(part, blocks)
        hessian = -outer
        hessian[0, 0] += moments[2].sum()
        classes = np.arange(num_classes)
        for i, power in enumerate(powers):
            rows = 1 + i * num_classes + classes
            hessian[0, rows] += moments[1 + power]
            hessian[rows, 0] += moments[1 + power]
            hessian[rows, rows] += strengths[1 - power]
            for j, other in enumerate(powers):
                columns = 1 + j * num_classes + classes
                hessian[rows, columns] += moments[power + other]
        return np.linalg.slogdet(hessian)[1]

    def _log_det_by_class(self, strengths):
        """The same without what couples the classes."""
        ww, wb, bb = self.n * self.class_hessians
        scale, bias = strengths
        if scale and bias:
            determinants = (ww + scale) * (bb + bias) - wb * wb
        else:
            determinants = ww + scale if scale else bb + bias
        common = self._common_curvature()
        return np.log(determinants).sum() + np.log(common)
