"""The regression around temperature scaling, fitted for widths of a prior.

The scores of a fit are, with x the log-probabilities divided by the temperature
of temperature scaling, and not normalized again,

    x_ik (1 + a) + (x_ik - m_k) v_k + b_k,  v_k ~ N(0, tv^2),  b_k ~ N(0, tb^2)

The common scale `a` is free, and `m` is 0 or typical,

    m_k = sum_i r_ik x_ik / sum_i r_ik,    r_ik = w_i q_ik (1 - q_ik)

under temperature scaling, where data on `v_k` tell nothing about `b_k`, as the
priors have it.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from keras_calib.inputs.arrays import LOWEST
from keras_calib.inputs.arrays import numbered
from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import TINY64
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.blocks import sum_blocks
from keras_calib.solvers.blocks import sum_groups
from keras_calib.solvers.dense_evidence import fit_paths
from keras_calib.solvers.dispersion import dispersion_of
from keras_calib.solvers.laplace import Fit
from keras_calib.solvers.laplace import with_evidence
from keras_calib.solvers.multinomial_regression import fit_regression
from keras_calib.solvers.multinomial_regression import unit_of
from keras_calib.solvers.regression_problems import DiagonalProblem
from keras_calib.solvers.regression_problems import softmax_in_place
from keras_calib.solvers.ridge_paths import LEAST_CURVATURE

# Prior widths. No single one is right for all networks and numbers of samples,
# and a choice by evidence is often luck.
WIDTHS = 0.025 * 2.0 ** np.arange(7)
# Parameters up to which the Hessian is computed whole, and the steps from it.
DENSE = 400
# A fit stops when no entry of its gradient is above this times the unit of x.
TOLERANCE = 4e-6


def _strengths(widths, phi):
    """`phi / t^2`; 0 for what is not free, with the width 0."""
    used = widths > 0
    return np.where(used, phi / np.where(used, widths, 1.0) ** 2, 0.0)


class _Walk(NamedTuple):
    """Fits from narrow to wide: pairs of widths, and whether `m` is typical."""

    widths: np.ndarray
    typical: bool


class Deviations(DiagonalProblem):
    """The regression around temperature scaling, with a free common scale.

    The parameters are slopes and biases of `x` itself, so that the bias of a
    class is `b_k - m_k v_k`. The penalty is the least over common scales.
    """

    def __init__(self, x, labels, weights, smoothing, group=None):
        self.group = None if group is None else numbered(group)[0]
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
        # `m` of the module, and what it is under the penalty of now.
        self.typical = self.shift = np.zeros(num_classes)
        self.plain_value, _ = self.evaluate(center)
        _, wb, bb = self.class_hessians
        self.typical = wb / np.maximum(bb, TINY64)
        # Where logits are constant, no data tell the common scale, and its
        # curvature is only rounding: then it has a penalty of as much. A class
        # that is ruled out adds nothing to either.
        seen = x[:1000]
        seen = np.where(seen > LOWEST / 1e4, seen, 0.0)
        size = max(float(np.mean(np.square(seen))), 1.0)
        least = self.n * max(LEAST_CURVATURE, 8 * np.finfo(x.dtype).eps * size)
        curvature = self._common_curvature()
        self.common_ridge = 0.0 if curvature > least else least
        self.plain_curvature = curvature + self.common_ridge
        self.tolerance = TOLERANCE * unit_of(x)

    def loss(self, parameters):
        """The value without a penalty, in less time than `evaluate`."""
        w, b = parameters.astype(self.x.dtype)

        def part(rows):
            scores = self.x[rows] * w
            scores += b
            return self.weights[rows] @ softmax_in_place(scores)

        value = sum_blocks(part, self.slices)
        return float(value - (self.moments * parameters).sum())

    def dispersion(self, scale):
        """Squared residuals over their variance, at the last point, >= 1.

        Args:
            scale: whether slopes are free.
        """
        weights = self.n * self.weights.astype(float)
        x = self.x if scale else None
        data = self.q, self.labels, weights, x, self.slices
        return dispersion_of(*data, self.group)

    def penalize(self, widths, phi, typical=False):
        """Set the penalty; a deviation with the width 0 is not free.

        Args:
            widths: `tv` and `tb`.
            phi: see `solvers.evidence.Average`.
            typical: whether `m` is typical, and not 0.

        Returns:
            The strengths `phi / t^2` of the summed loss, `(2,)`.
        """
        used = widths > 0
        self.shared = not used[0]
        self.shift = self.typical * typical
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
        ww, wb, bb = self.class_hessians
        whole = max(float(ww.mean()), TINY64)
        # Constant logits do not move around what is typical.
        around = max(float((ww - self.typical * wb).mean()), 1e-6 * whole)
        ratios = np.sqrt(
            max(float(bb.mean()), TINY64) / np.array([whole, around])
        )

        def walk(path, typical=False, widths=WIDTHS):
            ratio = ratios[int(typical)] if path[1] else 1.0
            return _Walk(np.outer(widths, [ratio, 1.0]) * path, typical)

        freest = tuple(np.any(paths, axis=0))
        phi = self.dispersion(freest[0])
        if phi > 1:
            widest = walk(freest, widths=WIDTHS[-1:])
            phi = min(phi, self._dispersion_without_misfit(widest, phi))
        walks = [walk(path) for path in paths]
        walks += [walk(path, typical=True) for path in paths if all(path)]
        return self._fits(walks, phi), phi

    def _dispersion_without_misfit(self, widest, phi):
        """The dispersion at a fit, by its degrees of freedom.

            phi n / (n - p),    n = 1 / sum_i w_i^2

        with its `p` parameters; of groups, of which there are `G`, at least
        `phi G / (G - p / K)`. Where biases are far from 0, say, residuals of
        temperature scaling are large for this reason, and not because single
        samples are erratic.

        Args:
            widest: `_Walk` of one fit.
            phi: of temperature scaling.

        Returns:
            Infinity where it cannot be below `phi`, which the factor alone
            tells, or there are not more samples than parameters.
        """
        n = 1 / float((self.weights.astype(float) ** 2).sum())
        [widths] = widest.widths
        size = 1 + self.center.shape[1] * int(np.count_nonzero(widths))
        groups, of_each = n, size
        if self.group is not None:
            shares = np.bincount(self.group, self.weights.astype(float))
            groups = 1 / float((shares**2).sum())
            of_each = size / self.center.shape[1]
        if n <= size or groups <= of_each:
            return np.inf
        factor = max(n / (n - size), groups / (groups - of_each))
        if factor >= phi:  # the dispersion is at least 1
            return np.inf
        [found] = self._fits([widest], 1.0)
        self.evaluate(found.parameters)
        return self.dispersion(widths[0] > 0) * factor

    def _fits(self, walks, phi):
        """The fits of each walk, each fit from the one before."""
        fits = self._dense_fits(walks, phi)
        if fits is not None:
            return fits
        fits = []
        for walk in walks:
            parameters = self.center
            for widths in walk.widths:
                fits.append(self.fit(widths, phi, parameters, walk.typical))
                parameters = fits[-1].parameters
        return fits

    def _dense_fits(self, walks, phi):
        """The fits by whole Hessians; `None` if one is not found."""
        if self.center.size + 1 > DENSE:
            return None
        data = self.x, self.n * self.moments, self.n * self.weights
        paths = [
            (_strengths(walk.widths, phi), self.typical * walk.typical)
            for walk in walks
        ]
        self.forget()  # these fits need no probabilities
        found = fit_paths(*data, paths, phi)
        if found is None:
            return None
        points = [(w, walk.typical) for walk in walks for w in walk.widths]
        return [
            Fit(each[0], widths, *each[1:], typical)
            for each, (widths, typical) in zip(found, points, strict=True)
        ]

    def fit(self, widths, phi, start, typical=False):
        """The ridge fit for one pair of widths, and its evidence."""
        strengths = self.penalize(widths, phi, typical)
        used = strengths > 0
        found = fit_regression(self, start, self.tolerance)
        num_classes = start.shape[1]
        log_det_l = num_classes * np.log(strengths[used]).sum()
        size = 1 + num_classes * used.sum()
        log_det = self._log_det if size <= DENSE else self._log_det_by_class
        determinants = log_det_l - log_det(strengths)
        fit = with_evidence(self, found, widths, phi, determinants)
        return dataclasses.replace(fit, typical=typical)

    def _half_penalty_gradient(self, away):
        (w, b), (scale, bias), m = away, self.ridge, self.shift
        # The common scale at which the penalty is least.
        size = max(float((scale + bias * m * m).sum()), TINY64)
        v = w - (scale * w + bias * m * (b + m * w)).sum() / size
        pull = bias * (b + m * v)
        return np.stack([scale * v + m * pull, pull])

    def _project(self, gradient):
        # A constant added to all biases costs a penalty around `m`, which is
        # least elsewhere.
        if self.shift.any():
            return gradient * self.free
        return super()._project(gradient)

    def _invert(self, ww, wb, bb):
        _, bias = self.ridge
        cross = 2 * bias * self.shift
        return super()._invert(ww + cross * self.shift, wb + cross, bb)

    def _common_curvature(self):
        """`H_aa` of the summed loss at the last point."""
        ones = np.zeros_like(self.center)
        ones[0] = 1.0
        return self.n * max(float(self._curvature(ones)[0].sum()), TINY64)

    def _log_det(self, strengths):
        """`log det(H + L)`, with the common scale in the first row.

            H[kp, lr] = sum_i w_i ([k = l] q_ik - q_ik q_il) x_ik^p x_il^r

        where the power p or r is 1 for a slope and 0 for a bias. The penalty
        of a class is `scale v^2 + bias (b + m v)^2`.
        """
        powers = [power for power in (1, 0) if strengths[1 - power]]
        num_classes = self.q.shape[1]

        def part(rows):
            x, q = self.x[rows], self.q[rows]
            w = x.dtype.type(self.n) * self.weights[rows]
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
        hessian = np.negative(outer, out=outer)
        hessian[0, 0] += moments[2].sum() + self.common_ridge
        classes = np.arange(num_classes)
        scale, bias = strengths
        cross = bias * self.shift
        penalties = [bias, cross, scale + cross * self.shift]
        for i, power in enumerate(powers):
            rows = 1 + i * num_classes + classes
            hessian[0, rows] += moments[1 + power]
            hessian[rows, 0] += moments[1 + power]
            for j, other in enumerate(powers):
                columns = 1 + j * num_classes + classes
                both = power + other
                hessian[rows, columns] += moments[both] + penalties[both]
        return np.linalg.slogdet(hessian)[1]

    def _log_det_by_class(self, strengths):
        """The same without what couples the classes."""
        ww, wb, bb = self.n * self.class_hessians
        scale, bias = strengths
        if scale and bias:
            cross = bias * self.shift
            determinants = (ww + scale + cross * self.shift) * (bb + bias)
            determinants -= (wb + cross) ** 2
        else:
            determinants = ww + scale if scale else bb + bias
        common = self._common_curvature() + self.common_ridge
        return np.log(determinants).sum() + np.log(common)
