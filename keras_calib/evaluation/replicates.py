"""Statistics of a sample and of its replicates: resamples, or drawn labels."""

import numpy as np

from keras_calib._progress import ProgressBar
from keras_calib.evaluation.events import Events
from keras_calib.evaluation.events import sort_events
from keras_calib.evaluation.grid_bootstrap import ScaledErrors
from keras_calib.evaluation.named_errors import BINARY
from keras_calib.evaluation.named_errors import CLASSWISE
from keras_calib.evaluation.named_errors import MEAN_SQUARE
from keras_calib.evaluation.named_errors import MEANS
from keras_calib.evaluation.named_errors import SELECTIVE
from keras_calib.evaluation.named_errors import TOP_LABEL
from keras_calib.evaluation.named_errors import confidence_and_correct
from keras_calib.evaluation.named_errors import errors_of_events
from keras_calib.inputs.arguments import generator
from keras_calib.ops.bin_errors import divide

# How many numbers a table of replicates may hold at a time, which are drawn
# together; and of how many statistics are computed together, with some twenty
# tables of this size.
TABLE = 1 << 22
PART = 1 << 19


class Replicates:
    """Statistics of the sample, followed by those of each replicate.

    Args:
        data: `Predictions`.
        number: int, number of replicates.
        seed: int; the same seed draws the same replicates.
        passes: int, how many times the replicates are drawn, for the progress
            bar.
        verbose: see `calibration_errors`.
        scales: whether errors of `GRID` have `ScaledErrors`, in a second axis.
    """

    def __init__(self, data, number, seed, passes, verbose, scales=False):
        self.data = data
        self.number = number
        self.seed = seed
        self.scales = scales and number > 0
        self.size = max(1, TABLE // max(self.rows, 1))
        # Without replicates a pass is a step.
        chunks = passes * max(1, -(-number // self.size))
        self.bar = ProgressBar(chunks, verbose, unit_name="part of resamples")

    @property
    def rows(self):
        """How many numbers a replicate has."""
        return len(self.data.labels)

    def replicate(self, events, order, k, rng, size):
        """`Events` of `size` replicates of `events`, the sorted sample."""
        raise NotImplementedError

    def means(self, rows):
        """Weighted means of `(m, n)` values, `(m, 1 + number)`."""
        raise NotImplementedError

    def chunks(self):
        """A random generator and a number of replicates for each chunk."""
        for start in range(0, self.number, self.size):
            rng = generator(self.seed, start)
            yield rng, min(self.size, self.number - start)
            self.bar.step()

    def statistics(self, wanted, num_bins, threshold):
        """The wanted statistics, dict of `(1 + number, ...)` arrays."""
        bins = num_bins, threshold

        def errors(table, k=None):
            return self._errors(table, wanted, bins, k)

        found = errors(TOP_LABEL | SELECTIVE)
        names = [name for name in MEANS if name in wanted]
        if names:
            rows = np.stack([MEANS[name](self.data) for name in names])
            found |= zip(names, self.means(rows), strict=True)
        found |= self._mean_over_classes(lambda k: errors(CLASSWISE, k))
        if self.data.num_classes == 2:
            found |= errors(BINARY, 1)
        self.bar.finish()
        return found

    def errors_of_class(self, wanted, bins, k=None):
        """The wanted keys of `TOP_LABEL`, for the probability of class `k`."""
        return self._errors(TOP_LABEL, wanted, bins, k)

    def _errors(self, table, wanted, bins, k=None):
        """The wanted errors of a table; none are computed for no name."""
        if set(table).isdisjoint(wanted):
            return {}

        def plain(events):
            return errors_of_events(events, table, wanted, *bins)

        scaled = ScaledErrors(table, wanted, bins)
        return self._of_events(scaled if self.scales else plain, k)

    def _mean_over_classes(self, errors):
        means = {}
        for k in range(self.data.num_classes):
            for name, value in errors(k).items():
                value = value**2 if name in MEAN_SQUARE else value
                means[name] = means.get(name, 0.0) + value
        means = {name: v / self.data.num_classes for name, v in means.items()}
        return {
            name: np.sqrt(mean) if name in MEAN_SQUARE else mean
            for name, mean in means.items()
        }

    def _of_events(self, function, k):
        """Values of a function of events, dict of `(1 + number,)` arrays.

        Args:
            function: `Events` -> dict of values.
            k: the class whose probability is the confidence, or `None` for
                the predicted class of each row.
        """
        confidence, correct = confidence_and_correct(self.data, k)
        weights = self.data.weights
        if not self.number:
            found = function(sort_events(confidence, correct, weights))
            self.bar.step()
            return {name: np.reshape(v, 1) for name, v in found.items()}
        order = np.argsort(confidence, kind="stable")
        weights = None if weights is None else weights[order]
        events = Events(
            confidence[order],
            np.asarray(correct, "float64")[order],
            weights,
            None if weights is None else weights**2,
        )
        return self._values(function, events, order, k)

    def _values(self, function, events, order, k):
        """Values of the sorted sample, followed by those of its replicates."""
        found = function(events)
        values = {name: [np.asarray(v)[None]] for name, v in found.items()}
        few = max(1, PART // max(len(events), 1))
        for rng, size in self.chunks():
            drawn = self.replicate(events, order, k, rng, size)
            for start, part in zip(
                range(0, size, few), drawn.parts(few), strict=True
            ):
                number = min(few, size - start)
                for name, value in function(part).items():
                    shape = number, *np.shape(found[name])
                    values[name].append(np.broadcast_to(value, shape))
        return {name: np.concatenate(each) for name, each in values.items()}


class Resamples(Replicates):
    """Bootstrap: samples are drawn with replacement."""

    def unit_counts(self, rng, size):
        """How often each unit is drawn, `(size, units)`."""
        units = self.data.units
        if not units:
            return np.zeros((size, 0), int)
        drawn = rng.integers(0, units, (size, units), "int32")
        drawn += np.arange(0, size * units, units, dtype="int32")[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * units)
        return counts.reshape(size, units)

    def drawn_rows(self, rng, size):
        """The positions of the rows of each of `size` resamples."""
        for counts in self.unit_counts(rng, size):
            times = counts if self.data.unit is None else counts[self.data.unit]
            yield np.arange(len(times)).repeat(times)

    def replicate(self, events, order, k, rng, size):
        counts, square = self.unit_counts(rng, size), None
        unit = order if self.data.unit is None else self.data.unit[order]
        weights = counts[:, unit]
        if events.weights is not None:
            weights, square = weights * events.weights, weights * events.square
        return Events(events.confidence, events.correct, weights, square)

    def means(self, rows):
        weights = self.data.weights
        ones = np.ones(rows.shape[1]) if weights is None else weights
        total = self._by_unit(ones[None])
        # Tables of all rows are large: none is made that is not needed.
        infinite = np.isinf(rows)
        if infinite.any():
            rows = np.where(infinite, 0.0, rows)
            infinite = self._by_unit(infinite * ones)
        else:
            infinite = None
        sums = self._by_unit(rows if weights is None else rows * weights)

        def mean(counts=None):
            def over(table):
                if counts is not None:
                    return table @ counts
                # Unlike a product, a row by itself: no mean depends on others.
                return table.sum(axis=1, keepdims=True)

            value = divide(over(sums), over(total))
            if infinite is None:
                return value
            return np.where(over(infinite) > 0, np.inf, value)

        found = [mean()]
        for rng, size in self.chunks():
            found.append(mean(self.unit_counts(rng, size).T.astype("float64")))
        return np.concatenate(found, axis=1)

    def _by_unit(self, rows):
        """Sums over the rows of each unit, `(m, n)` -> `(m, units)`."""
        if self.data.unit is None:
            return rows
        units = self.data.units
        sums = [np.bincount(self.data.unit, row, units) for row in rows]
        return np.stack(sums)
