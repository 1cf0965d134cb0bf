"""The temperature of logits that no memory holds: they are read again.

`logsumexp(beta z)` has no sufficient statistic of finite size in `beta`, so one
pass cannot be exact. Newton's method needs three sums per pass.
"""

import numpy as np

from keras_calib.solvers.temperature import Likelihood
from keras_calib.solvers.temperature import fit_temperature
from keras_calib.solvers.temperature import minimize

# Elements of the first block from which the first step is found.
FIRST = 1 << 24


def fit_temperature_in_stream(read):
    """`fit_temperature` for logits that are made anew for every pass.

    The first pass finds the NLL at temperature 1, its derivatives there, and
    those at the best temperature of the first block, from which Newton's
    method needs two passes more as a rule. Memory is that of a block.

    Args:
        read: function without arguments that returns an iterator of blocks
            `(logits, labels, weights)`, see `fit_temperature`; the same rows at
            every call, in any order. Weights of all blocks are on one scale.

    Returns:
        fit: `TemperatureFit`.
        num_passes: how often `read` was called.
    """
    stream = _StreamLikelihood(read)
    fit = minimize(stream, lambda: stream.start, tolerance=1e-4)
    return fit, stream.num_passes


class _StreamLikelihood:
    """`Likelihood`, summed over blocks of rows.

    Attributes:
        count: number of rows, after the first pass.
        shortfall, excess, spread: as in `Likelihood`, after the first pass.
        start: `log beta` of the first block, after the first pass.
        num_passes: how often the blocks were read.
    """

    def __init__(self, read):
        self.read = read
        self.start = None
        self.num_passes = 0
        self.known = {}

    def derivatives(self, u):
        if u not in self.known:
            self._pass(u)
        return self.known[u]

    def _pass(self, u):
        places, total, weight, spread, count = [u], 0.0, 0.0, 0.0, 0
        for logits, labels, weights in self.read():
            if self.start is None:
                self.start = _start(logits, labels, weights)
                places.append(self.start)
            block = Likelihood(logits, labels, weights, smoothing=0.0)
            part = weights.sum()
            found = [block.derivatives(place) for place in places]
            found.append((block.shortfall, block.excess, 0.0))
            total = total + part * np.array(found)
            weight += part
            count += len(labels)
            spread = max(spread, block.spread)
        *found, (self.shortfall, self.excess, _) = (total / weight).tolist()
        self.known.update(zip(places, map(tuple, found), strict=True))
        self.spread, self.count = spread, count
        self.num_passes += 1


def _start(logits, labels, weights):
    rows = slice(max(1, FIRST // logits.shape[1]))
    fit = fit_temperature(logits[rows], labels[rows], weights[rows])
    # A few rows may have no minimum where all of them have one.
    return 0.0 if fit.stop_reason else -float(np.log(fit.temperature))
