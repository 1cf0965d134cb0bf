"""Smooth reliability curve: a kernel mean of labels, and its consistency band.

The curve is a weighted mean of labels, whose kernel has the bandwidth of the
smooth ECE. This bandwidth depends on the labels, and with it the place and the
width of the band: a drawn set of labels is measured at the bandwidth of its
own, so that the observed one is one of many alike.
"""

import numpy as np

from keras_calib.evaluation.binless import smooth_error
from keras_calib.evaluation.corp import Band
from keras_calib.evaluation.corp import Scales
from keras_calib.evaluation.corp import drawn_hits
from keras_calib.evaluation.corp import size_at
from keras_calib.evaluation.events import Events
from keras_calib.evaluation.events import SortedBins
from keras_calib.inputs.arguments import generator

PLACES = 201
# Fewer than of CORP curves: a bandwidth is sought for each.
SCALE_DRAWS = 1000
LEVEL_DRAWS = 1000
# Below this fraction of the largest density there is no curve.
LEAST_DENSITY = 1e-3
# Bandwidths are rounded to powers of this number: few sets of scales.
RATIO = 1.2


class SmoothCurve:
    """The smooth reliability curve of sorted samples.

        f(t) = sum_i w_i a_i K_s(t, c_i) / sum_i w_i K_s(t, c_i)

    `K_s` is a Gaussian kernel of standard deviation `s`, reflected at 0 and 1.
    `s` is the bandwidth that equals the smooth ECE, rounded to a power of 1.2,
    and at least the distance of two places.

    Args:
        cells: `SortedBins` from `corp_cells`.

    Attributes:
        confidence: where the curve is, `(num_places,)`: evenly spaced from the
            least to the largest confidence, without wide gaps of samples.
        value: the curve, `(num_places,)`.
        density: density of the samples, relative to its largest value.
        bandwidth: float, `s`.

    Example:
        >>> import numpy as np
        >>> from keras_calib.evaluation.corp import corp_cells
        >>> from keras_calib.evaluation.events import sort_events
        >>> events = sort_events(np.full(10, 0.7), np.arange(10) % 2)
        >>> curve = SmoothCurve(corp_cells(events))
        >>> round(curve.bandwidth, 3), round(float(curve.value[0]), 3)
        (0.194, 0.5)

    Reference:
        Blasiok and Nakkiran, "Smooth ECE: Principled Reliability Diagrams via
        Kernel Smoothing", ICLR 2024, arXiv:2309.12236, Section 4.
    """

    def __init__(self, cells: SortedBins) -> None:
        self.cells = cells
        self._power = int(_powers(smooth_error(cells.events)))
        self.bandwidth = RATIO**self._power
        used, density, means = self._at(self._power)
        self.confidence = np.linspace(0.0, 1.0, PLACES)[used]
        self.density = density
        self.value = means @ cells.hits

    def _at(self, power):
        """Places that are used, density there, and from hits to the curve."""
        places = np.linspace(0.0, 1.0, PLACES)[:, None]
        kernel = np.zeros((PLACES, len(self.cells.weight)))
        for shift in (-2, 0, 2):
            for sign in (-1, 1):
                away = places - (sign * self.cells.confidence + shift)
                kernel += np.exp(-0.5 * (away / RATIO**power) ** 2)
        density = kernel @ self.cells.weight
        # Between samples only: a wide kernel reaches beyond them.
        ends = self.cells.events.confidence64[[0, -1]]
        inside = np.clip(places[:, 0], *ends) - places[:, 0]
        used = np.abs(inside) < 1.0 / (PLACES - 1)
        used &= density > LEAST_DENSITY * density.max()
        kernel, density = kernel[used], density[used]
        return used, density / density.max(), kernel / density[:, None]

    def band(
        self,
        *,
        level: float = 0.95,
        simultaneous: bool = True,
        seed: int = 0,
    ) -> Band:
        """Consistency band; see `corp_band`, with this curve.

        Args:
            level: float in (0, 1), the probability.
            simultaneous: whether it is that of the whole curve.
            seed: int.
        """
        rng = generator(seed)
        hits = np.concatenate([*drawn_hits(self.cells, SCALE_DRAWS, rng)])
        own = hits @ self._at(self._power)[-1].T
        if simultaneous:
            size = size_at(level, self._sizes(hits, rng))
            ends = Scales.of(own).band(size)
        else:
            tail = (1 - level) / 2
            ends = np.quantile(own, [tail, 1 - tail], axis=0)
        low, high = np.clip(ends, 0.0, 1.0)
        return Band(self.confidence, low, high, increasing=False)

    def _sizes(self, hits, rng):
        """Sizes of drawn curves, each at the bandwidth of its own labels."""
        confidence = np.clip(self.cells.confidence, 0.0, 1.0)
        weight = np.asarray(self.cells.weight, "float64")
        sizes = []
        for drawn in drawn_hits(self.cells, LEVEL_DRAWS, rng):
            powers = np.concatenate(
                [
                    _powers(smooth_error(Events(confidence, part, weight)))
                    for part in np.array_split(drawn / weight, 8)
                ]
            )
            for power in np.unique(powers):
                means = self._at(power)[-1].T
                curves = drawn[powers == power] @ means
                sizes.append(Scales.of(hits @ means).sizes(curves))
        return np.concatenate(sizes)


def _powers(bandwidth):
    """Powers of `RATIO` next to bandwidths, at least the distance of places."""
    least = np.maximum(bandwidth, 1.0 / (PLACES - 1))
    return np.round(np.log(least) / np.log(RATIO)).astype(int)
