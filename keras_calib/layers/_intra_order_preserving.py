"""Intra order-preserving maps: scores bent, their order kept."""

import keras
import numpy as np
from keras import ops

from keras_calib.inputs import arrays
from keras_calib.layers._base import CalibrationLayer
from keras_calib.layers._logit_ops import keep_prediction
from keras_calib.layers._logit_ops import log_softmax
from keras_calib.layers._logit_ops import on_pairs
from keras_calib.layers._piecewise_linear import count_below
from keras_calib.layers._piecewise_linear import take_rows
from keras_calib.layers._temperature_scaling import TemperatureScaling
from keras_calib.solvers.increasing import SlopePasses
from keras_calib.solvers.increasing import knots_for
from keras_calib.solvers.increasing import projected_newton
from keras_calib.solvers.quasi_newton import minimize
from keras_calib.solvers.small_network import SmallNetwork
from keras_calib.solvers.small_network import by_blocks
from keras_calib.solvers.small_network import inverse_softplus
from keras_calib.solvers.small_network import mean_and_deviation
from keras_calib.solvers.small_network import softplus

# No segment is flatter: order is kept strictly.
LEAST_SLOPE = 1e-3
# Log-probabilities that the network sees are cut here.
LIMIT = 100.0


@keras.saving.register_keras_serializable(package="keras_calib")
class IntraOrderPreserving(CalibrationLayer):
    """Bend log-probabilities by an increasing function: order stays.

    With `family="diagonal"` one increasing function is applied to every
    log-probability: straight lines between knots, all slopes positive. Equal
    slopes are temperature scaling. The negative log-likelihood is convex in
    the slopes; `adapt` finds its minimum with Newton's method.

    With `family="order_invariant"` a small network looks at the sorted
    log-probabilities of a sample and stretches each gap between neighbours.

    All classes keep their order, ties included.

    Args:
        family: `"diagonal"` or `"order_invariant"`.
        num_segments: int, a power of 2, segments of the diagonal function.
        hidden: ints, widths of the network's hidden layers.
        penalty: float >= 0; pulls towards temperature scaling, as a normal
            prior of variance `1 / penalty` does: on the differences of
            neighbouring slopes (10 by default), or on the network's kernels
            (300 by default).
        iterations: int, the largest number of steps.
        seed: int, for the start of the network.
        **kwargs: `name`, `dtype`, `trainable`, as in Keras.

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
        lines make the problem convex.
    """

    preserves_accuracy = True
    shift_invariant = True
    objectives = ("nll", "label_smoothing", "focal", "loss")

    def __init__(
        self,
        family="diagonal",
        num_segments=16,
        hidden=(16, 16),
        penalty=None,
        iterations=100,
        seed=0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if family not in ("diagonal", "order_invariant"):
            raise ValueError(
                '`family` must be "diagonal" or "order_invariant". '
                f"Received: family={family!r}."
            )
        if num_segments < 2 or num_segments & (num_segments - 1):
            raise ValueError(
                "`num_segments` must be a power of 2, at least 2. "
                f"Received: num_segments={num_segments}."
            )
        self.family = family
        self._rounds = family == "order_invariant"
        self.num_segments = num_segments
        self.hidden = tuple(hidden)
        if penalty is None:
            penalty = 10.0 if family == "diagonal" else 300.0
        self.penalty = penalty
        self.iterations = iterations
        self.seed = seed

    def build(self, input_shape):
        num_classes = max(2, input_shape[-1])
        if self.family == "diagonal":
            self.knots = self.add_weight(
                (1, self.num_segments - 1),
                lambda *_, **__: ops.array(
                    np.linspace(-10, -0.1, self.num_segments - 1)[None],
                    "float32",
                ),
                name="knots",
            )
            self.slopes = self.add_weight(
                (1, self.num_segments), "ones", name="slopes"
            )
        else:
            shapes = self._network(num_classes).shapes
            self.mean = self.add_weight((num_classes,), "zeros", name="mean")
            self.deviation = self.add_weight(
                (num_classes,), "ones", name="deviation"
            )
            for number, (a, b) in enumerate(shapes):
                last = number == len(shapes) - 1
                glorot = keras.initializers.GlorotUniform(number)
                one = keras.initializers.Constant(inverse_softplus(1.0))
                kernel = self.add_weight(
                    (a, b),
                    "zeros" if last else glorot,
                    name=f"kernel_{number}",
                )
                bias = self.add_weight(
                    (b,), one if last else "zeros", name=f"bias_{number}"
                )
                setattr(self, f"kernel_{number}", kernel)
                setattr(self, f"bias_{number}", bias)
        self.built = True

    def degrees_of_freedom(self, num_classes):
        if self.family == "diagonal":
            return self.num_segments
        return self._network(num_classes).size

    def _network(self, num_classes):
        return SmallNetwork((num_classes, *self.hidden, num_classes))

    def fit(self, logits, labels, weight, objective):
        tempered, known = TemperatureScaling().fit(
            logits, labels, weight, objective
        )
        slope = float(np.exp(-float(tempered["log_temperature"])))
        n = len(labels)
        weight = np.ones(n) if weight is None else np.asarray(weight, float)
        fit = self._fit_network
        if self.family == "diagonal":
            fit = self._fit_slopes
        weights, record, value = fit(logits, labels, weight, objective, slope)
        record = {"family": self.family, **record}
        if objective.is_plain_nll:
            record["nll_before"] = known["nll_before"]
            record["nll_after"] = float(value)
        return weights, record

    def _fit_slopes(self, logits, labels, weight, objective, slope):
        knots = knots_for(logits, self.num_segments - 1, weight)
        passes = SlopePasses(
            logits,
            labels,
            weight,
            objective,
            knots,
            self.penalty / weight.sum(),
        )
        start = np.full(self.num_segments, max(slope, LEAST_SLOPE))
        slopes, value = projected_newton(
            passes, start, LEAST_SLOPE, self.iterations
        )
        weights = {"knots": knots[None], "slopes": slopes[None]}
        return (
            weights,
            {"slopes": slopes.tolist()},
            value - passes.penalty(slopes),
        )

    def _fit_network(self, logits, labels, weight, objective, slope):
        penalty = self.penalty / weight.sum()
        network = self._network(logits.shape[1])
        log_p = arrays.log_softmax(logits, "float64")
        order = np.argsort(-log_p, axis=1, kind="stable")
        sorted_log_p = np.take_along_axis(log_p, order, axis=1)
        ranks = (order == np.asarray(labels)[:, None]).argmax(axis=1)
        gaps = sorted_log_p[:, :-1] - sorted_log_p[:, 1:]
        x = np.clip(sorted_log_p, -LIMIT, 0.0)
        mean, deviation = mean_and_deviation(x, weight)
        x = (x - mean) / deviation

        def function(theta):
            out, inputs = network.forward(theta, x)
            stretch = softplus(out[:, :0:-1])
            scores = np.zeros_like(out)
            np.cumsum(-gaps * stretch, axis=1, out=scores[:, 1:])
            value, pieces = by_blocks(
                lambda part, w: objective.value_and_gradient(
                    scores[part], ranks[part], w
                ),
                objective,
                *logits.shape,
                weight,
            )
            # A gap moves all scores below it.
            slope = np.concatenate(pieces)[:, :0:-1]
            slope = -np.cumsum(slope, axis=1) * gaps[:, ::-1]
            slope = np.pad(slope, ((0, 0), (1, 0))) * arrays.sigmoid(out)
            kernels = penalty * network.is_kernel * theta
            return (
                value + float(kernels @ theta) / 2,
                network.backward(theta, inputs, slope) + kernels,
            )

        start = network.start(self.seed, inverse_softplus(slope))
        theta, value = minimize(function, start, self.iterations)
        value -= penalty * (network.is_kernel @ theta**2) / 2
        weights = {"mean": mean, "deviation": deviation}
        for number, (kernel, bias) in enumerate(network.unpack(theta)):
            weights[f"kernel_{number}"] = kernel
            weights[f"bias_{number}"] = bias
        return weights, {}, value

    def call(self, logits):
        bend = self._bend if self.family == "diagonal" else self._stretch
        return on_pairs(lambda z: keep_prediction(z, bend(z)), logits)

    def _bend(self, logits):
        log_p = log_softmax(logits)
        # Height of the function at the right end of each segment.
        ends = ops.concatenate([self.knots, ops.zeros((1, 1))], axis=1)
        rises = self.slopes[:, 1:] * (ends[:, 1:] - ends[:, :-1])
        heights = ops.flip(ops.cumsum(ops.flip(rises, axis=1), axis=1), axis=1)
        heights = ops.concatenate([-heights, ops.zeros((1, 1))], axis=1)
        segment = count_below(self.knots, log_p)
        slope = take_rows(self.slopes, segment)
        return take_rows(heights, segment) + slope * (
            log_p - take_rows(ends, segment)
        )

    def _stretch(self, logits):
        log_p = log_softmax(logits)
        order = ops.argsort(-log_p, axis=-1)
        sorted_log_p = ops.take_along_axis(log_p, order, axis=-1)
        x = (ops.clip(sorted_log_p, -LIMIT, 0.0) - self.mean) / self.deviation
        count = len(self.hidden) + 1
        for number in range(count):
            x = ops.matmul(x, getattr(self, f"kernel_{number}"))
            x = x + getattr(self, f"bias_{number}")
            if number < count - 1:
                x = ops.relu(x)
        stretched = order_preserving(sorted_log_p, x)
        back = ops.argsort(order, axis=-1)
        return ops.take_along_axis(stretched, back, axis=-1)

    def get_config(self):
        config = {
            "family": self.family,
            "num_segments": self.num_segments,
            "hidden": list(self.hidden),
            "penalty": self.penalty,
            "iterations": self.iterations,
            "seed": self.seed,
        }
        return {**super().get_config(), **config}


def order_preserving(scores, stretch):
    """Stretch the gaps between sorted scores by `softplus(stretch)`.

    The largest score becomes 0; equal scores stay equal.

    Args:
        scores: descending, `(..., num_classes)`.
        stretch: `(..., num_classes)`; the second entry is for the gap above
            the smallest score, the last for the gap below the largest. The
            first is not used.
    """
    gaps = scores[..., :-1] - scores[..., 1:]
    stretch = ops.flip(stretch[..., 1:], axis=-1)
    falls = ops.cumsum(gaps * ops.softplus(stretch), axis=-1)
    return ops.concatenate([ops.zeros_like(scores[..., :1]), -falls], axis=-1)
