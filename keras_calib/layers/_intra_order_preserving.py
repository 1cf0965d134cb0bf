"""Intra order-preserving maps: an increasing function of the scores."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.inputs import arrays
from keras_calib.inputs.arguments import is_integer
from keras_calib.inputs.arguments import require
from keras_calib.inputs.arguments import require_one_of
from keras_calib.inputs.tensors import running_sum
from keras_calib.layers._dense_stack import DenseStack
from keras_calib.layers._dense_stack import check_training
from keras_calib.layers._dense_stack import network_weights
from keras_calib.layers._dense_stack import standardized
from keras_calib.layers._logit_ops import keep_prediction
from keras_calib.layers._logit_ops import log1pexp
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._order import descending_order
from keras_calib.layers._order import ranks_of
from keras_calib.layers._order import take
from keras_calib.layers._piecewise_linear import count_below
from keras_calib.layers._piecewise_linear import take_rows
from keras_calib.solvers.blocks import objective_in_blocks
from keras_calib.solvers.dense_network import DenseNetwork
from keras_calib.solvers.dense_network import inverse_softplus
from keras_calib.solvers.dense_network import softplus
from keras_calib.solvers.increasing_function import IncreasingFunction
from keras_calib.solvers.increasing_function import fit_slopes
from keras_calib.solvers.increasing_function import knots_for
from keras_calib.solvers.lbfgs import lbfgs

# No segment is flatter, so that the order is kept strictly.
LEAST_SLOPE = 1e-3


@keras.saving.register_keras_serializable(package="keras_calib")
class IntraOrderPreserving(DenseStack):
    """Apply an increasing function to log-probabilities: `z' = f(log p)`.

    With `family="diagonal"` one increasing function is applied to every
    log-probability: straight lines between knots, all slopes positive. Equal
    slopes are temperature scaling. The negative log-likelihood is convex in
    the slopes; `adapt` finds its minimum with Newton's method.

    With `family="order_invariant"` a small network of the sorted
    log-probabilities of a sample scales each gap between neighbors.

    All classes keep their order, ties included.

    Args:
        family: `"diagonal"` or `"order_invariant"`.
        num_segments: int, a power of 2, segments of the diagonal function.
        hidden: ints, widths of the network's hidden layers.
        penalty: float >= 0; draws the fit toward temperature scaling, as a
            normal prior of variance `1 / penalty` does: on the differences of
            neighboring slopes, or on the network's kernels and the differences
            between its last biases, each of which stretches a gap.
        iterations: int, the maximum number of steps.
        seed: int, for the start of the network.
        shrinkage: `"auto"` for a mixture with temperature scaling, which few
            samples leave near temperature scaling; `None` for the map alone,
            the paper's with `penalty=0`.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

    Call arguments:
        logits: `(..., num_classes)`, or `(..., 1)` before one sigmoid.

    Returns:
        Calibrated logits, of the shape of `logits`.

    Raises:
        ValueError: for another `family`, or another `num_segments`.

    Example:
        >>> import numpy as np, keras_calib as kc
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(500, 3)) * 3
        >>> labels = (logits / 2 + rng.gumbel(size=(500, 3))).argmax(1)
        >>> layer = kc.layers.IntraOrderPreserving().adapt(logits, labels)
        >>> layer.record["nll_after"] < layer.record["nll_before"]
        True

    Reference:
        Rahimi et al., "Intra Order-Preserving Functions for Calibration of
        Multi-Class Neural Networks", NeurIPS 2020, Sections 3 and 4. There,
        the diagonal function is the integral of a positive network; straight
        lines make the problem convex. The penalty is ours.
    """

    preserves_accuracy = True
    shift_invariant = True
    objectives = ("nll", "label_smoothing", "focal", "loss")
    settings = (
        "family",
        "num_segments",
        "hidden",
        "penalty",
        "iterations",
        "seed",
        "shrinkage",
    )
    caution = 1.0
    _starts_tempered = True

    def __init__(
        self,
        *,
        family: str = "diagonal",
        num_segments: int = 16,
        hidden: tuple[int, ...] = (16, 16),
        penalty: float = 10.0,
        iterations: int = 100,
        seed: int = 0,
        shrinkage: str | None = "auto",
        **kwargs: Any,
    ) -> None:
        require_one_of(("diagonal", "order_invariant"), family=family)
        require(
            is_integer(num_segments)
            and num_segments >= 2
            and not num_segments & (num_segments - 1),
            "`num_segments` must be a power of 2, at least 2.",
            num_segments=num_segments,
        )
        check_training(hidden, penalty, iterations, seed)
        super().__init__(shrinkage=shrinkage, **kwargs)
        self.family = family
        self.num_segments = num_segments
        self.hidden = tuple(hidden)
        self.penalty = penalty
        self.iterations = iterations
        self.seed = seed
        self._rounds = family == "order_invariant"

    def _add_weights(self, num_classes):
        if self.family == "diagonal":
            knots = np.linspace(-10, -0.1, self.num_segments - 1)
            self._add("knots", knots[None])
            self._add("slopes", np.ones((1, self.num_segments)))
        else:
            network = self._network(num_classes)
            self._add_network(network, inverse_softplus(1.0))

    def degrees_of_freedom(self, num_classes: int) -> int:
        if self.family == "diagonal":
            return self.num_segments
        return self._network(num_classes).size

    def _network(self, num_classes):
        return DenseNetwork((num_classes, *self.hidden, num_classes))

    def _solve(self, logits, labels, weights, objective, tempered):
        temperature, known = tempered
        solve = self._solve_network
        if self.family == "diagonal":
            solve = self._solve_slopes
        found, record, value = solve(
            logits, labels, weights, objective, 1 / temperature
        )
        record = {"family": self.family, **record}
        if objective.is_plain_nll:
            record["nll_before"] = known["nll_before"]
            record["nll_after"] = float(value)
        return found, record

    def _solve_slopes(
        self, logits, labels, weights, objective, inverse_temperature
    ):
        knots = knots_for(logits, self.num_segments - 1, weights)
        strength = self.penalty / weights.sum()
        function = IncreasingFunction(
            logits, labels, weights, objective, knots, strength
        )
        start = np.full(
            self.num_segments, max(inverse_temperature, LEAST_SLOPE)
        )
        found = fit_slopes(function, start, LEAST_SLOPE, self.iterations)
        slopes = found.parameters
        return (
            {"knots": knots[None], "slopes": slopes[None]},
            {"slopes": slopes.tolist()},
            found.value - function.penalty(slopes),
        )

    def _solve_network(
        self, logits, labels, weights, objective, inverse_temperature
    ):
        network = self._network(logits.shape[1])
        strength = self.penalty / weights.sum()
        log_p = arrays.log_softmax(logits, "float64")
        order = np.argsort(-log_p, axis=1, kind="stable")
        sorted_log_p = np.take_along_axis(log_p, order, axis=1)
        ranks = (order == labels[:, None]).argmax(axis=1)
        gaps = sorted_log_p[:, :-1] - sorted_log_p[:, 1:]
        x, statistics = standardized(sorted_log_p, weights)

        def function(theta):
            out, inputs = network.forward(theta, x)
            stretch = softplus(out[:, :0:-1])
            scores = np.zeros_like(out)
            np.cumsum(-gaps * stretch, axis=1, out=scores[:, 1:])
            value, pieces = objective_in_blocks(
                lambda rows, part: objective.value_and_gradient(
                    scores[rows], ranks[rows], part
                ),
                objective,
                logits.shape,
                weights,
            )
            # A gap moves all scores below it.
            back = np.concatenate(pieces)[:, :0:-1]
            back = -np.cumsum(back, axis=1) * gaps[:, ::-1]
            back = np.pad(back, ((0, 0), (1, 0))) * arrays.sigmoid(out)
            part = _drawn_to_zero(network, theta)
            return (
                value + strength * float(part @ part) / 2,
                network.backward(theta, inputs, back) + strength * part,
            )

        start = network.start(self.seed, inverse_softplus(inverse_temperature))
        found = lbfgs(function, start, max_iterations=self.iterations)
        theta = found.parameters
        part = _drawn_to_zero(network, theta)
        value = found.value - strength * float(part @ part) / 2
        return {**statistics, **network_weights(network, theta)}, {}, value

    def _transform(self, logits, w, xp):
        family = {
            "diagonal": self._diagonal,
            "order_invariant": self._order_invariant,
        }
        return keep_prediction(logits, family[self.family](logits, w, xp), xp)

    def _diagonal(self, logits, w, xp):
        """`f(t) = f(e_m) + s_m (t - e_m)` of `t = log p`, with `f(0) = 0`.

        `e_m` is the right end of the segment of t, `s_m` its slope.
        """
        log_p = log_softmax(logits, xp)
        # Height of the function at the right end of each segment.
        zero = xp.zeros((1, 1), "float32")
        ends = xp.concatenate([w.knots, zero], axis=1)
        rises = w.slopes[:, 1:] * (ends[:, 1:] - ends[:, :-1])
        heights = xp.flip(running_sum(xp.flip(rises, axis=1), xp), axis=1)
        heights = xp.concatenate([-heights, zero], axis=1)
        segment = count_below(w.knots, log_p, xp)
        slope = take_rows(w.slopes, segment, xp)
        return take_rows(heights, segment, xp) + slope * (
            log_p - take_rows(ends, segment, xp)
        )

    def _order_invariant(self, logits, w, xp):
        log_p = log_softmax(logits, xp)
        order = descending_order(log_p, xp)
        sorted_log_p = take(log_p, order, xp)
        stretched = order_preserving(
            sorted_log_p, self._network_output(sorted_log_p, w, xp), xp
        )
        return take(stretched, ranks_of(order, xp), xp)


def _drawn_to_zero(network, theta):
    """What the penalty squares: kernels, and biases of gaps minus their mean.

    A bias stretches one gap, and few samples tell anything of the lowest gaps.
    """
    part = theta * network.is_kernel
    gaps = slice(1 - network.shapes[-1][1], None)
    part[gaps] = theta[gaps] - theta[gaps].mean()
    return part


def order_preserving(scores, stretch, xp=ops):
    """Stretch the gaps between sorted scores by `softplus(stretch)`.

        z_k = -sum_{j < k} softplus(m_j) (s_j - s_{j+1})

    for descending scores s, with `m_j` the stretch of the gap below `s_j`. The
    largest score becomes 0; equal scores stay equal.

    Args:
        scores: descending, `(..., num_classes)`.
        stretch: `(..., num_classes)`; the second entry is for the gap above
            the smallest score, the last for the gap below the largest. The
            first is not used.
        xp: `keras.ops` for tensors, `numpy` for arrays.
    """
    gaps = scores[..., :-1] - scores[..., 1:]
    stretch = log1pexp(xp.flip(stretch[..., 1:], axis=-1), xp)
    falls = running_sum(gaps * stretch, xp)
    return xp.concatenate([xp.zeros_like(scores[..., :1]), -falls], axis=-1)
