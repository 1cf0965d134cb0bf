"""ICI: distance between probabilities and a smooth curve of the outcomes.

The curve is loess or isotonic regression of the outcomes on the probabilities.
It is wiggly also for a calibrated model, so the index is not 0 there: its noise
floor is that of outcomes drawn from the probabilities.
"""

import numpy as np

from keras_calib.evaluation.corp import drawn_hits
from keras_calib.evaluation.events import Events
from keras_calib.evaluation.events import SortedBins
from keras_calib.evaluation.floor import Floor
from keras_calib.inputs.arguments import generator
from keras_calib.ops.bin_errors import divide
from keras_calib.solvers.isotonic import isotonic_rows
from keras_calib.solvers.loess import loess_matrix

# More different probabilities than this are fitted at quantiles of them.
MOST_PLACES = 500
QUANTILES = 101
# More rows than this are first joined to cells of equal mass.
LARGE = 20_000
CELLS = 2000


class LoessCurve:
    """Loess of degree 2 with a span of .75, as Austin and Steyerberg fit it.

    Args:
        cells: `SortedBins` without empty cells.
        x: the probability of each cell, ascending.
    """

    def __init__(self, cells: SortedBins, x: np.ndarray):
        self.place = x
        if len(cells.events) > MOST_PLACES and len(x) > MOST_PLACES:
            share = np.linspace(0, 1, QUANTILES)
            self.place = np.unique(
                np.quantile(cells.events.confidence64, share)
            )
        self.weight = cells.weight
        self.matrix = loess_matrix(
            x,
            self.place,
            num_rows=np.diff(cells.cuts),
            weights=cells.weight,
        )

    def values(self, hits: np.ndarray) -> np.ndarray:
        """The curve of weighted hits, `(k, num_cells)`, at each `place`."""
        return (hits / self.weight) @ self.matrix.T


class IsotonicCurve:
    """The increasing curve with the least squared distance to the outcomes.

    Args:
        cells: see `LoessCurve`.
        x: see `LoessCurve`.
    """

    def __init__(self, cells: SortedBins, x: np.ndarray):
        self.place = x
        self.weight = np.asarray(cells.weight, "float64")

    def values(self, hits: np.ndarray) -> np.ndarray:
        """The curve of weighted hits, `(k, num_cells)`, at each `place`."""
        return isotonic_rows(hits, self.weight, np.arange(len(self.place)))


SMOOTHERS: dict[str, type[LoessCurve] | type[IsotonicCurve]] = {
    "loess": LoessCurve,
    "isotonic": IsotonicCurve,
}


def calibration_index(
    events: Events,
    *,
    smoother: str = "loess",
    num_draws: int,
    seed: int = 0,
) -> dict[str, float]:
    """ICI, E50, E90 and Emax of a smooth curve `f` of the outcomes.

        ICI  = mean |f(p_i) - p_i|
        E50, E90 = median and .9 quantile of the same;  Emax = its maximum

    `f` may leave [0, 1]. Up to 500 different probabilities have a fit each;
    above, there are 101 at their quantiles, and straight lines between. More
    than 20,000 rows are joined to 2,000 cells of equal mass.

    Args:
        events: `Events` of the probability, 1 where the event happened.
        smoother: a key of `SMOOTHERS`.
        num_draws: int, sets of outcomes drawn from the probabilities, for the
            noise floor of the ICI; 0 for no floor.
        seed: int.

    Returns:
        dict: `integrated_calibration_index`, `e50`, `e90`, `emax`, and with
        draws `integrated_calibration_index_floor`, `_floor_low`, `_floor_high`.

    Reference:
        Austin and Steyerberg, "The Integrated Calibration Index (ICI) and
        related metrics", Statistics in Medicine, 2019, Section 2.2.
    """
    gaps = SmoothGaps(events, smoother)
    p, weights = events.confidence64, events.weights
    found = _of_distances(np.abs(gaps.at(p)), weights)
    if num_draws:
        cells, x, curve = gaps.cells, gaps.x, gaps.curve
        share = cells.weight / cells.total
        rng = generator(seed)
        drawn = [
            np.abs(_between(curve.values(part), curve.place, x) - x) @ share
            for part in drawn_hits(cells, num_draws, rng)
        ]
        floor = Floor.from_draws(np.concatenate(drawn))
        for key in ("", "_low", "_high"):
            name = f"integrated_calibration_index_floor{key}"
            found[name] = getattr(floor, key[1:] or "mean")
    return found


class SmoothGaps:
    """How far a smooth curve of the outcomes is above the probabilities.

    Attributes:
        cells: `SortedBins`, one for each different probability, or fewer.
        x: the probability of each cell, `(num_cells,)`.
        curve: the smoother, one of the values of `SMOOTHERS`.
    """

    def __init__(self, events: Events, smoother: str = "loess"):
        self.cells = _cells(events)
        self.x = self.cells.exact_confidence
        self.curve = SMOOTHERS[smoother](self.cells, self.x)
        hits = np.asarray(self.cells.hits, "float64")
        self._values = self.curve.values(hits[None])
        self._own = self.at(self.x)

    def at(self, p: np.ndarray) -> np.ndarray:
        """`f(p) - p` of probabilities `(n,)`."""
        return _between(self._values, self.curve.place, p)[0] - p

    def indices_at(
        self, scales: np.ndarray, other: Events | None = None
    ) -> np.ndarray:
        """ICI, E50, E90 and Emax of gaps at each scale, with a sample's noise.

        Args:
            scales: factors of these gaps, `(k,)`; see `grid_bootstrap`.
            other: `Events` of a resample, whose curve has the noise; `None` for
                no noise.

        Returns:
            `(k, 4)`.
        """
        noise = np.zeros(len(self.x))
        if other is not None:
            noise = SmoothGaps(other).at(self.x) - self._own
        return np.array(
            [
                [*_of_distances(np.abs(gap), self.cells.weight).values()]
                for gap in scales[:, None] * self._own + noise
            ]
        )


def _of_distances(gap, weights):
    e50, e90 = weighted_quantiles(gap, [0.5, 0.9], weights)
    return {
        "integrated_calibration_index": float(np.average(gap, weights=weights)),
        "e50": float(e50),
        "e90": float(e90),
        "emax": float(gap.max()),
    }


def weighted_quantiles(
    values: np.ndarray, q: list[float], weights: np.ndarray | None = None
) -> np.ndarray:
    """Quantiles by linear interpolation, also of weighted values.

    The k-th smallest value has the place of the middle of its weight; places
    run from 0 to 1. Equal weights give the usual definition, `(k - 1)/(n - 1)`.

    Args:
        values: `(n,)`.
        q: list of floats in [0, 1].
        weights: `None`, or weights > 0, `(n,)`.
    """
    if weights is None:
        return np.quantile(values, q)
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    middle = np.cumsum(weights) - weights / 2
    place = divide(middle - middle[0], middle[-1] - middle[0])
    return np.interp(q, place, values)


def _cells(events):
    """A cell for each different probability, or cells of equal mass."""
    if len(events) <= LARGE:
        return events.tie_bins
    return events.bins(np.unique(events.mass_cuts(CELLS)))


def _between(values, place, where):
    """Straight lines through values `(k, num_places)`, constant outside."""
    if len(place) == 1:
        return np.repeat(values, len(where), axis=1)
    right = np.clip(np.searchsorted(place, where), 1, len(place) - 1)
    low, high = place[right - 1], place[right]
    share = np.clip((where - low) / (high - low), 0.0, 1.0)
    return values[:, right - 1] * (1 - share) + values[:, right] * share
