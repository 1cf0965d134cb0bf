"""The regression of `solvers.matrix_evidence`, fitted for widths of a prior."""

import numpy as np

from keras_calib.solvers.blocks import IN_CACHE
from keras_calib.solvers.blocks import TINY64
from keras_calib.solvers.blocks import for_groups
from keras_calib.solvers.blocks import row_blocks
from keras_calib.solvers.blocks import sum_groups
from keras_calib.solvers.deviations import TOLERANCE
from keras_calib.solvers.deviations import WIDTHS
from keras_calib.solvers.laplace import Fit
from keras_calib.solvers.laplace import with_evidence
from keras_calib.solvers.multinomial_regression import fit_regression
from keras_calib.solvers.multinomial_regression import unit_of
from keras_calib.solvers.preconditioners import kronecker
from keras_calib.solvers.regression_problems import ROWS
from keras_calib.solvers.regression_problems import FullProblem
from keras_calib.solvers.ridge_paths import MARGIN

# Widths of the prior over a matrix, from the widest on.
MATRIX_WIDTHS = WIDTHS[5::-1]
# Widths below this count as this: a fit needs a penalty to be found.
LEAST_WIDTH = 0.01
# Parameters up to which the Hessian is computed whole.
DENSE = 450
# Classes whose Hessians a thread keeps at a time.
AT_ONCE = 4


class MatrixDeviations(FullProblem):
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
        self.size = 1.0  # of the penalty of `unpenalized`; see `penalize`
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
        own = np.array([average.scale_width, average.bias_width])
        # Those of slopes and biases where the matrix has none.
        self.least_widths = scale, bias = np.maximum(own, LEAST_WIDTH)
        np.fill_diagonal(widths, np.hypot(width, scale))
        widths[-1] = bias
        self.phi = average.dispersion
        self.ridge = self.phi / (2 * self.n * widths**2)
        self.totals = self.ridge.sum(axis=1)
        # What costs no penalty, beside one vector for all columns.
        self.unpenalized = self.center - self._shift(self.center)
        self.size = max(self._common(self.unpenalized), TINY64)
        self.inverse = kronecker(self, self.ridge)

    def fits_of_all_widths(self, average):
        """A `Fit` for each width from the widest on, one after the other.

        The other widths are those of `average`. The penalized loss rises as
        widths fall. Where this alone makes a fit unlikely, narrower ones are
        not found, and have no evidence.
        """
        start, highest, likely = self.center, average.log_evidence, True
        for width in MATRIX_WIDTHS:
            fit = Fit(self.center, width, -np.inf, 0)
            if likely:
                self.penalize(width, average)
                found = self.fit(width, start, highest - MARGIN)
                likely = found is not None
                fit = found or fit
                start, highest = fit.parameters, max(highest, fit.log_evidence)
            yield fit

    def fit(self, width, start, least=-np.inf):
        """The ridge fit for a width, and its evidence.

        `None` where that can only be below `least`.
        """
        found = fit_regression(self, start, self.tolerance)
        self.inverse = None  # its memory is needed for the Hessians
        strengths = 2 * self.n * self.ridge
        dense = strengths.size < DENSE
        if not dense and self._possible(found) < least:
            return None
        log_det = self._log_det if dense else self._log_det_by_class
        determinants = np.log(strengths).sum() - log_det(strengths)
        return with_evidence(self, found, width, self.phi, determinants)

    def _possible(self, found):
        """What the log evidence of a fit, and of narrower ones, can be.

        As if data told only the slope and bias of each class by itself: a
        determinant is at least that of some rows and columns, times the
        penalties of the others.
        """
        n, num_classes = self.q.shape
        sums = 0.0
        for rows in row_blocks(n, num_classes, IN_CACHE // 4):
            r, x = self._curvatures(rows, slice(None)), self.x[rows].T
            rx = r * x
            sums += np.stack([(rx * x).sum(1), rx.sum(1), r.sum(1)])
        ww, wb, bb = sums
        scale, bias = self.phi / self.least_widths**2
        determinants = (1 + ww / scale) * (1 + bb / bias)
        determinants -= wb * wb / (scale * bias)
        gain = self.n * (self.plain_value - found.value) / self.phi
        common = np.log(self.plain_curvature / self._common_curvature())
        return gain + (common - np.log(determinants).sum()) / 2

    def renew(self):
        """One preconditioner serves all steps of a fit, see `penalize`."""

    def _half_penalty_gradient(self, away):
        away = away - self._shift(away)
        common = self._common(away) / self.size
        return self.ridge * (away - common * self.unpenalized)

    def _common(self, away):
        return np.einsum("jk,jk,jk", self.ridge, self.unpenalized, away)

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
