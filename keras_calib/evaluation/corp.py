"""CORP: a reliability curve by isotonic regression, and its consistency band.

Equal confidences are pooled, and the curve is the increasing function of the
confidence with the least squared distance to the labels: no bins to choose.
Many distinct confidences are first joined to cells of equal mass, the same for
the curve and for its band.

A consistency band is where the curve of a calibrated model lies. It is drawn
around the median curve of labels that are drawn from the confidences, and not
around the observed curve.
"""

import dataclasses
import math

import numpy as np

from keras_calib.evaluation.events import Events
from keras_calib.evaluation.events import SortedBins
from keras_calib.evaluation.replicates import TABLE
from keras_calib.inputs.arguments import generator
from keras_calib.solvers.isotonic import Blocks
from keras_calib.solvers.isotonic import isotonic_regression
from keras_calib.solvers.isotonic import isotonic_rows

CELLS = 2048
# With weights, the hits of a cell are drawn as if its rows were equal and
# fewer, which needs this number of rows in each cell.
WEIGHTED_ROWS = 25
PLACES = 200
SCALE_DRAWS = 4000
LEVEL_DRAWS = 2000
# The tails that scale a simultaneous band, wider where the curve varies more.
TAIL = 0.005


@dataclasses.dataclass(frozen=True)
class Band:
    """Where a curve lies with a probability, at some of its confidences.

    Attributes:
        confidence: ascending, `(num_places,)`.
        low: lower end at each confidence, `(num_places,)`.
        high: upper end at each confidence, `(num_places,)`.
        increasing: whether curves, and so both ends, increase.
    """

    confidence: np.ndarray
    low: np.ndarray
    high: np.ndarray
    increasing: bool = True

    def corners(self):
        """Corners of the band: `x`, `low` and `high`.

        If curves increase, the lower end between two places is that of the
        place before, and the upper end that of the place behind.
        """
        if not self.increasing:
            return self.confidence, self.low, self.high
        x, low, high = (
            np.repeat(v, 2) for v in (self.confidence, self.low, self.high)
        )
        return x[1:-1], low[:-2], high[2:]


@dataclasses.dataclass(frozen=True)
class Scales:
    """What a band is measured by: the median curve and a scale to each side.

    Attributes:
        middle: median of the drawn curves, `(num_places,)`.
        down: scale below it.
        up: scale above it.
    """

    middle: np.ndarray
    down: np.ndarray
    up: np.ndarray

    @classmethod
    def of(cls, curves):
        """Scales of drawn curves, `(num_draws, num_places)`."""
        low, middle, high = np.quantile(curves, [TAIL, 0.5, 1 - TAIL], axis=0)
        # Where all curves agree, as at a confidence of 1, others are outside.
        least = np.maximum(curves.std(axis=0), 1e-9)
        down, up = np.maximum(middle - low, least), high - middle
        return cls(middle, down, np.maximum(up, least))

    def sizes(self, curves):
        """The size of the band that each curve just stays in."""
        away = curves - self.middle
        return np.maximum(away / self.up, -away / self.down).max(axis=1)

    def band(self, size):
        """Both ends of the band of a size."""
        return self.middle - size * self.down, self.middle + size * self.up


def corp_cells(events: Events) -> SortedBins:
    """A cell for each distinct confidence, or, if too many, of equal mass.

    Args:
        events: `Events`.

    Returns:
        `SortedBins` without empty cells, `CELLS` at most.
    """
    cells = events.tie_bins
    if len(cells.cuts) <= CELLS + 1:
        return cells
    number = CELLS
    if events.weights is not None:
        number = min(CELLS, len(events) // WEIGHTED_ROWS)
    return events.bins(np.unique(events.mass_cuts(number)))


def corp_curve(cells: SortedBins) -> Blocks:
    """The reliability curve: the accuracy that increases with confidence.

    Args:
        cells: from `corp_cells`.

    Returns:
        `Blocks`, from `first` to `last` confidence on `level`; between blocks
        the curve is a straight line.

    Example:
        >>> import numpy as np
        >>> from keras_calib.evaluation.events import sort_events
        >>> c, a = np.array([0.2, 0.4, 0.6, 0.8]), np.array([0, 1, 0, 1.0])
        >>> curve = corp_curve(corp_cells(sort_events(c, a)))
        >>> curve.level.tolist(), curve.first.tolist()
        ([0.0, 0.5, 1.0], [0.2, 0.4, 0.8])

    Reference:
        Dimitriadis, Gneiting and Jordan, "Stable reliability diagrams for
        probabilistic classifiers", PNAS 2021, arXiv:2008.03033.
    """
    return isotonic_regression(
        cells.exact_confidence, cells.accuracy, cells.weight
    )


def corp_band(
    cells: SortedBins,
    *,
    level: float = 0.95,
    simultaneous: bool = True,
    seed: int = 0,
) -> Band:
    """Consistency band of the CORP curve.

    Labels are drawn from the confidences, and the curve `f_r(t)` of each set of
    labels is computed at up to 200 ranks t. From 4,000 curves come the median
    m(t) and the scales

        down(t) = m - q_0.005,  up(t) = q_0.995 - m,  each at least the sd

    and from 2,000 others the size of a band that holds everywhere at once:

        sup_r = max_t max((f_r - m) / up, (m - f_r) / down)
        lam   = the ceil(level (2000 + 1))-th smallest sup_r
        band  = [m - lam down, m + lam up], cut to [0, 1]

    Given the scales, the `sup` of a calibrated model is one more of the drawn
    ones, so that the band holds with `level` up to 1 / 2001, for any number of
    samples. With unequal weights in a cell its hits are drawn as those of
    `(sum w)^2 / sum w^2` rows, which is approximate.

    Args:
        cells: from `corp_cells`.
        level: float in (0, 1), the probability.
        simultaneous: whether it is that of the whole curve; otherwise of each
            place alone, between quantiles of the first 4,000 curves.
        seed: int.

    Returns:
        `Band`.

    Reference:
        Dimitriadis, Gneiting and Jordan, "Stable reliability diagrams for
        probabilistic classifiers", PNAS 2021, arXiv:2008.03033, for pointwise
        bands; the simultaneous one is derived for this package.
    """
    rng = generator(seed)
    last = len(cells.weight) - 1
    places = np.linspace(0, last, min(PLACES, last + 1)).round().astype(int)
    curves = drawn_curves(cells, SCALE_DRAWS, places, rng)
    if simultaneous:
        others = drawn_curves(cells, LEVEL_DRAWS, places, rng)
        scales = Scales.of(curves)
        low, high = scales.band(size_at(level, scales.sizes(others)))
    else:
        tail = (1 - level) / 2
        low, high = np.quantile(curves, [tail, 1 - tail], axis=0)
    confidence = np.clip(cells.confidence[places], 0.0, 1.0)
    return Band(confidence, np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0))


def drawn_curves(cells, num_draws, places, rng):
    """CORP curves of drawn labels at some cells, `(num_draws, num_places)`."""
    parts = drawn_hits(cells, num_draws, rng)
    return np.concatenate(
        [isotonic_rows(hits, cells.weight, places) for hits in parts]
    )


def drawn_hits(cells, num_draws, rng):
    """Weighted hits of each cell for labels drawn from the confidences.

    Yields:
        `(some draws, num_cells)`, `num_draws` in total.
    """
    rows = np.maximum(np.round(cells.samples), 1).astype(int)
    chance = np.clip(cells.confidence, 0.0, 1.0)
    single = bool((rows == 1).all())
    size = max(1, TABLE // len(rows))
    for start in range(0, num_draws, size):
        shape = min(size, num_draws - start), len(rows)
        if single:
            hits = rng.random(shape) < chance
        else:
            hits = rng.binomial(rows, chance, shape)
        # Equal weights leave whole numbers.
        yield hits * (cells.weight / rows)


def size_at(level, sizes):
    """A further size is at most this one with a probability of `level`."""
    rank = min(math.ceil(level * (len(sizes) + 1)), len(sizes)) - 1
    return np.sort(sizes)[rank]
